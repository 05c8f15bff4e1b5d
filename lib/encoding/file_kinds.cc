#include "lib/encoding/file_kinds.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera {
namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kTarMagicOffset = 257;
constexpr std::uint64_t kTarNameBytes = 100;

struct Magic {
  std::string_view bytes;
  std::string_view what;
  std::string_view hint;
};
constexpr std::array kMagics = {
    Magic{"\x93NUMPY"sv, "a NumPy array (.npy)"sv,
          "load it with numpy, and save it as safetensors"sv},
    Magic{"GGUF"sv, "a GGUF file"sv, "convert it with llama.cpp's or transformers' own scripts"sv},
    Magic{"\x1f\x8b"sv, "compressed with gzip"sv,
          "decompress it first: gzip -d, or tar -xzf for a packed folder"sv},
    Magic{"\x28\xb5\x2f\xfd"sv, "compressed with zstd"sv, "decompress it first: zstd -d"sv},
    Magic{"\xfd"
          "7zXZ\0"sv,
          "compressed with xz"sv, "decompress it first: xz -d"sv},
    Magic{"BZh"sv, "compressed with bzip2"sv, "decompress it first: bzip2 -d"sv},
    Magic{"7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive"sv, "extract it first"sv},
    Magic{"version https://git-lfs"sv, "a pointer of Git LFS, not the file itself"sv,
          "fetch the file: git lfs pull"sv},
    Magic{"<!DOCTYPE"sv, "a web page, not the file itself"sv,
          "download the file that the page shows"sv},
    Magic{"<html"sv, "a web page, not the file itself"sv,
          "download the file that the page shows"sv},
    Magic{"<?xml"sv, "an XML document"sv, "if it is a server's answer, download the file again"sv},
    Magic{"PAR1"sv, "a Parquet file"sv, ""sv},
    Magic{"ARROW1"sv, "an Arrow file"sv, ""sv},
};

bool any(std::span<const ZipMember> members, auto&& test) {
  return std::ranges::any_of(
      members, [&](const ZipMember& member) { return test(std::string_view(member.name)); });
}

/// Without those of archives inside, whose directories are listed as well.
std::vector<ZipMember> outermost(std::span<const ZipMember> all) {
  std::vector<ZipMember> by_place(all.begin(), all.end()), out;
  std::ranges::stable_sort(by_place, {}, &ZipMember::header_offset);
  std::uint64_t end = 0;
  for (ZipMember& member : by_place) {
    if (member.header_offset < end) continue;
    end = member.header_offset + std::min(member.length, ~member.header_offset);
    out.push_back(std::move(member));
  }
  return out;
}

/// Records as torch.save names them below its top folder: a file that has some of them is one of
/// its files, and damaged where others are missing.
bool has_torch_records(std::span<const ZipMember> members) {
  return any(members, [](std::string_view name) {
    const std::string_view below = name.substr(name.find('/') + 1);
    return below == "data.pkl" || below == "constants.pkl" || below == "byteorder" ||
           below == ".data/serialization_id" ||
           (below.starts_with("data/") && is_decimal(below.substr(5)));
  });
}

/// torch.save of PyTorch 0.1 wrote a tar archive of these.
bool is_of_old_torch(std::string_view first_member) {
  return first_member == "sys_info" || first_member == "pickle" || first_member == "storages" ||
         first_member == "tensors";
}

/// A pickle of protocol 2 to 5 from its first byte to its last. Files of torch.save begin with such a
/// pickle, of a number, and go on.
bool is_bare_pickle(const ByteWindow& window, std::string_view head) {
  constexpr std::string_view kBeginsTorchSave = "\x80\x02\x8a";
  if (head.size() < 3 || head[0] != '\x80' || head[1] < 2 || head[1] > 5) return false;
  return !head.starts_with(kBeginsTorchSave) && as_text(window.read(window.length - 1, 1)) == ".";
}

std::optional<FileKind> tar_kind(const ByteWindow& window) {
  if (window.length < kTarMagicOffset + 5 || as_text(window.read(kTarMagicOffset, 5)) != "ustar")
    return std::nullopt;
  const Bytes first = window.read(0, kTarNameBytes);
  const std::string_view name = as_text(first);
  if (is_of_old_torch(name.substr(0, name.find('\0'))))
    return FileKind{"a tar archive of PyTorch 0.1", "load and save it again with PyTorch"};
  return FileKind{"a tar archive (NeMo's .nemo files are such)",
                  "extract it with tar -xf into a folder of its own, and name what is in it"};
}

}  // namespace

std::optional<FileKind> other_kind_of_zip(std::span<const ZipMember> all) {
  const std::vector<ZipMember> members = outermost(all);
  if (members.empty()) return std::nullopt;
  const auto ends = [](std::string_view end) {
    return [end](std::string_view name) { return name.ends_with(end); };
  };
  if (std::ranges::all_of(members, [](const ZipMember& m) { return m.name.ends_with(".npy"); }))
    return FileKind{"a NumPy archive (.npz)", "load it with numpy, and save it as safetensors"};
  if (any(members, ends("/archive_format")))
    return FileKind{"an archive of torch.export (.pt2): it holds a program",
                    "save the state_dict() with torch.save"};
  if (any(members, ends("/.data/extern_modules")))
    return FileKind{"an archive of torch.package: it holds code",
                    "save the state_dict() with torch.save"};
  if (has_torch_records(members)) return std::nullopt;
  if (any(members, ends("_stable_baselines3_version")))
    return FileKind{"a model of Stable-Baselines3: a zip archive of several files",
                    "extract it with unzip, and name policy.pth or policy.optimizer.pth in it"};
  return FileKind{
      fmt::format("a zip archive of other files (\"{}\"{}): not written by torch.save",
                  printable(members.front().name),
                  members.size() > 1 ? fmt::format(" and {} more", members.size() - 1) : ""),
      "extract it, and name what is in it"};
}

std::optional<FileKind> other_kind_of(const ByteWindow& window) {
  const Bytes head = window.read(0, std::min<std::uint64_t>(64, window.length));
  const std::string_view text = as_text(head);
  for (const Magic& magic : kMagics)
    if (text.starts_with(magic.bytes))
      return FileKind{std::string(magic.what), std::string(magic.hint)};
  if (is_bare_pickle(window, text))
    return FileKind{"a pickle that torch.save did not write",
                    "load it in Python, and save what is wanted of it with torch.save"};
  if (text.starts_with("PK\x03\x04")) return other_kind_of_zip(list_zip_members(window));
  return tar_kind(window);
}

}  // namespace tessera

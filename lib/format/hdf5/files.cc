#include "lib/format/hdf5/files.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "lib/format/findings.h"
#include "lib/format/hdf5/helper.h"
#include "lib/format/hdf5/keras_files.h"
#include "lib/format/hdf5/names.h"

namespace tessera::h5 {
namespace {

constexpr std::array<std::string_view, 2> kSuffixes = {".h5", ".hdf5"};
constexpr std::uint64_t kSearchedBytes = 1 << 20;
constexpr std::size_t kMaxCandidates = 256;
constexpr int kMaxUserBlocks = 24;  // 512 bytes doubled this often: 4 GiB

constexpr std::size_t kSuperblockHead = 28 + 3 * 8;

/// Where the signature stands: at 0 or after a user block.
std::optional<std::uint64_t> find_superblock(const ReadFile& file) {
  std::array<std::byte, 8> head;
  std::uint64_t at = 0;
  for (int i = 0; i < kMaxUserBlocks && at + head.size() <= file.size_bytes(); ++i) {
    file.read_at(at, head);
    if (as_text(head) == kSignature) return at;
    at = at == 0 ? 512 : 2 * at;
  }
  return std::nullopt;
}

bool names_file(std::string_view bytes, const std::string& name) {
  return bytes.find(name) != bytes.npos;
}

std::string first_bytes(const Directory& directory, const std::string& name) {
  const auto file = directory.open(name);
  Bytes bytes(std::min(kSearchedBytes, file->size_bytes()));
  file->read_at(0, bytes);
  return std::string(as_text(bytes));
}

/// The index stands for its shards; a file beside them is another checkpoint. One that cannot be
/// read stands for whatever HDF5 files lie beside it.
std::optional<std::string> main_index(const Directory& directory, const std::string& index,
                                      const std::vector<std::string>& files) {
  try {
    const std::vector<std::string> shards = read_keras_index(directory, index).shards;
    const bool all = std::ranges::all_of(
        files, [&](const auto& name) { return std::ranges::binary_search(shards, name); });
    return all ? std::optional(index) : std::nullopt;
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return files.empty() ? std::nullopt : std::optional(index);
  }
}

}  // namespace

const DescribedFile& FileSet::get(const std::string& path) {
  if (const auto found = described_.find(path); found != described_.end()) return found->second;
  return in_file(path, [&]() -> const DescribedFile& {
    if (helper_.empty()) helper_ = find_helper();
    const auto file = directory_.open(path);
    DescribedFile described;
    described.size_bytes = file->size_bytes();
    described.number = static_cast<std::uint32_t>(files_.size());
    if (looks_like_keras(*file) || is_zip_named_keras(*file, path)) {
      KerasArchive archive = open_keras(*file);
      described.base = archive.offset;
      described.size_bytes = archive.length;
      described.texts = std::move(archive.texts);
    }
    const FilePart part(*file, described.base, described.size_bytes);
    described.report = parse_report(describe_file(helper_, part));
    described.end = stated_end(part);
    const auto info = directory_.stat(path);
    files_.push_back({path, file->size_bytes(), info ? info->mtime_ns : 0});
    return described_.emplace(path, std::move(described)).first->second;
  });
}

std::vector<Piece> FileSet::pieces(const DescribedFile& file, const Dataset& dataset,
                                   DType dtype) const {
  std::vector<Piece> out = pieces_of(dataset, dtype, file.number, file.size_bytes);
  for (Piece& piece : out) piece.offset += file.base;
  return out;
}

std::string FileSet::absence(const std::string& path) const {
  const auto info = directory_.stat(path);
  if (!info) return "it is missing";
  return info->type == FileType::kRegular ? "" : std::string(no_regular_file(info->type));
}

bool looks_like_hdf5(const ReadFile& file) { return find_superblock(file).has_value(); }

// HDF5 File Format Specification 3.0, II.A: the address counts from the beginning of the file.
std::optional<std::uint64_t> stated_end(const ReadFile& file) {
  const auto at = find_superblock(file);
  if (!at) return std::nullopt;
  std::array<std::byte, kSuperblockHead> head{};
  const auto there = std::min<std::uint64_t>(head.size(), file.size_bytes() - *at);
  file.read_at(*at, MutableBytes(head).first(there));
  const auto byte = [&](std::size_t i) { return std::to_integer<std::size_t>(head.at(i)); };
  const std::size_t version = byte(8);
  if (version > 3) return std::nullopt;
  const std::size_t width = version < 2 ? byte(13) : byte(9);
  if (width != 2 && width != 4 && width != 8) return std::nullopt;
  // Two addresses stand before it: of the base, and of the free space or the extension.
  const std::size_t addresses = version == 0 ? 24 : version == 1 ? 28 : 12;
  std::uint64_t end = 0;
  for (std::size_t i = width; i-- > 0;) end = end << 8 | byte(addresses + 2 * width + i);
  return end;
}

bool has_hdf5_suffix(std::string_view name) {
  return std::ranges::any_of(kSuffixes, [&](auto suffix) { return name.ends_with(suffix); });
}

std::optional<std::string> main_file(const Directory& directory) {
  std::vector<std::string> files, indexes;
  for (const FileInfo& info : directory.list()) {
    if (info.type != FileType::kRegular || info.name.starts_with('.')) continue;
    if (has_hdf5_suffix(info.name) || has_keras_suffix(info.name)) files.push_back(info.name);
    if (has_index_suffix(info.name)) indexes.push_back(info.name);
  }
  std::erase_if(files, [&](const auto& name) {
    const auto file = directory.open(name);
    return !looks_like_hdf5(*file) && !looks_like_keras(*file) && !is_zip_named_keras(*file, name);
  });
  if (indexes.size() == 1) return main_index(directory, indexes[0], files);
  if (files.size() == 1) return files[0];
  if (files.empty() || files.size() > kMaxCandidates) return std::nullopt;
  std::set<std::string> parts;
  for (const std::string& name : files) {
    const std::string bytes = first_bytes(directory, name);
    for (const std::string& other : files)
      if (other != name && names_file(bytes, other)) parts.insert(other);
  }
  std::erase_if(files, [&](const auto& name) { return parts.contains(name); });
  if (files.size() != 1) return std::nullopt;
  return files[0];
}

}  // namespace tessera::h5

#include "tests/interop/differential_checkpoint.h"

#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <cstring>

#include "tests/interop/differential_text.h"

namespace tessera::test {
namespace {

class Opened {
 public:
  Opened(FileSystem& fs, const std::string& path, const std::string& format) {
    OpenOptions options;
    options.from = format;
    checkpoint_ = open_checkpoint(fs, path, options);
    check_size();
    checkpoint_.locate_all(options.read);
  }

  const StateDict& state() const { return checkpoint_.manifest.state; }
  const std::vector<Note>& notes() const { return checkpoint_.manifest.notes; }
  std::string text(const Value& value) const {
    return ValueText([this](std::uint32_t index) { return tensor(index); }).of(value);
  }

 private:
  void check_size() const {
    for (const StoredTensor& tensor : checkpoint_.manifest.tensors)
      if (tensor.spec.shape.numel() > kMostElements) throw TooLarge();
  }

  std::string tensor(std::uint32_t index) const {
    const TensorSpec& spec = checkpoint_.manifest.tensors.at(index).spec;
    const TensorReader reader(checkpoint_.manifest, *checkpoint_.directory, TransferOptions{});
    Bytes bytes(static_cast<std::size_t>(spec.size_bytes()));
    if (!bytes.empty()) reader.read(index, 0, spec.shape.numel(), bytes);
    return fmt::format("T<{} {} {:08x}>", torch_name(spec.dtype), spec.shape.to_string(),
                       crc32(0, bytes));
  }

  OpenedCheckpoint checkpoint_;
};

std::string joined(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

void unpack(MemoryFileSystem& fs, const std::string& packed) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at + 4 <= packed.size();) {
    std::uint32_t size = 0;
    std::memcpy(&size, packed.data() + at, sizeof size);
    parts.push_back(packed.substr(at + 4, size));
    at += 4 + size;
  }
  fs.make_directories("/c");
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
    fs.write_file("/c/" + parts[i], as_bytes(parts[i + 1]));
}

std::string path_text(const Path& path) {
  std::vector<std::string> items;
  for (const PathItem& item : path)
    items.push_back(item.kind == PathItem::Kind::kKey ? ValueText::bytes('s', item.key)
                                                      : fmt::format("i{}", item.index));
  return fmt::format("({})", fmt::join(items, ","));
}

/// A name in plain ASCII, whatever bytes it has.
std::string quoted(std::string_view name) {
  std::string out;
  for (const char c : name)
    out += c > 0x20 && c < 0x7f && c != '%' ? std::string(1, c)
                                            : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace

std::string describe_folder(const std::string& packed) {
  MemoryFileSystem fs;
  unpack(fs, packed);
  const Opened opened(fs, "/c", "torch-dcp");
  std::vector<std::string> lines, paths;
  for (const StateEntry& entry : opened.state().entries) {
    const std::string name = ValueText::bytes('s', entry.name);
    lines.push_back(fmt::format("{} {}", name, opened.text(entry.value)));
    paths.push_back(fmt::format("{} {}", name, path_text(entry.path)));
  }
  return joined(std::move(lines)) + "\n\n" + joined(std::move(paths));
}

std::string describe_hdf5(const std::string& file) {
  MemoryFileSystem fs;
  fs.write_file("/file.h5", as_bytes(file));
  const Opened opened(fs, "/file.h5", "hdf5");
  std::vector<std::string> lines;
  for (const StateEntry& entry : opened.state().entries)
    lines.push_back(fmt::format("{} = {}", quoted(entry.name), opened.text(entry.value)));
  // The reader says so: these are not compared.
  for (const Note& note : opened.notes()) {
    if (note.code != Finding::kNoValue) continue;
    const std::size_t begin = note.message.find('"'), end = note.message.find("\": ");
    if (begin < end && end != std::string::npos)
      lines.push_back(note.message.substr(begin + 1, end - begin - 1) + " left out");
  }
  return joined(std::move(lines));
}

}  // namespace tessera::test

#include "lib/ops/convert/source_binding.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr std::uint64_t kEndBytes = std::uint64_t{64} << 10;  // of head and tail
constexpr std::uint64_t kSampleBytes = std::uint64_t{4} << 10;
constexpr std::uint64_t kBlocks = 64;
constexpr std::string_view kMagic = "TSRBIND1";

std::uint32_t add_range(std::uint32_t crc, const ReadFile& file, std::uint64_t begin,
                        std::uint64_t end, Bytes& buffer) {
  buffer.resize(static_cast<std::size_t>(end - begin));
  file.read_at(begin, buffer);
  return crc32(crc, buffer);
}

std::uint32_t sampled_crc(const ReadFile& file) {
  const std::uint64_t size = file.size_bytes();
  Bytes buffer;
  if (size <= 2 * kEndBytes + kBlocks * kSampleBytes) return add_range(0, file, 0, size, buffer);
  std::uint32_t crc = add_range(0, file, 0, kEndBytes, buffer);
  const std::uint64_t between = size - 2 * kEndBytes - kSampleBytes;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t begin = kEndBytes + between / (kBlocks - 1) * i;
    crc = add_range(crc, file, begin, begin + kSampleBytes, buffer);
  }
  return add_range(crc, file, size - kEndBytes, size, buffer);
}

class BindingWriter {
 public:
  template <class Number>
  void number(Number value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    store_le(bytes_.data() + at, value);
  }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    raw(text);
  }
  void raw(std::string_view text) {
    const ByteView view = as_bytes(text);
    bytes_.insert(bytes_.end(), view.begin(), view.end());
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class BindingReader {
 public:
  explicit BindingReader(ByteView bytes) : bytes_(bytes) {}
  template <class Number>
  Number number() {
    if (bytes_.size() < sizeof(Number)) return fail_read<Number>();
    const Number value = load_le<Number>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof(Number));
    return value;
  }
  std::string text(std::size_t length) {
    if (bytes_.size() < length) return fail_read<std::string>();
    std::string out(as_text(bytes_.first(length)));
    bytes_ = bytes_.subspan(length);
    return out;
  }
  bool good() const { return good_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  template <class T>
  T fail_read() {
    good_ = false;
    bytes_ = {};
    return T{};
  }
  ByteView bytes_;
  bool good_ = true;
};

}  // namespace

SourceBinding::File SourceBinding::look_at(const Directory& directory, const FileInfo& info,
                                           const std::string& path) {
  File file{path, info.device, info.inode, info.size_bytes, info.mtime_ns, info.ctime_ns};
  try {
    file.crc32 = sampled_crc(*directory.open(path, IoMode::kBuffered));
    file.is_summed = true;
  } catch (const Error& error) {  // damage, which whoever needs the bytes reports
    if (error.code() != Code::kIo && error.code() != Code::kCorrupt &&
        error.code() != Code::kNotFound)
      throw;
  }
  return file;
}

SourceBinding SourceBinding::of(const Directory& directory, std::span<const StoredFile> files,
                                int threads) {
  std::vector<std::optional<File>> found(files.size());
  parallel_for(files.size(), std::max(1, threads), [&](std::size_t i, int) {
    const auto info = directory.stat(files[i].path);
    if (info && info->type == FileType::kRegular)
      found[i] = look_at(directory, *info, files[i].path);
  });
  SourceBinding binding;
  for (std::optional<File>& file : found)
    if (file) binding.files_.push_back(std::move(*file));
  return binding;
}

Bytes SourceBinding::encode() const {
  BindingWriter out;
  out.raw(kMagic);
  out.number(static_cast<std::uint32_t>(files_.size()));
  for (const File& file : files_) {
    out.text(file.path);
    out.number(file.device);
    out.number(file.inode);
    out.number(file.size_bytes);
    out.number(static_cast<std::uint64_t>(file.mtime_ns));
    out.number(static_cast<std::uint64_t>(file.ctime_ns));
    out.number(file.crc32);
    out.number(std::uint32_t{file.is_summed});
  }
  return out.take();
}

std::optional<SourceBinding> SourceBinding::decode(ByteView bytes) {
  BindingReader in(bytes);
  if (in.text(kMagic.size()) != kMagic) return std::nullopt;
  SourceBinding binding;
  const auto count = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && in.good(); ++i) {
    File& file = binding.files_.emplace_back();
    file.path = in.text(in.number<std::uint32_t>());
    file.device = in.number<std::uint64_t>();
    file.inode = in.number<std::uint64_t>();
    file.size_bytes = in.number<std::uint64_t>();
    file.mtime_ns = static_cast<std::int64_t>(in.number<std::uint64_t>());
    file.ctime_ns = static_cast<std::int64_t>(in.number<std::uint64_t>());
    file.crc32 = in.number<std::uint32_t>();
    file.is_summed = in.number<std::uint32_t>() != 0;
  }
  if (!in.good() || !in.at_end()) return std::nullopt;
  return binding;
}

std::optional<std::string> SourceBinding::replaced(const Directory& directory, int threads) const {
  std::vector<char> other(files_.size());
  parallel_for(files_.size(), std::max(1, threads), [&](std::size_t i, int) {
    const File& file = files_[i];
    const auto now = directory.stat(file.path);
    if (!now || now->type != FileType::kRegular || now->size_bytes != file.size_bytes) {
      other[i] = 1;
      return;
    }
    const bool untouched = now->device == file.device && now->inode == file.inode &&
                           now->mtime_ns == file.mtime_ns && now->ctime_ns == file.ctime_ns;
    // Where a file system has no inodes the content decides, if it could be read before.
    if (untouched && (now->inode != 0 || !file.is_summed)) return;
    other[i] =
        !file.is_summed || sampled_crc(*directory.open(file.path, IoMode::kBuffered)) != file.crc32;
  });
  const auto first = std::ranges::find(other, 1);
  if (first == other.end()) return std::nullopt;
  return files_[static_cast<std::size_t>(first - other.begin())].path;
}

}  // namespace tessera

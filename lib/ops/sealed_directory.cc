#include "lib/ops/sealed_directory.h"

#include <fmt/format.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

class SealedReadFile final : public ReadFile {
 public:
  using Tell = std::function<void(const Note&)>;

  SealedReadFile(std::unique_ptr<ReadFile> file, const SealedFile& sealed, const Tell& tell,
                 std::mutex& mutex)
      : file_(std::move(file)),
        sealed_(sealed),
        tell_(tell),
        mutex_(mutex),
        seen_(sealed.crc32_per_mib.size()) {}

  std::uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& path() const override { return file_->path(); }

  void read_at(std::uint64_t offset, MutableBytes out) const override {
    file_->read_at(offset, out);
    const std::uint64_t end = std::min(offset + out.size(), sealed_.size_bytes);
    const std::lock_guard lock(mutex_);
    for (std::uint64_t block = offset / kMiB; block * kMiB < end; ++block)
      if (!seen_[block]) check(block, offset, out);
  }

 private:
  void check(std::uint64_t block, std::uint64_t offset, ByteView read) const {
    const std::uint64_t begin = block * kMiB;
    const std::uint64_t size = std::min(kMiB, sealed_.size_bytes - begin);
    const std::uint32_t found = crc_of(begin, size, offset, read);
    seen_[block] = true;
    if (found == sealed_.crc32_per_mib[block]) return;
    tell_({std::string(kSealDifference), "error",
           fmt::format("bytes {} to {} have CRC-32 {:08x} where the checkpoint's seal says {:08x}: "
                       "they changed after they were written",
                       begin, begin + size, found, sealed_.crc32_per_mib[block]),
           sealed_.path, ""});
  }

  /// Of what was just read, where that holds all of [begin, begin + size).
  std::uint32_t crc_of(std::uint64_t begin, std::uint64_t size, std::uint64_t offset,
                       ByteView read) const {
    if (offset <= begin && begin + size <= offset + read.size())
      return crc32(0, read.subspan(begin - offset, size));
    Bytes whole(size);
    file_->read_at(begin, whole);
    return crc32(0, whole);
  }

  std::unique_ptr<ReadFile> file_;
  const SealedFile& sealed_;
  const Tell& tell_;
  std::mutex& mutex_;
  mutable std::vector<bool> seen_;
};

}  // namespace

bool has_sums_of_its_own(const ReadFile& file) {
  constexpr std::string_view kZip = "PK\x03\x04";
  if (file.size_bytes() < kZip.size()) return false;
  Bytes start(kZip.size());
  file.read_at(0, start);
  return as_text(start) == kZip;
}

std::unique_ptr<ReadFile> SealedDirectory::open(std::string_view relative, IoMode mode) const {
  std::unique_ptr<ReadFile> file = directory_.open(relative, mode);
  const SealedFile* sealed = seal_.find(relative);
  if (sealed == nullptr || has_sums_of_its_own(*file)) return file;
  return std::make_unique<SealedReadFile>(std::move(file), *sealed, on_difference_, mutex_);
}

}  // namespace tessera

#include "lib/ops/open/sealed_directory.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "lib/base/sort_unique.h"
#include "lib/ops/open/seal_damage.h"
#include "lib/storage/read_crc.h"

namespace tessera {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{256} << 10;  // read at once

/// CRC of [begin, begin + size) of the file, of which `read` is what lies from `offset` on.
std::uint32_t crc_around(const ReadFile& file, std::uint64_t begin, std::uint64_t size,
                         std::uint64_t offset, ByteView read) {
  const std::uint64_t end = begin + size, read_end = offset + read.size();
  const std::uint64_t from = std::clamp(offset, begin, end), to = std::clamp(read_end, from, end);
  std::uint32_t crc = read_crc32(0, file, begin, from - begin, kBlockBytes);
  if (from < to) crc = crc32(crc, read.subspan(from - offset, to - from));
  return read_crc32(crc, file, to, end - to, kBlockBytes);
}

struct Difference {
  Note note;
  std::uint32_t wanted = 0, found = 0;
  std::uint64_t begin = 0, size = 0;  // of the block

  /// The one byte that changed, by a single bit; nullopt: more did.
  std::optional<std::uint64_t> byte() const {
    const auto in_block = turned_byte(wanted, found, size);
    return in_block ? std::optional(begin + *in_block) : std::nullopt;
  }
};

/// What `read` lies in, from `offset` on, as the seal says? How it differs where not.
std::optional<Difference> difference(const ReadFile& file, const SealedFile& sealed,
                                     std::uint64_t block, std::uint64_t offset, ByteView read) {
  const std::uint64_t begin = block * kMiB;
  const std::uint64_t size = std::min(kMiB, sealed.size_bytes - begin);
  const std::uint32_t found = crc_around(file, begin, size, offset, read);
  if (found == sealed.crc32_per_mib[block]) return std::nullopt;
  const std::uint32_t wanted = sealed.crc32_per_mib[block];
  return Difference{
      Note{Finding::kSealDifference, Severity::kError,
           fmt::format("bytes {} to {} have CRC-32 {:08x} where the checkpoint's seal "
                       "says {:08x}: they changed after they were written",
                       begin, begin + size, found, wanted),
           sealed.path, ""},
      wanted, found, begin, size};
}

class SealedReadFile final : public ReadFile {
 public:
  SealedReadFile(std::unique_ptr<ReadFile> file, const SealedFile& sealed,
                 const SealedDirectory::OnDifference& report, bool of_part, std::mutex& mutex)
      : file_(std::move(file)),
        sealed_(sealed),
        report_(report),
        of_part_(of_part),
        mutex_(mutex),
        seen_(std::make_unique<std::atomic<bool>[]>(sealed.crc32_per_mib.size())) {}

  std::uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& path() const override { return file_->path(); }

  void read_at(std::uint64_t offset, MutableBytes out) const override {
    file_->read_at(offset, out);
    const std::uint64_t end = std::min(offset + out.size(), sealed_.size_bytes);
    for (std::uint64_t block = offset / kMiB; block * kMiB < end; ++block) {
      if (seen_[block]) continue;
      if (const auto differs = difference(*file_, sealed_, block, offset, out)) {
        const auto byte = of_part_ ? differs->byte() : std::nullopt;
        if (byte && (*byte < offset || *byte >= end)) continue;  // not in what is handed out
        const std::lock_guard lock(mutex_);
        report_(differs->note);
      } else {
        seen_[block] = true;
      }
    }
  }

 private:
  std::unique_ptr<ReadFile> file_;
  const SealedFile& sealed_;
  const SealedDirectory::OnDifference& report_;
  bool of_part_;
  std::mutex& mutex_;
  std::unique_ptr<std::atomic<bool>[]> seen_;  // by MiB: held against the seal
};

std::map<std::string, SealedFile, std::less<>> by_path(std::vector<SealedFile> files) {
  std::map<std::string, SealedFile, std::less<>> out;
  for (SealedFile& file : files) {
    std::string path = file.path;
    out.emplace(std::move(path), std::move(file));
  }
  return out;
}

}  // namespace

SealedDirectory::SealedDirectory(const Directory& directory, std::vector<SealedFile> files,
                                 OnDifference on_difference)
    : directory_(directory),
      files_(by_path(std::move(files))),
      on_difference_(std::move(on_difference)) {}

SealedDirectory::SealedDirectory(std::unique_ptr<Directory> directory,
                                 std::vector<SealedFile> files, OnDifference on_difference)
    : owned_(std::move(directory)),
      directory_(*owned_),
      files_(by_path(std::move(files))),
      on_difference_(std::move(on_difference)) {}

bool has_sums_of_its_own(const ReadFile& file) {
  constexpr std::string_view kZip = "PK\x03\x04";
  if (file.size_bytes() < kZip.size()) return false;
  Bytes start(kZip.size());
  file.read_at(0, start);
  return as_text(start) == kZip;
}

bool SealedDirectory::is_archive(const ReadFile& file, const SealedFile& sealed) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = archives_.find(sealed.path); known != archives_.end())
      return known->second;
  }
  const bool is_one = has_sums_of_its_own(file);
  const std::lock_guard lock(mutex_);
  archives_.emplace(sealed.path, is_one);
  return is_one;
}

std::vector<std::string> SealedDirectory::archives() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, is_one] : archives_)
    if (is_one) paths.push_back(path);
  return paths;
}

void SealedDirectory::set_archives_elsewhere(std::vector<std::string> paths) {
  std::erase_if(paths, [this](const std::string& path) { return !files_.contains(path); });
  archives_elsewhere_ = std::move(paths);
  sort_unique(archives_elsewhere_);
}

void SealedDirectory::check(std::span<const std::string> paths, bool whole) const {
  const std::lock_guard lock(mutex_);
  for (const std::string& path : paths) {
    const SealedFile& sealed = files_.at(path);
    if (sealed.crc32_per_mib.empty()) continue;
    const auto file = directory_.open(path, IoMode::kBuffered);
    const std::size_t last = sealed.crc32_per_mib.size() - 1;
    // If several zips follow each other, the end describes only one of them.
    const std::size_t step = whole ? 1 : std::max<std::size_t>(1, (last + 2) / 3);
    for (std::size_t block = 0; block <= last; ++block)
      if (block % step == 0 || block == last)
        if (const auto differs = difference(*file, sealed, block, 0, {})) {
          const auto byte = needs_ ? differs->byte() : std::nullopt;
          if (!byte || needs_(path, *byte)) on_difference_(differs->note);
        }
  }
}

void SealedDirectory::refuse(const Note& difference) {
  in_file(difference.file, [&] {
    fail(Code::kCorrupt, difference.message,
         "ckpt-inspect verify lists every file that differs; take those from another copy, or "
         "convert what is whole with --salvage (or, where another program rewrote the checkpoint, "
         "remove the seal: its *tessera*.json)");
  });
  TESSERA_CHECK(false);
}

std::unique_ptr<ReadFile> SealedDirectory::open(std::string_view relative, IoMode mode) const {
  std::unique_ptr<ReadFile> file = directory_.open(relative, mode);
  const auto found = files_.find(relative);
  if (found == files_.end() || is_archive(*file, found->second)) return file;
  return std::make_unique<SealedReadFile>(std::move(file), found->second, on_difference_,
                                          needs_ != nullptr, mutex_);
}

}  // namespace tessera

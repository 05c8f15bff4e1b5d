#include "lib/ops/open/delta_directory.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <chrono>
#include <iterator>

namespace tessera {
namespace {

/// So many of the tensors that are made stay, as readers go on to the next one before they are done
/// with the last; of large ones no more than that.
constexpr std::size_t kRecent = 8, kFewest = 2;
constexpr std::chrono::milliseconds kLook(20);                  // how often who waits looks again
constexpr std::uint64_t kLargeBytes = std::uint64_t{64} << 20;  // all together

Bytes read_run(const Directory& directory, const FileRun& run) {
  return in_file(run.file, [&] {
    const auto file = directory.open(run.file);
    if (run.offset > file->size_bytes() || run.length > file->size_bytes() - run.offset)
      fail(Code::kCorrupt, "the file ends early");
    Bytes out(run.length);
    file->read_at(run.offset, out);
    return out;
  });
}

}  // namespace

class DeltaDirectory::AppliedFile final : public ReadFile {
 public:
  AppliedFile(const DeltaDirectory& directory, std::string path, const AppliedTensor& tensor)
      : directory_(directory), path_(std::move(path)), tensor_(tensor) {}

  std::uint64_t size_bytes() const override { return tensor_.size_bytes; }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const SharedBytes bytes = directory_.bytes_of(tensor_, out.size());
    const std::uint64_t left = offset < bytes->size() ? bytes->size() - offset : 0;
    // Direct I/O may ask for more than there is.
    if (left < out.size() && (offset + out.size()) % kIoAlignment != 0)
      fail(Code::kCorrupt, fmt::format("file ends at {}", bytes->size()));
    std::copy_n(bytes->begin() + static_cast<std::ptrdiff_t>(offset),
                std::min<std::uint64_t>(left, out.size()), out.begin());
  }

 private:
  const DeltaDirectory& directory_;
  std::string path_;
  const AppliedTensor& tensor_;
};

std::unique_ptr<ReadFile> DeltaDirectory::open(std::string_view relative, IoMode mode) const {
  const auto found = files_.find(std::string(relative));
  if (const auto file = forwarded_.find(std::string(relative)); file != forwarded_.end())
    return file->second.directory->open(file->second.file, mode);
  if (found == files_.end()) return base_.directory->open(relative, mode);
  return std::make_unique<AppliedFile>(*this, found->first, found->second);
}

std::optional<FileInfo> DeltaDirectory::stat(std::string_view relative) const {
  if (const auto file = forwarded_.find(std::string(relative)); file != forwarded_.end())
    return file->second.directory->stat(file->second.file);
  const auto found = files_.find(std::string(relative));
  if (found == files_.end()) return base_.directory->stat(relative);
  FileInfo info;
  info.name = found->first;
  info.type = FileType::kRegular;
  info.size_bytes = found->second.size_bytes;
  return info;
}

/// Readers take a tensor piece by piece, and one on each thread: what is not read to its end is not
/// given up for the next one while somebody goes on reading it, or each would be made again for
/// every piece.
DeltaDirectory::SharedBytes DeltaDirectory::bytes_of(const AppliedTensor& tensor,
                                                     std::uint64_t wanted_bytes) const {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = std::ranges::find(recent_, &tensor, &Held::tensor);
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      found->unread_bytes -= std::min(found->unread_bytes, wanted_bytes);
      found->used = Clock::now();
      if (found->unread_bytes == 0) changed_.notify_all();
      return found->bytes;
    }
    if (!making_ && make_room(tensor.size_bytes)) break;
    changed_.wait_for(lock, kLook);
  }
  making_ = true;
  lock.unlock();
  const Clock::time_point begun = Clock::now();
  SharedBytes bytes;
  try {
    bytes = std::make_shared<const Bytes>(make(tensor));
  } catch (...) {
    lock.lock();
    making_ = false;
    changed_.notify_all();
    throw;
  }
  lock.lock();
  making_ = false;
  const Clock::time_point now = Clock::now();
  const std::uint64_t unread = tensor.size_bytes - std::min(tensor.size_bytes, wanted_bytes);
  recent_.push_front({&tensor, bytes, unread, now, now - begun});
  changed_.notify_all();
  return bytes;
}

bool DeltaDirectory::make_room(std::uint64_t size_bytes) const {
  std::uint64_t all = size_bytes;
  for (const Held& held : recent_) all += held.bytes->size();
  while (recent_.size() >= kRecent || (recent_.size() >= kFewest && all > kLargeBytes)) {
    auto last = std::ranges::find(recent_, std::uint64_t{0}, &Held::unread_bytes);
    if (last == recent_.end()) {
      last = std::prev(recent_.end());
      // To wait for its readers costs no more than to make it again.
      if (Clock::now() - last->used < 2 * last->made_in) return false;
    }
    all -= last->bytes->size();
    recent_.erase(last);
  }
  return true;
}

Bytes DeltaDirectory::make(const AppliedTensor& tensor) const {
  return in_tensor(tensor.name, [&] {
    Bytes bytes(tensor.size_bytes);
    if (tensor.whole) {
      bytes = read_run(*tensor.whole->directory, tensor.whole->run);
    } else {
      const std::int64_t numel = base_.manifest.tensors[tensor.base_tensor].spec.shape.numel();
      reader_.read(tensor.base_tensor, 0, numel, bytes);
    }
    for (const AppliedTensor::Step& step : tensor.steps) {
      if (step.directory == nullptr) {
        check_delta_sum(step.index, step.sum, bytes);
        continue;
      }
      const Bytes blob = read_run(*step.directory, step.blob);
      in_file(step.blob.file, [&] { apply_delta(step.index, blob, step.sum, bytes); });
    }
    return bytes;
  });
}

}  // namespace tessera

#pragma once
// The folder of a base, with a file more for each tensor that deltas change. Its bytes are made when
// they are first read and kept while others of the last few are read. Thread-safe.
#include <tessera/format/safetensors.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/file_system.h>

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A run of bytes of a file.
struct FileRun {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// A run of bytes of a file of one delta's folder.
struct LinkRun {
  const Directory* directory = nullptr;
  FileRun run;
};
/// A file of one delta's folder, read as it is.
struct ForwardedFile {
  const Directory* directory = nullptr;
  std::string file;
};

struct AppliedTensor {
  struct Step {
    const Directory* directory = nullptr;  // nullptr: the bytes stay, and are held against `sum`
    DeltaIndex index;
    std::string sum;
    FileRun blob;
  };
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t base_tensor = 0;  // in the base's manifest
  std::optional<LinkRun> whole;   // where it begins instead
  std::vector<Step> steps;        // the oldest first
};

class DeltaDirectory final : public Directory {
 public:
  /// `base`: located. `deltas`: what the directories of steps, runs and files point at. `files`,
  /// `forwarded`: by path.
  DeltaDirectory(OpenedCheckpoint base, std::vector<std::unique_ptr<Directory>> deltas,
                 std::map<std::string, AppliedTensor> files,
                 std::map<std::string, ForwardedFile> forwarded)
      : base_(std::move(base)),
        deltas_(std::move(deltas)),
        files_(std::move(files)),
        forwarded_(std::move(forwarded)),
        reader_(base_.manifest, *base_.directory, {}) {}

  const std::string& path() const override { return base_.directory->path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override;
  std::optional<FileInfo> stat(std::string_view relative) const override;
  std::vector<FileInfo> list(std::string_view relative) const override {
    return base_.directory->list(relative);
  }

 private:
  using SharedBytes = std::shared_ptr<const Bytes>;
  class AppliedFile;
  using Clock = std::chrono::steady_clock;
  struct Held {
    const AppliedTensor* tensor = nullptr;
    SharedBytes bytes;
    std::uint64_t unread_bytes = 0;
    Clock::time_point used;
    Clock::duration made_in;
  };
  SharedBytes bytes_of(const AppliedTensor& tensor, std::uint64_t wanted_bytes) const;
  /// Gives up what is held, for one more of this size; false: not yet.
  bool make_room(std::uint64_t size_bytes) const;
  Bytes make(const AppliedTensor& tensor) const;

  OpenedCheckpoint base_;
  std::vector<std::unique_ptr<Directory>> deltas_;
  std::map<std::string, AppliedTensor> files_;
  std::map<std::string, ForwardedFile> forwarded_;
  TensorReader reader_;       // of the base
  mutable std::mutex mutex_;  // of what follows
  mutable std::condition_variable changed_;
  mutable std::list<Held> recent_;  // the last used first
  mutable bool making_ = false;
};

}  // namespace tessera

#pragma once
// The folder of a base, with a file more for each tensor that deltas change. Its bytes are made when
// they are first read and kept while others of the last few are read. Thread-safe.
#include <tessera/format/safetensors.h>
#include <tessera/storage/file_system.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
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

struct AppliedTensor {
  struct Step {
    const Directory* directory = nullptr;
    DeltaIndex index;
    std::string sum;
    FileRun blob;
  };
  std::string name;
  FileRun base;
  std::vector<Step> steps;  // the oldest first
};

class DeltaDirectory final : public Directory {
 public:
  /// `deltas`: what the steps' directories point at. `files`: by path.
  DeltaDirectory(std::unique_ptr<Directory> base, std::vector<std::unique_ptr<Directory>> deltas,
                 std::map<std::string, AppliedTensor> files)
      : base_(std::move(base)), deltas_(std::move(deltas)), files_(std::move(files)) {}

  const std::string& path() const override { return base_->path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override;
  std::optional<FileInfo> stat(std::string_view relative) const override;
  std::vector<FileInfo> list(std::string_view relative) const override {
    return base_->list(relative);
  }

 private:
  using SharedBytes = std::shared_ptr<const Bytes>;
  class AppliedFile;
  SharedBytes bytes_of(const AppliedTensor& tensor) const;
  Bytes make(const AppliedTensor& tensor) const;

  std::unique_ptr<Directory> base_;
  std::vector<std::unique_ptr<Directory>> deltas_;
  std::map<std::string, AppliedTensor> files_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::list<std::pair<const AppliedTensor*, SharedBytes>> recent_;
};

}  // namespace tessera

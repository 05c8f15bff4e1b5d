#pragma once
// OutputFiles: the files of a result inside its stage, created (and given their size) when first
// written, the least recently used closed past a limit and opened again when needed. Thread-safe.
#include <tessera/state/output_plan.h>
#include <tessera/storage/file_system.h>
#include <tessera/storage/stage.h>

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

class OutputFiles {
 public:
  OutputFiles(const OutputPlan& plan, FileSystem& fs, Stage& stage, std::size_t max_open = 256)
      : plan_(plan), fs_(fs), stage_(stage), max_open_(max_open), slots_(plan.files.size()) {}

  std::shared_ptr<WriteFile> get(std::uint32_t file);
  /// Another process creates (or has created) this one.
  void created_elsewhere(std::uint32_t file) { slots_[file].created = true; }
  /// For reading back what an earlier run left; nullptr when it left nothing of the right size.
  std::unique_ptr<ReadFile> read_back(std::uint32_t file) const;
  /// Syncs and closes one file (creating an empty one).
  void finish(std::uint32_t file);
  bool is_open(std::uint32_t file);

 private:
  struct Slot {
    std::shared_ptr<WriteFile> open;
    bool created = false;
    std::list<std::uint32_t>::iterator use;
  };
  std::string name_in_stage(std::uint32_t file) const;
  void close_one();

  const OutputPlan& plan_;
  FileSystem& fs_;
  Stage& stage_;
  std::size_t max_open_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::list<std::uint32_t> uses_;  // most recent first
};

}  // namespace tessera

#include "lib/reshard/output_files.h"

#include <tessera/base/error.h>

#include "lib/reshard/file_pool.h"

namespace tessera {

std::string OutputFiles::name_in_stage(std::uint32_t file) const {
  if (!plan_.single_file) return plan_.files[file].path;
  const std::string& path = stage_.final_path();
  return path.substr(path.find_last_of('/') + 1);
}

std::shared_ptr<WriteFile> OutputFiles::get(std::uint32_t file) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[file];
  if (slot.open) {
    uses_.splice(uses_.begin(), uses_, slot.use);
    return slot.open;
  }
  if (uses_.size() >= max_open_) close_one();
  const OutputFile& planned = plan_.files[file];
  IoMode mode = io_mode_for(planned.size_bytes);
  // Nothing in the slot changes before all of it can: after a failure other threads still ask.
  std::shared_ptr<WriteFile> opened;
  if (slot.created) {
    opened = fs_.reopen(stage_.directory() + "/" + name_in_stage(file), mode);
  } else {
    opened = stage_.create(plan_.single_file ? "" : planned.path, mode);
    slot.created = true;
    opened->allocate(planned.size_bytes);
  }
  uses_.push_front(file);
  slot.use = uses_.begin();
  slot.open = std::move(opened);
  return slot.open;
}

void OutputFiles::close_one() {
  for (auto use = uses_.rbegin(); use != uses_.rend(); ++use) {
    Slot& slot = slots_[*use];
    if (slot.open.use_count() > 1) continue;  // somebody writes to it now
    slot.open->sync();                        // the stage asks it of every handle that it gave out
    slot.open->close();
    slot.open.reset();
    uses_.erase(slot.use);
    return;
  }
}

std::unique_ptr<ReadFile> OutputFiles::read_back(std::uint32_t file) const {
  std::unique_ptr<Directory> directory = fs_.open_directory(stage_.directory());
  std::string name = name_in_stage(file);
  std::optional<FileInfo> info = directory->stat(name);
  if (!info || info->type != FileType::kRegular ||
      info->size_bytes != plan_.files[file].size_bytes) {
    return nullptr;
  }
  return directory->open(name, IoMode::kBuffered);
}

bool OutputFiles::is_open(std::uint32_t file) {
  std::lock_guard lock(mutex_);
  return slots_[file].open != nullptr;
}

void OutputFiles::finish(std::uint32_t file) {
  std::shared_ptr<WriteFile> open = get(file);
  open->sync();
  open->close();
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[file];
  uses_.erase(slot.use);
  slot.open.reset();
}

}  // namespace tessera

#include "lib/reshard/file_pool.h"

#include <tessera/base/error.h>

#include "lib/base/damage.h"

namespace tessera {

std::shared_ptr<const ReadFile> FilePool::get(std::uint32_t file) {
  TESSERA_CHECK(file < manifest_.files.size());
  std::lock_guard lock(mutex_);
  if (auto found = slots_.find(file); found != slots_.end()) {
    uses_.splice(uses_.begin(), uses_, found->second.use);
    return found->second.file;
  }
  if (slots_.size() >= max_open_) {
    slots_.erase(uses_.back());
    uses_.pop_back();
  }
  const StoredFile& stored = manifest_.files[file];
  std::shared_ptr<const ReadFile> opened =
      reading_parts([&] { return directory_.open(stored.path, io_mode_for(stored.size_bytes)); });
  if (opened->size_bytes() != stored.size_bytes) {
    in_file(stored.path, [] {
      fail(Code::kCorrupt,
           "the file changed its size since it was opened: source changed while read");
    });
  }
  uses_.push_front(file);
  slots_[file] = {opened, uses_.begin()};
  return opened;
}

}  // namespace tessera

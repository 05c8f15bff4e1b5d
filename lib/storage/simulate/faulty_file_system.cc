#include <fmt/format.h>
#include <tessera/storage/faulty_file_system.h>

#include "lib/storage/posix/errno_error.h"

namespace tessera {

namespace {

bool is_sync(IoOp op) { return op == IoOp::kSync || op == IoOp::kSyncDirectory; }

}  // namespace

bool FaultyFileSystem::due(const IoEvent& event) const {
  if ((fault_.ops & io_op_bit(event.op)) == 0) return false;
  ++operations_;
  return fault_.at != 0 && (operations_ == fault_.at || (fault_.sticky && operations_ > fault_.at));
}

void FaultyFileSystem::inject(const IoEvent& event) const {
  if (++faults_ == 1) first_fault_ = fmt::format("cannot {} {}", io_op_name(event.op), event.path);
  if (is_sync(event.op)) unsynced_paths_.insert(event.path);
  storage::fail_errno(io_op_name(event.op), event.path, fault_.error);
}

void FaultyFileSystem::before(const IoEvent& event) const {
  const std::lock_guard lock(mutex_);
  if (is_sync(event.op) && unsynced_paths_.contains(event.path)) ++sync_retries_;
  if (event.op == IoOp::kCreate) unsynced_paths_.erase(event.path);
  if (!fault_.after && due(event)) inject(event);
}

void FaultyFileSystem::after(const IoEvent& event) const {
  const std::lock_guard lock(mutex_);
  if (fault_.after && due(event)) inject(event);
}

std::uint64_t FaultyFileSystem::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}
std::uint64_t FaultyFileSystem::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}
std::string FaultyFileSystem::first_fault() const {
  const std::lock_guard lock(mutex_);
  return first_fault_;
}
std::uint64_t FaultyFileSystem::sync_retries() const {
  const std::lock_guard lock(mutex_);
  return sync_retries_;
}
void FaultyFileSystem::disarm() {
  const std::lock_guard lock(mutex_);
  fault_.at = 0;
}

}  // namespace tessera

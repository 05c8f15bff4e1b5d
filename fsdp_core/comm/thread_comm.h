#pragma once
// ThreadHub: where the threads of one process find each other's groups. Shared by all ranks; any
// thread.
#include <tessera/base/thread_meeting.h>
#include <tessera/fsdp/communicator.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "fsdp_core/comm/joined_groups.h"

namespace tessera::fsdp {

class ThreadHub : public std::enable_shared_from_this<ThreadHub> {
 public:
  /// This member's end of the group of that name in that generation; made by whoever comes first,
  /// and the same while it is held. Waits for nobody. `timeout`: of each call, the same on all.
  std::shared_ptr<Communicator> join(const Communicator::Identity& identity,
                                     std::uint64_t generation, std::chrono::milliseconds timeout);

  /// Fails every group of `generation` that `global_rank` is in, those not yet made included.
  void fail_rank(std::uint64_t generation, int global_rank, const Status& status) noexcept;

 private:
  std::shared_ptr<Communicator> join_anew(const Communicator::Identity& identity,
                                          std::uint64_t generation,
                                          std::chrono::milliseconds timeout);

  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::string>, std::shared_ptr<ThreadMeeting>> meetings_;
  std::map<std::pair<std::uint64_t, int>, Status> failed_ranks_;
  JoinedGroups joined_;
};

}  // namespace tessera::fsdp

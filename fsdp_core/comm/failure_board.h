#pragma once
// FailureBoard: ranks whose connections are gone exchange what they know about a failure through
// the store that also brought them together.
//
//   gen<g>/failure                  the first rank that gave up: its global rank and why
//   gen<g>/lost/<group>/<rank>      a rank that noticed, and the call it was in
//   bye/<rank>                      a rank that has ended well
//   gone                            the first process that ended otherwise: its rank and why
//
// Every question has a deadline, as the store's own rank may be the one that is gone. Any thread.
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "fsdp_core/comm/joined_groups.h"

namespace tessera::fsdp {

class FailureBoard {
 public:
  /// `store`: a connection of its own (Store::clone), since a thread may wait on the other one.
  explicit FailureBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  /// This rank gives up; the first of a generation stays.
  void post(std::uint64_t generation, const Status& status) const noexcept;
  /// The first process that is gone, which is so in every generation, or that one.
  std::optional<Status> posted(std::uint64_t generation) const noexcept;

  /// `status` names a rank whose process is gone; the first stays.
  void post_gone(const Status& status) const noexcept;

  /// `status`, which this rank saw in `call`, with what the others know: who gave up and why, who
  /// does not answer, or who was in another call; and with what the watch of this rank finds out
  /// meanwhile, which `joined` receives. Takes 1.5 s at most.
  Status explain(Status status, const Communicator::Identity& group, std::uint64_t generation,
                 const std::string& call,
                 std::shared_ptr<const JoinedGroups> joined) const noexcept;

  /// This rank needs nobody any more; returns when none of `size` ranks does, after `patience` at
  /// most.
  void goodbye(int rank, int size, std::chrono::milliseconds patience) const noexcept;

 private:
  void write(const std::string& key, const Status& status) const noexcept;

  c10::intrusive_ptr<c10d::Store> store_;
  mutable std::atomic<std::uint64_t> last_posted_ = UINT64_MAX;  // generation
};

}  // namespace tessera::fsdp

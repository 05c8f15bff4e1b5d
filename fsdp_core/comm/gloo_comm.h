#pragma once
// Collectives over c10d's Gloo backend, from its point-to-point calls alone: no copy of a whole
// buffer as in its own all-gather, a summation order that is fixed, every dtype, and calls that can
// be ended from another thread.
//
//   all-gather       each rank sends its shard to every other one, straight between the tensors
//   reduce-scatter   all-to-all in pieces of at most 1 MiB per peer (two halves: one arrives while
//                    the other is summed), then a sum in rank order
//   all-reduce       a reduce-scatter of slices and an all-gather of them; small ones in one
//                    exchange
//   broadcast        a binomial tree
//
// The tag of a message is a hash of (sequence, op, dtype, numel, unit): ranks whose calls differ
// never take each other's bytes; they fail at the timeout and name the two calls.
//
// A call waits for its messages one after the other: the end of one connection is noticed when its turn
// comes. A rank that waits for a slow one learns that a third one is gone from its NeighbourWatch.
#include <tessera/fsdp/communicator.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fsdp_core/comm/failure_board.h"
#include "fsdp_core/comm/joined_groups.h"

namespace tessera::fsdp {

/// What joining a group over a store takes. Shared by all groups of a rank.
struct StoreLink {
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<FailureBoard> board;
  std::chrono::milliseconds start_timeout{30000};  // until all ranks of the job are there
  std::chrono::milliseconds join_timeout{30000};   // of each group made later
  std::chrono::milliseconds timeout{30000};        // of each call
  bool loopback = false;  // all ranks on this machine: no name of it is looked up
  std::shared_ptr<JoinedGroups> joined = std::make_shared<JoinedGroups>();
};

/// Waits until every member has joined; throws kTimeout naming those that have not, and kCancelled
/// with the reason where one of them gave up.
void await_members(const StoreLink& link, const Communicator::Identity& identity,
                   std::uint64_t generation);
/// The keys of a group start with this.
std::string group_prefix(const Communicator::Identity& identity, std::uint64_t generation);
/// The same wait, then connections from each member to each.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const Communicator::Identity& identity,
                                               std::uint64_t generation, const StoreLink& link);

/// Returns the communicator that is held already, if this rank has joined it.
std::shared_ptr<Communicator> make_gloo(const Communicator::Identity& identity,
                                        std::uint64_t generation, const StoreLink& link);

}  // namespace tessera::fsdp

#pragma once
// World: all ranks of a job, and the groups made of them. A handle: copies mean the same world.
//
//   fsdp::World world = fsdp::init_from_env();   // torchrun's variables, or one process alone
//
// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (and TORCHELASTIC_USE_AGENT_STORE) are read
// as torchrun sets them; none set: world size 1. Some set and some missing is an error that names them.
#include <tessera/base/rank_group.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/device_mesh.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::fsdp {

struct WorldOptions {
  /// Limit for each collective, and for making a group: as PyTorch's for NCCL, since ranks may read
  /// data, evaluate or load kernels apart from each other. A rank whose process dies is noticed within
  /// seconds all the same.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Limit for the start of a job: until the store answers, and until all ranks are there. Who is
  /// missing then is named.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(2);
  /// Limit for each meeting of ranks in a save or load. Longer, as ranks read and write files
  /// between meetings, some slower than others. A rank whose process dies is noticed within seconds
  /// all the same.
  std::chrono::milliseconds state_timeout = std::chrono::minutes(30);
  std::string backend;  // "", "gloo", "nccl"; "": gloo on CPUs, nccl where a GPU is
  /// Where each rank writes its last collectives when one fails or times out; "": the environment
  /// variable TESSERA_TRACE_DIR, and without it nowhere.
  std::string trace_folder = {};
};

class World {
 public:
  World();  // one process alone

  int rank() const;
  int size() const;
  int local_rank() const;
  std::chrono::milliseconds timeout() const;

  /// All ranks. Made on first use; collective then.
  std::shared_ptr<Communicator> communicator() const;
  /// The group of these global ranks (ascending), made on first use and kept: the same ranks give
  /// the same communicator. Collective over its members alone. This rank must be one of them.
  std::shared_ptr<Communicator> group(const std::vector<int>& global_ranks) const;
  /// Another communicator of the same ranks, apart from group()'s and from those for other purposes,
  /// which messages name.
  std::shared_ptr<Communicator> group(const std::vector<int>& global_ranks,
                                      const std::string& purpose) const;
  /// The 1-D mesh over all ranks, dim "shard".
  DeviceMesh mesh() const;
  /// For tessera::save and load: bytes, barriers, agreements among all ranks.
  RankGroup& ranks() const;

  /// After a failure, collective over all ranks: every group is rebuilt on fresh connections the next
  /// time it is used. Communicators handed out before stay dead.
  void reset();
  /// The number of reset() calls so far. A communicator that was fetched under another is stale.
  std::uint64_t generation() const;

  struct Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

World init_from_env(const WorldOptions& options = {});

/// Runs `body` on `size` threads, each a rank of one world over the in-process communicator
/// (`backend` "threads") or Gloo (`backend` "gloo"). Returns when all ended; rethrows the first rank's
/// exception after aborting the others. For tests and experiments in one process.
void run_threads(int size, const std::function<void(World&)>& body,
                 const WorldOptions& options = {});

/// A world of `size` ranks seen from `rank`, whose collectives move nothing (fake_communicator).
World fake_world(int rank, int size);

}  // namespace tessera::fsdp

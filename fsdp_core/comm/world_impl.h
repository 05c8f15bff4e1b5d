#pragma once
#include <tessera/base/rank_group.h>
#include <tessera/fsdp/world.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_core/comm/transport.h"

namespace tessera::fsdp {

struct World::Impl {
  Impl(int rank, int size, int local_rank, std::chrono::milliseconds timeout,
       std::unique_ptr<Transport> transport);
  ~Impl();

  std::shared_ptr<Communicator> group(const std::vector<int>& global_ranks,
                                      const std::string& purpose);
  /// The group that only `ranks()` talks through, so that a save may run beside training. Made when
  /// processes meet: connected, it fails at once when one of them dies before its first save.
  std::shared_ptr<Communicator> side_group();
  /// Another one like it, for a save that goes on in the background. Collective.
  std::unique_ptr<RankGroup> background_ranks();
  void reset();

  const int rank;
  const int size;
  const int local_rank;
  const std::chrono::milliseconds timeout;
  const std::shared_ptr<Transport> transport;  // also of a thread that connects
  std::string trace_folder;                    // of the groups made from now on

  std::mutex groups_mutex;
  std::uint64_t generation = 0;
  std::map<std::pair<std::vector<int>, std::string>, std::shared_ptr<Communicator>> groups;
  std::weak_ptr<const void> mesh;  // of World::mesh(), while anybody holds it

  std::mutex side_mutex;  // never held together with the other: making a group waits for peers
  std::uint64_t side_generation = 0;
  std::shared_ptr<Communicator> side;
  std::uint64_t background_count = 0;
  std::vector<std::weak_ptr<Communicator>> background;          // those that somebody still holds
  std::shared_ptr<const void> epoch = std::make_shared<int>();  // another one after reset()
  std::unique_ptr<RankGroup> ranks;
};

}  // namespace tessera::fsdp

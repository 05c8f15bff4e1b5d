#include <fmt/format.h>
#include <tessera/fsdp/world.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "fsdp_core/comm/c10d_rank_group.h"
#include "fsdp_core/comm/local_comm.h"
#include "fsdp_core/comm/thread_comm.h"
#include "fsdp_core/comm/watched_connect.h"
#include "fsdp_core/comm/world_impl.h"

namespace tessera::fsdp {

namespace {

/// "world", or the ranks with runs folded: "ranks 0-3,8". Equal ranks give equal names.
std::string group_name(const std::vector<int>& ranks, int world_size) {
  if (static_cast<int>(ranks.size()) == world_size) return "world";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first > 0) text += ",";
    text += fmt::to_string(ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
    first = last + 1;
  }
  return text;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Communicator::Identity identity_of(const std::vector<int>& ranks, int rank, int world_size) {
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] < 0 || ranks[i] >= world_size || (i > 0 && ranks[i] <= ranks[i - 1]))
      fail(Code::kInvalidArgument,
           fmt::format("a group's ranks must ascend within 0..{}; entry {} is {}", world_size - 1,
                       i, ranks[i]));
  const auto mine = std::ranges::lower_bound(ranks, rank);
  if (mine == ranks.end() || *mine != rank)
    fail(Code::kInvalidArgument, fmt::format("rank {} asks for the group {} it is not in", rank,
                                             group_name(ranks, world_size)));
  return {group_name(ranks, world_size), static_cast<int>(mine - ranks.begin()), ranks};
}

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, std::chrono::milliseconds timeout,
                  std::chrono::milliseconds hosts_timeout, int rank, int size)
      : hub_(std::move(hub)),
        timeout_(timeout),
        hosts_timeout_(hosts_timeout),
        rank_(rank),
        size_(size) {}

  std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                     std::uint64_t generation) override {
    return hub_->join(identity, generation, timeout_);
  }
  std::shared_ptr<Communicator> make_on_hosts(const Communicator::Identity& identity,
                                              std::uint64_t generation) override {
    return hub_->join(identity, generation, hosts_timeout_);
  }
  void meet(std::uint64_t generation) override {
    hub_->join({"the world", rank_, all_ranks(size_)}, generation, timeout_)->barrier({});
  }
  void give_up(std::uint64_t generation, const Status& status) noexcept override {
    hub_->fail_rank(generation, rank_, status);
  }

 private:
  const std::shared_ptr<ThreadHub> hub_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds hosts_timeout_;
  const int rank_;
  const int size_;
};

class FakeTransport final : public Transport {
 public:
  std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                     std::uint64_t) override {
    return make_fake(identity);
  }
  void meet(std::uint64_t) override {}
  void give_up(std::uint64_t, const Status&) noexcept override {}
};

}  // namespace

std::shared_ptr<Communicator> Transport::make_alone(const Communicator::Identity& identity) {
  return make_single(identity);
}

std::unique_ptr<Transport> thread_transport(std::shared_ptr<ThreadHub> hub,
                                            std::chrono::milliseconds timeout,
                                            std::chrono::milliseconds hosts_timeout, int rank,
                                            int size) {
  return std::make_unique<ThreadTransport>(std::move(hub), timeout, hosts_timeout, rank, size);
}

std::unique_ptr<Transport> fake_transport() { return std::make_unique<FakeTransport>(); }

World::Impl::Impl(int rank_, int size_, int local_rank_, std::chrono::milliseconds timeout_,
                  std::unique_ptr<Transport> transport_)
    : rank(rank_),
      size(size_),
      local_rank(local_rank_),
      timeout(timeout_),
      transport(std::move(transport_)) {
  ranks = size == 1 ? single_rank()
                    : communicator_rank_group(
                          rank, size, [this] { return side_group(); },
                          [this] { return background_ranks(); }, nullptr);
}

World::Impl::~Impl() {
  if (std::uncaught_exceptions() == 0) {
    ranks.reset();  // waits for a save in the background
    bool healthy = !side || side->alive();
    for (const auto& [key, group] : groups) healthy = healthy && group->alive();
    transport->leave(healthy);
    return;
  }
  // Nobody shall wait for a rank that is falling.
  transport->give_up(generation, Status{Code::kCancelled,
                                        fmt::format("rank {} left with an exception", rank),
                                        {"", "", "", rank},
                                        {}});
}

std::shared_ptr<Communicator> World::Impl::group(const std::vector<int>& global_ranks,
                                                 const std::string& purpose) {
  const std::lock_guard lock(groups_mutex);
  const std::pair key(global_ranks, purpose);
  const auto known = groups.find(key);
  if (known != groups.end()) return known->second;
  auto identity = identity_of(global_ranks, rank, size);
  if (!purpose.empty()) identity.name += ", " + purpose;
  identity.trace_folder = trace_folder;
  auto made = global_ranks.size() == 1 ? transport->make_alone(identity)
                                       : transport->make(identity, generation);
  return groups.emplace(key, std::move(made)).first->second;
}

std::shared_ptr<Communicator> World::Impl::side_group() {
  const std::lock_guard lock(side_mutex);
  if (!side)
    side = transport->make_on_hosts({"save and load", rank, all_ranks(size)}, side_generation);
  return side;
}

std::unique_ptr<RankGroup> World::Impl::background_ranks() {
  const std::shared_ptr<Communicator> connected = side_group();
  const std::lock_guard lock(side_mutex);
  const Communicator::Identity identity{
      fmt::format("save in the background {}", ++background_count), rank, all_ranks(size)};
  auto made = watched_connect(*connected, [transport = transport, identity, at = side_generation] {
    return transport->make_on_hosts(identity, at);
  });
  std::erase_if(background, [](const auto& group) { return group.expired(); });
  background.push_back(made);
  return communicator_rank_group(
      rank, size, [made] { return made; }, nullptr,
      [at = std::weak_ptr(epoch)] { return !at.expired(); });
}

void World::Impl::reset() {
  {
    const std::scoped_lock lock(groups_mutex, side_mutex);
    for (const auto& [key, group] : groups) group->abort("the world was reset");
    if (side) side->abort("the world was reset");
    for (const auto& weak : background)
      if (const auto group = weak.lock()) group->abort("the world was reset");
    background.clear();
    epoch = std::make_shared<int>();
    groups.clear();
    side.reset();
    side_generation = ++generation;
    transport->meet(generation);
  }
  if (size > 1) side_group();
}

World::World() : impl_(std::make_shared<Impl>(0, 1, 0, WorldOptions{}.timeout, fake_transport())) {}

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
std::chrono::milliseconds World::timeout() const { return impl_->timeout; }

std::shared_ptr<Communicator> World::communicator() const {
  return impl_->group(all_ranks(impl_->size), "");
}

std::shared_ptr<Communicator> World::group(const std::vector<int>& global_ranks) const {
  return impl_->group(global_ranks, "");
}

std::shared_ptr<Communicator> World::group(const std::vector<int>& global_ranks,
                                           const std::string& purpose) const {
  return impl_->group(global_ranks, purpose);
}

RankGroup& World::ranks() const { return *impl_->ranks; }

void World::reset() { impl_->reset(); }

std::uint64_t World::generation() const {
  const std::lock_guard lock(impl_->groups_mutex);
  return impl_->generation;
}

World fake_world(int rank, int size) {
  if (rank < 0 || rank >= size)
    fail(Code::kInvalidArgument, fmt::format("a fake world of {} ranks seen from {}", size, rank));
  return World(
      std::make_shared<World::Impl>(rank, size, rank, WorldOptions{}.timeout, fake_transport()));
}

}  // namespace tessera::fsdp

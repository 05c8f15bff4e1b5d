#pragma once
// Transport: how a world's groups are made and how its ranks meet outside of them. One per rank.
#include <tessera/fsdp/world.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace tessera::fsdp {

class ThreadHub;

class Transport {
 public:
  virtual ~Transport() = default;
  /// This rank's end of a group of several ranks. May wait for the others to join.
  virtual std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                             std::uint64_t generation) = 0;
  /// The same for messages between hosts (names, sizes, statuses), which need no device. Ranks
  /// read and write files between its calls: they wait longer there for a slow one.
  virtual std::shared_ptr<Communicator> make_on_hosts(const Communicator::Identity& identity,
                                                      std::uint64_t generation) {
    return make(identity, generation);
  }
  /// The groups of one rank alone.
  virtual std::shared_ptr<Communicator> make_alone(const Communicator::Identity& identity);
  /// All ranks of the world come to `generation`; throws naming those that do not.
  virtual void meet(std::uint64_t generation) = 0;
  /// This rank gives up for good: every call that waits for it, in any group of `generation`, fails
  /// with `status`.
  virtual void give_up(std::uint64_t generation, const Status& status) noexcept = 0;
  /// From now on it is noticed at once when a process of the world is gone, whomever ranks wait
  /// for. Collective; where ranks are processes, after they have met.
  virtual void watch() {}
  /// Called before this rank's connections close: gives peers a moment to read what it sent them,
  /// or, after a failure, to read about it in the store.
  virtual void leave(bool /*healthy*/) noexcept {}
};

/// `timeout`: of each call; `hosts_timeout`: of those of the groups between hosts.
std::unique_ptr<Transport> thread_transport(std::shared_ptr<ThreadHub> hub,
                                            std::chrono::milliseconds timeout,
                                            std::chrono::milliseconds hosts_timeout, int rank,
                                            int size);
std::unique_ptr<Transport> fake_transport();

/// init_from_env, with groups made by what `wrap` makes of the backend's transport: how tests bring
/// communicators of their own to ranks that are processes.
using WrapTransport = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>;
World init_from_env_over(const WorldOptions& options, const WrapTransport& wrap);

/// The same for ranks that are threads: run_threads, with the transports that `make` returns.
using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;
void run_threads_over(int size, const MakeTransport& make, const WorldOptions& options,
                      const std::function<void(World&)>& body);

}  // namespace tessera::fsdp

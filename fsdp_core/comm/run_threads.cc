#include <fmt/format.h>
#include <tessera/fsdp/world.h>

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/store_transport.h"
#include "fsdp_core/comm/thread_comm.h"
#include "fsdp_core/comm/world_impl.h"

namespace tessera::fsdp {

namespace {

/// The exception to rethrow: the first, but a cause before what peers saw of it.
class FirstFailure {
 public:
  void offer(std::exception_ptr error, const Status& status) {
    const std::lock_guard lock(mutex_);
    const bool echo = status.code == Code::kCancelled;
    if (!first_ || (first_is_echo_ && !echo)) {
      first_ = std::move(error);
      first_is_echo_ = echo;
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  bool first_is_echo_ = false;
};

MakeTransport transports(int size, const WorldOptions& options) {
  if (options.backend.empty() || options.backend == "threads") {
    auto hub = std::make_shared<ThreadHub>();
    return [hub, size, options](int rank) {
      return thread_transport(hub, options.timeout, options.state_timeout, rank, size);
    };
  }
  if (options.backend == "gloo") {
    auto store = c10::make_intrusive<c10d::HashStore>();
    const StoreLink link{.store = store,
                         .board = std::make_shared<FailureBoard>(store),
                         .start_timeout = options.timeout,
                         .join_timeout = options.timeout,
                         .timeout = options.timeout,
                         .loopback = true};
    return [link, size, options](int rank) {
      return store_transport("gloo", link, options.state_timeout, rank, size, rank);
    };
  }
  fail(Code::kInvalidArgument,
       fmt::format("run_threads over backend \"{}\": it is \"threads\" or \"gloo\"",
                   options.backend));
}

void run_rank(int rank, int size, const std::function<void(World&)>& body,
              const WorldOptions& options, const MakeTransport& make, FirstFailure& failure) {
  std::shared_ptr<World::Impl> impl;
  try {
    impl = std::make_shared<World::Impl>(rank, size, rank, options.timeout, make(rank));
    impl->trace_folder = options.trace_folder;
    if (size > 1) impl->side_group();
    World world(impl);
    body(world);
  } catch (...) {
    const Status status = communication_status();
    failure.offer(std::current_exception(), status);
    // What an error of ours says of its place matters to the others too.
    const std::string reason =
        status.context.operation.empty() ? status.message : status.to_string();
    if (impl) impl->transport->give_up(impl->generation, aborted_status(rank, reason));
  }
}

}  // namespace

void run_threads_over(int size, const MakeTransport& make, const WorldOptions& options,
                      const std::function<void(World&)>& body) {
  if (size < 1) fail(Code::kInvalidArgument, fmt::format("a world of {} threads", size));
  FirstFailure failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { run_rank(rank, size, body, options, make, failure); });
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

void run_threads(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  run_threads_over(size, transports(size, options), options, body);
}

}  // namespace tessera::fsdp

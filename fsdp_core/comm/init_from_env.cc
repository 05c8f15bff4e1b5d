#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/fsdp/world.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/no_sigpipe.h"
#include "fsdp_core/comm/store_transport.h"
#include "fsdp_core/comm/world_impl.h"

namespace tessera::fsdp {

namespace {

constexpr const char* kRequired[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

int number(const char* name, int low, int high) {
  const std::string text = variable(name).value();
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high)
    fail(Code::kInvalidArgument, fmt::format("environment variable {} is \"{}\"; it must be {}..{}",
                                             name, text.substr(0, 40), low, high));
  return value;
}

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string address;
  int port = 0;
  bool agent_store = false;  // the launcher keeps the store
  int attempt = 0;
};

/// Nothing: no launcher.
std::optional<Launch> read_launch() {
  std::vector<std::string> set, missing;
  for (const char* name : kRequired) (variable(name) ? set : missing).push_back(name);
  if (variable("LOCAL_RANK")) set.push_back("LOCAL_RANK");
  if (set.empty()) return std::nullopt;
  if (!missing.empty())
    fail(Code::kInvalidArgument,
         fmt::format("environment variable{} {} {} missing, but {} {} set",
                     missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                     missing.size() == 1 ? "is" : "are", fmt::join(set, ", "),
                     set.size() == 1 ? "is" : "are"),
         "start with torchrun, set all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or none");
  Launch launch;
  constexpr int kMost = 1 << 24;
  launch.size = number("WORLD_SIZE", 1, kMost);
  launch.rank = number("RANK", 0, launch.size - 1);
  launch.local_rank = variable("LOCAL_RANK") ? number("LOCAL_RANK", 0, kMost) : launch.rank;
  launch.address = variable("MASTER_ADDR").value();
  launch.port = number("MASTER_PORT", 1, 65535);
  launch.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variable("TORCHELASTIC_RESTART_COUNT"))
    launch.attempt = number("TORCHELASTIC_RESTART_COUNT", 0, kMost);
  return launch;
}

/// A store that this process serves stays until the process ends: other ranks may open their next
/// world on it while this one still ends the last.
void keep_serving(int port, const c10::intrusive_ptr<c10d::Store>& server) {
  static std::mutex mutex;
  static auto* const servers = new std::map<int, c10::intrusive_ptr<c10d::Store>>();  // never ended
  const std::lock_guard lock(mutex);
  servers->emplace(port, server);
}

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch,
                                           std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.agent_store;
  options.waitWorkers = false;  // joining names who is missing
  options.timeout = timeout;
  options.multiTenant = true;  // a second world of the same processes uses the same server
  try {
    const NoSigpipe no_sigpipe;  // in the server's thread
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
    if (options.isServer) keep_serving(launch.port, store);
    return store;
  } catch (...) {
    Status status = communication_status();
    status.message = fmt::format("{} the store at MASTER_ADDR {}, MASTER_PORT {}: {}",
                                 options.isServer ? "cannot open" : "cannot reach", launch.address,
                                 launch.port, status.message);
    status.context.rank = launch.rank;
    status.hint =
        options.isServer ? "is the port taken by another job?" : "is rank 0 running there?";
    throw Error(std::move(status));
  }
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::shared_ptr<World::Impl> join(const Launch& launch, const WorldOptions& options,
                                  const std::string& backend, const WrapTransport& wrap) {
  // A launcher's store outlives a restart of its workers, and a process may make several worlds.
  static std::atomic<int> worlds = 0;
  const std::string prefix = fmt::format("tessera/{}/{}", launch.attempt, worlds++);
  const auto root = open_store(launch, options.join_timeout);
  const auto prefixed = [&](const c10::intrusive_ptr<c10d::Store>& store) {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  const StoreLink link{.store = prefixed(root),
                       .board = std::make_shared<FailureBoard>(prefixed(root->clone())),
                       .start_timeout = options.join_timeout,
                       .join_timeout = options.timeout,
                       .timeout = options.timeout,
                       .loopback = is_loopback(launch.address)};
  auto transport = store_transport(backend, link, options.state_timeout, launch.rank, launch.size,
                                   launch.local_rank);
  if (wrap) transport = wrap(std::move(transport));
  transport->meet(0);
  transport->watch();
  auto impl = std::make_shared<World::Impl>(launch.rank, launch.size, launch.local_rank,
                                            options.timeout, std::move(transport));
  impl->trace_folder = options.trace_folder;
  impl->side_group();
  return impl;
}

/// LOCAL_RANK's device, where this process has accelerators: "cuda" without a number is that one.
void make_device_current(int local_rank) {
  if (!at::getAccelerator(/*checked=*/false)) return;
  const int devices = at::accelerator::deviceCount();
  if (devices > 0)
    at::accelerator::setDeviceIndex(static_cast<c10::DeviceIndex>(local_rank % devices));
}

}  // namespace

World init_from_env(const WorldOptions& options) { return init_from_env_over(options, nullptr); }

World init_from_env_over(const WorldOptions& options, const WrapTransport& wrap) {
  const std::string backend = choose_backend(options.backend);
  const auto launch = read_launch();
  if (launch) make_device_current(launch->local_rank);
  if (launch && launch->size > 1) return World(join(*launch, options, backend, wrap));
  return World(std::make_shared<World::Impl>(0, 1, launch ? launch->local_rank : 0, options.timeout,
                                             fake_transport()));
}

}  // namespace tessera::fsdp

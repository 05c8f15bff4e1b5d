#include "fsdp_core/comm/store_transport.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include <chrono>
#include <numeric>

#include "fsdp_core/comm/neighbour_watch.h"
#ifdef TESSERA_FSDP_NCCL
#include "fsdp_core/comm/nccl_comm.h"
#endif

namespace tessera::fsdp {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeavePatience{2000};
constexpr milliseconds kFailedPatience{1500};

#ifdef TESSERA_FSDP_NCCL
constexpr bool kNcclBuilt = true;
#else
constexpr bool kNcclBuilt = false;
#endif

int gpus() {
  const auto& cuda = at::detail::getCUDAHooks();
  return cuda.hasCUDA() ? static_cast<int>(cuda.deviceCount()) : 0;
}

class StoreTransport final : public Transport {
 public:
  StoreTransport(std::string backend, StoreLink link, std::chrono::milliseconds hosts_timeout,
                 int rank, int size, int local_rank)
      : backend_(std::move(backend)),
        link_(std::move(link)),
        hosts_link_(link_),
        rank_(rank),
        size_(size),
        local_rank_(local_rank) {
    hosts_link_.timeout = hosts_timeout;
  }

  std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                     std::uint64_t generation) override {
#ifdef TESSERA_FSDP_NCCL
    if (backend_ == "nccl") return make_nccl(identity, generation, link_, local_rank_ % gpus());
#endif
    return make_gloo(identity, generation, link_);
  }

  std::shared_ptr<Communicator> make_on_hosts(const Communicator::Identity& identity,
                                              std::uint64_t generation) override {
    return make_gloo(identity, generation, hosts_link_);
  }

  void meet(std::uint64_t generation) override {
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    try {
      StoreLink link = link_;
      if (generation == 0) link.join_timeout = link_.start_timeout;
      await_members(link, {"the world", rank_, std::move(ranks)}, generation);
    } catch (...) {
      leave(false);
      throw;
    }
  }

  void watch() override { watch_ = std::make_unique<NeighbourWatch>(link_, rank_, size_); }

  void give_up(std::uint64_t generation, const Status& status) noexcept override {
    gave_up_ = true;
    link_.board->post(generation, status);
    if (watch_) watch_->lose(status);
  }

  /// Closing a connection drops what the peer has not read yet, and rank 0 keeps the store: all say
  /// goodbye and wait a little for the others'.
  void leave(bool healthy) noexcept override {
    link_.board->goodbye(rank_, size_, healthy && !gave_up_ ? kLeavePatience : kFailedPatience);
    watch_.reset();
  }

 private:
  const std::string backend_;
  const StoreLink link_;
  StoreLink hosts_link_;
  const int rank_;
  const int size_;
  [[maybe_unused]] const int local_rank_;
  bool gave_up_ = false;
  std::unique_ptr<NeighbourWatch> watch_;
};

}  // namespace

std::unique_ptr<Transport> store_transport(const std::string& backend, StoreLink link,
                                           std::chrono::milliseconds hosts_timeout, int rank,
                                           int size, int local_rank) {
  return std::make_unique<StoreTransport>(backend, std::move(link), hosts_timeout, rank, size,
                                          local_rank);
}

std::string choose_backend(const std::string& asked) {
  if (asked.empty()) return kNcclBuilt && gpus() > 0 ? "nccl" : "gloo";
  if (asked == "gloo") return asked;
  if (asked != "nccl")
    fail(Code::kInvalidArgument, fmt::format("backend \"{}\": it is \"gloo\" or \"nccl\"", asked));
  if (!kNcclBuilt)
    fail(Code::kUnsupported, "backend \"nccl\": this build has no NCCL",
         "build against a LibTorch that has CUDA, or use \"gloo\"");
  if (gpus() == 0)
    fail(Code::kUnsupported, "backend \"nccl\": no GPU is found on this machine",
         "use \"gloo\", or check the driver with nvidia-smi");
  return asked;
}

}  // namespace tessera::fsdp

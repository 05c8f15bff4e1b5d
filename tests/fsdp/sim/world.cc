#include "tests/fsdp/sim/world.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/joined_groups.h"
#include "fsdp_core/comm/thread_comm.h"
#include "fsdp_core/comm/transport.h"
#include "tests/fsdp/sim/device.h"

namespace tessera::sim {
namespace {

using fsdp::Communicator;
using fsdp::Reduce;

/// What the streams' work of one group shares with the host.
class Line {
 public:
  std::uint64_t take() {
    const std::lock_guard lock(mutex_);
    return taken_++;
  }
  /// Runs `work` when its turn comes; the turn passes however it ends. An exception stays here.
  void in_turn(std::uint64_t ticket, const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return served_ == ticket; });
    lock.unlock();
    Status status;
    try {
      work();
    } catch (...) {
      status = current_exception_status();
    }
    lock.lock();
    if (failure_.ok()) failure_ = status;
    ++served_;
    changed_.notify_all();
  }
  void check() {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) throw Error(failure_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t taken_ = 0, served_ = 0;
  Status failure_;
};

class SimCommunicator final : public Communicator {
 public:
  using Rebuild = std::function<std::shared_ptr<Communicator>(std::uint64_t)>;
  SimCommunicator(Identity identity, c10::Device device, std::shared_ptr<Communicator> on_streams,
                  std::shared_ptr<Communicator> on_hosts, Rebuild rebuild)
      : Communicator(std::move(identity)),
        device_(device),
        on_streams_(std::move(on_streams)),
        on_hosts_(std::move(on_hosts)),
        rebuild_(std::move(rebuild)) {}

  std::string_view backend() const override { return "sim"; }
  at::DeviceType device_type() const override { return kType; }
  bool has_average() const override { return true; }
  void abort(std::string_view reason) noexcept override {
    on_streams_->abort(reason);
    on_hosts_->abort(reason);
  }
  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return rebuild_(generation);
  }

 private:
  /// `call` gets the group that streams meet in, and a tag without the unit: NCCL compares none.
  using OnStream = std::function<void(Communicator&, const fsdp::CommTag&)>;
  void issue_on_stream(const char* name, const std::vector<at::Tensor>& reads,
                       const std::vector<at::Tensor>& writes, OnStream call) {
    line_->check();
    for (const at::Tensor& tensor : reads)
      if (tensor.device() != device_)
        fail(Code::kInvalidArgument, std::string(name) + ": a tensor of " + tensor.device().str() +
                                         " on a rank of " + device_.str());
    launch(current_stream(device_.index()), std::string(name) + " of group " + this->name(), reads,
           writes,
           [line = line_, ticket = line_->take(), group = on_streams_, phase = current_call().phase,
            call = std::move(call)] { line->in_turn(ticket, [&] {
                                        call(*group, {"", phase});
                                      }); });
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    issue_on_stream("all-gather", {in}, {out},
                    [to = host_view(out), from = host_view(in)](auto& group, const auto& tag) {
                      group.all_gather_into(to, from, tag);
                    });
  }
  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    issue_on_stream("reduce-scatter", {in}, {in, out},
                    [to = host_view(out), from = host_view(in), op](auto& group, const auto& tag) {
                      group.reduce_scatter_into(to, from, op, tag);
                    });
  }
  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    issue_on_stream("all-reduce", {tensor}, {tensor},
                    [all = host_view(tensor), op](auto& group, const auto& tag) {
                      group.all_reduce(all, op, tag);
                    });
  }
  void do_broadcast(at::Tensor& tensor, int root) override {
    issue_on_stream("broadcast", {tensor}, {tensor},
                    [all = host_view(tensor), root](auto& group, const auto& tag) {
                      group.broadcast(all, root, tag);
                    });
  }
  /// The host waits, as for NCCL, through which these go too.
  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    line_->check();
    current_stream(device_.index()).synchronize();
    return on_hosts_->all_gather_bytes(bytes, {current_call().unit, current_call().phase});
  }
  void do_barrier() override { do_all_gather_bytes({}); }

  const c10::Device device_;
  const std::shared_ptr<Communicator> on_streams_, on_hosts_;
  const Rebuild rebuild_;
  const std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

/// Groups of one rank, and where its hosts meet: threads.
class SimTransport final : public fsdp::Transport {
 public:
  SimTransport(std::unique_ptr<fsdp::Transport> threads, c10::Device device)
      : threads_(std::move(threads)), device_(device) {}

  std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                     std::uint64_t generation) override {
    return joined_.get(identity, generation, [&]() -> std::shared_ptr<Communicator> {
      Communicator::Identity hosts = identity;
      hosts.name += " on hosts";
      return std::make_shared<SimCommunicator>(
          identity, device_, threads_->make(identity, generation),
          threads_->make(hosts, generation), [this, identity, generation](std::uint64_t later) {
            return make(identity, std::max(later, generation + 1));
          });
    });
  }
  std::shared_ptr<Communicator> make_on_hosts(const Communicator::Identity& identity,
                                              std::uint64_t generation) override {
    return threads_->make_on_hosts(identity, generation);
  }
  void meet(std::uint64_t generation) override { threads_->meet(generation); }
  void give_up(std::uint64_t generation, const Status& status) noexcept override {
    threads_->give_up(generation, status);
  }

 private:
  const std::unique_ptr<fsdp::Transport> threads_;
  const c10::Device device_;
  fsdp::JoinedGroups joined_;
};

}  // namespace

void run_ranks(int size, const std::function<void(fsdp::World&)>& body) {
  constexpr std::chrono::seconds kTimeout{60};
  const auto hub = std::make_shared<fsdp::ThreadHub>();
  fsdp::WorldOptions options;
  options.timeout = options.state_timeout = kTimeout;
  const auto transport = [&](int rank) -> std::unique_ptr<fsdp::Transport> {
    return std::make_unique<SimTransport>(
        fsdp::thread_transport(hub, kTimeout, kTimeout, rank, size), device(rank));
  };
  fsdp::run_threads_over(size, transport, options, [&](fsdp::World& world) {
    set_current(world.rank());
    body(world);
    c10::impl::VirtualGuardImpl(kType).synchronizeDevice(
        static_cast<c10::DeviceIndex>(world.rank()));
  });
}

}  // namespace tessera::sim

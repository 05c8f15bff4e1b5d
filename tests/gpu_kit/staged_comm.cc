#include "tests/gpu_kit/staged_comm.h"

#include <ATen/ATen.h>

#include <random>

#include "fsdp_core/comm/joined_groups.h"
#include "fsdp_core/comm/transport.h"
#include "tests/gpu_kit/device.h"

namespace tessera::gpu_kit {

using fsdp::CommTag;
using fsdp::Communicator;
using fsdp::Reduce;

namespace {

struct Delays {
  std::mutex mutex;  // forwards and backwards run on different threads
  std::mt19937_64 random;
  int most_us = 0;

  int draw() {
    const std::lock_guard lock(mutex);
    return most_us == 0 ? 0 : static_cast<int>(random() % static_cast<std::uint64_t>(most_us));
  }
};
Delays& delays() {
  static Delays all;
  return all;
}

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Identity identity, std::shared_ptr<Communicator> host, c10::Device device)
      : Communicator(std::move(identity)), host_(std::move(host)), device_(device) {}

  std::string_view backend() const override { return "staged"; }
  at::DeviceType device_type() const override { return device_.type(); }
  void abort(std::string_view reason) noexcept override { host_->abort(reason); }
  void lose(const Status& why) noexcept override { host_->lose(why); }
  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return std::make_shared<StagedCommunicator>(identity(), host_->rebuild(generation), device_);
  }

 private:
  CommTag tag() const { return {current_call().unit, current_call().phase}; }

  at::Tensor host_memory(const at::Tensor& like) const {
    return at::empty({like.numel()},
                     at::TensorOptions(like.scalar_type()).pinned_memory(!device_.is_cpu()));
  }
  at::Tensor read(const at::Tensor& tensor) const {
    at::NoGradGuard no_grad;
    be_late(device_);
    at::Tensor here = host_memory(tensor);
    here.copy_(tensor.view(-1), /*non_blocking=*/true);
    synchronise_stream(device_);
    return here;
  }
  /// Pinned memory is kept by its allocator until the copy has run.
  void write(at::Tensor& tensor, const at::Tensor& here) const {
    at::NoGradGuard no_grad;
    be_late(device_);
    tensor.view(-1).copy_(here, /*non_blocking=*/true);
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    const at::Tensor mine = read(in), all = host_memory(out);
    host_->all_gather_into(all, mine, tag());
    write(out, all);
  }
  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    const at::Tensor all = read(in), mine = host_memory(out);
    host_->reduce_scatter_into(mine, all, op, tag());
    write(out, mine);
  }
  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    const at::Tensor all = read(tensor);
    host_->all_reduce(all, op, tag());
    write(tensor, all);
  }
  void do_broadcast(at::Tensor& tensor, int root) override {
    const at::Tensor all = read(tensor);
    host_->broadcast(all, root, tag());
    write(tensor, all);
  }
  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    return host_->all_gather_bytes(bytes, tag());
  }
  void do_barrier() override { host_->barrier(tag()); }

  const std::shared_ptr<Communicator> host_;
  const c10::Device device_;
};

class StagedTransport final : public fsdp::Transport {
 public:
  StagedTransport(std::unique_ptr<Transport> host, c10::Device device)
      : host_(std::move(host)), device_(device) {}

  std::shared_ptr<Communicator> make(const Communicator::Identity& identity,
                                     std::uint64_t generation) override {
    return joined_.get(identity, generation, [&] {
      return std::make_shared<StagedCommunicator>(identity, host_->make(identity, generation),
                                                  device_);
    });
  }
  std::shared_ptr<Communicator> make_on_hosts(const Communicator::Identity& identity,
                                              std::uint64_t generation) override {
    return host_->make_on_hosts(identity, generation);
  }
  void meet(std::uint64_t generation) override { host_->meet(generation); }
  void give_up(std::uint64_t generation, const Status& status) noexcept override {
    host_->give_up(generation, status);
  }
  void watch() override { host_->watch(); }
  void leave(bool healthy) noexcept override { host_->leave(healthy); }

 private:
  const std::unique_ptr<Transport> host_;
  const c10::Device device_;
  fsdp::JoinedGroups joined_;
};

}  // namespace

void set_lateness(std::uint64_t seed, int most_us) {
  const std::lock_guard lock(delays().mutex);
  delays().random.seed(seed);
  delays().most_us = most_us;
}

void be_late(c10::Device device) { keep_busy(device, delays().draw()); }

fsdp::World staged_world(c10::Device device, const fsdp::WorldOptions& options) {
  fsdp::WorldOptions gloo = options;
  gloo.backend = "gloo";
  return fsdp::init_from_env_over(gloo, [&](std::unique_ptr<fsdp::Transport> host) {
    return std::make_unique<StagedTransport>(std::move(host), device);
  });
}

}  // namespace tessera::gpu_kit

// The only file that names NCCL. Without a GPU it is compiled, never linked.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/nccl_comm.h"

namespace tessera::fsdp {

namespace {

c10d::ReduceOp reduce_op(Reduce reduce) {
  switch (reduce) {
    case Reduce::kSum:
      return c10d::ReduceOp::SUM;
    case Reduce::kAverage:
      return c10d::ReduceOp::AVG;
    case Reduce::kMax:
      return c10d::ReduceOp::MAX;
    case Reduce::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

/// Calls are issued on the current stream (asyncOp = false) and return at once: a failure shows at
/// a later call, when c10d's watchdog has found it.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Identity& identity, std::uint64_t generation, const StoreLink& link,
                   at::Device device, c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : Communicator(identity),
        generation_(generation),
        link_(link),
        device_(device),
        group_(std::move(group)) {}

  /// Its destructor warns, and may wait, where nobody shut it down.
  ~NcclCommunicator() override {
    try {
      group_->shutdown();
    } catch (...) {
      // Aborted, or its peers are gone: there is nothing left to close.
    }
  }

  std::string_view backend() const override { return "nccl"; }
  at::DeviceType device_type() const override { return at::kCUDA; }
  bool has_average() const override { return true; }

  void abort(std::string_view reason) noexcept override {
    link_.board->post(generation_, aborted_status(global_rank(), reason));
    abort_group();
  }

  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return make_nccl(identity(), std::max(generation, generation_ + 1), link_, device_.index());
  }

 private:
  void abort_group() noexcept {
    try {
      group_->abort();
    } catch (...) {
      // It is dead either way.
    }
  }

  void check_watchdog() {
    const auto error = group_->getError();
    if (error == c10d::ErrorType::SUCCESS) return;
    fail(error == c10d::ErrorType::TIMEOUT ? Code::kTimeout : Code::kIo,
         "an earlier collective of this group has failed");
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    check_watchdog();
    at::Tensor to = out.view(at::kByte), from = in.view(at::kByte);  // NCCL knows few types
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    group_->_allgather_base(to, from, options);
  }

  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    check_watchdog();
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(op);
    options.asyncOp = false;
    group_->_reduce_scatter_base(out, in, options);
  }

  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    check_watchdog();
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    options.asyncOp = false;
    std::vector<at::Tensor> tensors{tensor};
    group_->allreduce(tensors, options);
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    check_watchdog();
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.asyncOp = false;
    std::vector<at::Tensor> tensors{tensor.view(at::kByte)};
    group_->broadcast(tensors, options);
  }

  /// Equal parts of every rank, back on the host: waits for the stream.
  at::Tensor gather_to_host(const at::Tensor& mine) {
    at::Tensor in = mine.to(device_);
    at::Tensor out = at::empty({in.numel() * size()}, in.options());
    do_all_gather_into(out, in);
    return out.cpu();
  }

  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    const at::Tensor lengths =
        gather_to_host(at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong));
    const auto* length = lengths.const_data_ptr<std::int64_t>();
    const std::int64_t longest = *std::max_element(length, length + size());
    std::vector<std::vector<std::byte>> all(size());
    if (longest == 0) return all;
    const at::Tensor padded = at::zeros({longest}, at::kByte);
    if (!bytes.empty()) std::memcpy(padded.data_ptr(), bytes.data(), bytes.size());
    const at::Tensor gathered = gather_to_host(padded);
    const auto* first = static_cast<const std::byte*>(gathered.const_data_ptr());
    for (int member = 0; member < size(); ++member)
      all[member].assign(first + member * longest, first + member * longest + length[member]);
    return all;
  }

  void do_barrier() override { gather_to_host(at::zeros({1}, at::kByte)); }

  Status failed(Status status) noexcept override {
    abort_group();
    return link_.board->explain(std::move(status), identity(), generation_,
                                current_call().to_string(), link_.joined);
  }

  const std::uint64_t generation_;
  const StoreLink link_;
  const at::Device device_;
  const c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::shared_ptr<Communicator> make_nccl(const Communicator::Identity& identity,
                                        std::uint64_t generation, const StoreLink& link,
                                        int device_index) {
  // A failure shall be an exception of the next call: the default ends the process. The user's own
  // choice stays.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);
  return link.joined->get(identity, generation, [&] {
    await_members(link, identity, generation);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = link.timeout;
    options->group_name = identity.name;
    for (const int member : identity.global_ranks) options->global_ranks_in_group.push_back(member);
    auto store = c10::make_intrusive<c10d::PrefixStore>(group_prefix(identity, generation) + "nccl",
                                                        link.store);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        store, identity.rank, static_cast<int>(identity.global_ranks.size()), options);
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
    return std::make_shared<NcclCommunicator>(identity, generation, link, device, std::move(group));
  });
}

}  // namespace tessera::fsdp

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "fsdp_core/comm/failure.h"
#include "fsdp_core/comm/local_comm.h"

namespace tessera::fsdp {

namespace {

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(Identity identity) : Communicator(std::move(identity)) {}

  std::string_view backend() const override { return "single"; }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
  }

  std::shared_ptr<Communicator> rebuild(std::uint64_t) const override {
    return make_single(identity());
  }

 private:
  bool takes(at::DeviceType) const override { return true; }

  void check_abort() const {
    if (!aborted_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    throw Error(aborted_status(global_rank(), reason_));
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    check_abort();
    copy_elements(out, in);
  }
  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce) override {
    check_abort();
    copy_elements(out, in);
  }
  void do_all_reduce(at::Tensor&, Reduce) override { check_abort(); }
  void do_broadcast(at::Tensor&, int) override { check_abort(); }
  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    check_abort();
    return {{bytes.begin(), bytes.end()}};
  }
  void do_barrier() override { check_abort(); }

  std::atomic<bool> aborted_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace

void copy_elements(at::Tensor& dst, const at::Tensor& src) {
  if (dst.numel() == 0) return;
  if (dst.device().is_cpu()) {
    if (dst.data_ptr() != src.data_ptr())
      std::memmove(dst.data_ptr(), src.const_data_ptr(), dst.nbytes());
    return;
  }
  if (dst.device().is_meta() || dst.data_ptr() == src.data_ptr()) return;
  const at::NoGradGuard no_grad;
  dst.copy_(src);
}

std::shared_ptr<Communicator> make_single(Communicator::Identity identity) {
  return std::make_shared<SingleCommunicator>(std::move(identity));
}

std::shared_ptr<Communicator> single_communicator() { return make_single({"world", 0, {0}}); }

}  // namespace tessera::fsdp

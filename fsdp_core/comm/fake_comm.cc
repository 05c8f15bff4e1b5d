#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "fsdp_core/comm/local_comm.h"

namespace tessera::fsdp {

namespace {

template <class T>
void scale(void* data, std::int64_t numel, int factor) {
  T* values = static_cast<T*>(data);
  for (std::int64_t i = 0; i < numel; ++i)
    values[i] = static_cast<T>(values[i] * static_cast<T>(factor));
}

/// On CPUs without a tensor made: the dispatcher would wrap `factor` in one.
void multiply(at::Tensor& tensor, int factor) {
  void* data = tensor.device().is_cpu() ? tensor.data_ptr() : nullptr;
  switch (data ? tensor.scalar_type() : at::ScalarType::Undefined) {
    case at::kFloat:
      return scale<float>(data, tensor.numel(), factor);
    case at::kDouble:
      return scale<double>(data, tensor.numel(), factor);
    case at::kBFloat16:
      return scale<c10::BFloat16>(data, tensor.numel(), factor);
    case at::kHalf:
      return scale<c10::Half>(data, tensor.numel(), factor);
    default:
      break;
  }
  const at::NoGradGuard no_grad;
  tensor.mul_(factor);
}

class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(Identity identity) : Communicator(std::move(identity)) {}

  std::string_view backend() const override { return "fake"; }
  void abort(std::string_view) noexcept override {}
  std::shared_ptr<Communicator> rebuild(std::uint64_t) const override {
    return make_fake(identity());
  }

 private:
  bool takes(at::DeviceType) const override { return true; }

  /// This rank's part of `whole` and `part`, copied the one way or the other.
  void copy_own(at::Tensor& whole, at::Tensor& part, bool into_whole) {
    if (part.numel() == 0 || part.device().is_meta()) return;
    if (!whole.device().is_cpu()) {
      at::Tensor own = whole.view(-1).narrow(0, rank() * part.numel(), part.numel());
      return into_whole ? copy_elements(own, part) : copy_elements(part, own);
    }
    std::byte* own = static_cast<std::byte*>(whole.data_ptr()) + rank() * part.nbytes();
    std::byte* other = static_cast<std::byte*>(part.data_ptr());
    if (own != other)
      std::memmove(into_whole ? own : other, into_whole ? other : own, part.nbytes());
  }

  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override { copy_own(out, in, true); }
  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    copy_own(in, out, false);
    if (op == Reduce::kSum && !out.device().is_meta()) multiply(out, size());
  }
  void do_all_reduce(at::Tensor& tensor, Reduce op) override {
    if (op == Reduce::kSum && !tensor.device().is_meta()) multiply(tensor, size());
  }
  void do_broadcast(at::Tensor&, int) override {}
  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    return std::vector<std::vector<std::byte>>(size(), {bytes.begin(), bytes.end()});
  }
  void do_barrier() override {}
};

}  // namespace

std::shared_ptr<Communicator> make_fake(Communicator::Identity identity) {
  return std::make_shared<FakeCommunicator>(std::move(identity));
}

std::shared_ptr<Communicator> fake_communicator(int rank, int size) {
  if (rank < 0 || rank >= size)
    fail(Code::kInvalidArgument, fmt::format("a fake group of {} ranks seen from {}", size, rank));
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_fake({"world", rank, std::move(ranks)});
}

}  // namespace tessera::fsdp

#include "fsdp_core/runtime/gradient_reducer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <cmath>

namespace tessera::fsdp::detail {

namespace {

void check_finite(Unit& unit, const ParamGroup& group) {
  for (const Param& param : group.params()) {
    if (!param.requires_grad) continue;
    const at::Tensor bad = at::logical_not(at::isfinite(param.grad_view)).view({-1}).nonzero();
    if (bad.numel() == 0) continue;
    const std::int64_t at = bad[0].item<std::int64_t>();
    const Communicator& comm =
        unit.shard_comm().size() > 1 ? unit.shard_comm() : unit.replicate_comm();
    fail(Code::kInvalidArgument,
         fmt::format("the gradient of \"{}\" on rank {} has {} values that are not finite, the "
                     "first at element {} ({})",
                     param.fqn, comm.global_ranks()[static_cast<std::size_t>(comm.rank())],
                     bad.numel(), at, param.grad_view.view({-1})[at].item<double>()));
  }
}

}  // namespace

DivideFactors divide_factors(double n) {
  double pre = 1;
  while (std::fmod(n, pre) == 0 && n / pre > pre) pre *= 2;
  return {pre, n / pre};
}

void GradientReducer::use(StreamFactory& factory, std::shared_ptr<Stream> compute, bool replicas) {
  compute_ = std::move(compute);
  reduce_ = factory.make("reduce", true);
  all_reduce_ = replicas ? factory.make("all-reduce", false) : reduce_;
}

void GradientReducer::release(InFlight& in_flight) {
  compute_->wait(in_flight.done);
  in_flight = {};
}

void GradientReducer::reduce(Unit& unit) {
  std::vector<bool> used;
  for (const std::unique_ptr<ParamGroup>& group : unit.groups()) {
    if (!group->has_gradients()) continue;
    used.assign(group->params().size(), true);
    if (unit.options().find_unused_parameters) {
      at::Tensor bits = at::zeros({static_cast<std::int64_t>(used.size())}, at::kByte);
      for (std::size_t p = 0; p < used.size(); ++p)
        bits.data_ptr<std::uint8_t>()[p] = group->params()[p].used;
      const CommTag tag{unit.name(), CommPhase::kBackward};
      for (Communicator* comm : {&unit.shard_comm(), &unit.replicate_comm()})
        if (comm->size() > 1)
          compute_->run([&] { comm->all_reduce(bits, Reduce::kMax, tag); }, comm);
      for (std::size_t p = 0; p < used.size(); ++p) used[p] = bits.data_ptr<std::uint8_t>()[p] != 0;
    }
    for (Param& param : group->params()) param.used = false;
    if (unit.options().check_nan) check_finite(unit, *group);
    reduce_group(unit, *group, used);
  }
}

void GradientReducer::reduce_group(Unit& unit, ParamGroup& group, const std::vector<bool>& used) {
  at::NoGradGuard no_grad;
  // One unit's gradients in reduction at a time: the memory of the one before is given back first.
  if (previous_.input.defined()) release(previous_);
  previous_.input = group.take_gradients();
  reduce_->wait_for(*compute_);

  const Options& options = unit.options();
  const bool half = group.dtypes().reduce == at::kHalf;
  const double n = options.gradient_divide_factor.value_or(unit.comms().ranks());
  const DivideFactors factors = half ? divide_factors(n) : DivideFactors{1, n};
  const CommTag tag{unit.name(), CommPhase::kBackward};
  at::Tensor input = previous_.input, output;
  Communicator& shard = unit.shard_comm();

  // The stream's own work holds its tensors; `output` is handed from step to step.
  auto out = std::make_shared<at::Tensor>();
  reduce_->run(
      [=, &shard, &group] {
        at::NoGradGuard guard;
        if (factors.pre > 1) input.div_(factors.pre);
        if (shard.size() == 1) {
          *out = input;
        } else {
          // In place: this rank's part of the input is nobody else's.
          const std::int64_t numel = group.layout().shard_numel();
          *out = tensor_over(input.storage(), input.scalar_type(), shard.rank() * numel, {numel});
          shard.reduce_scatter_into(*out, input, Reduce::kSum, tag);
        }
      },
      &shard);
  if (unit.comms().replicas() > 1 && unit.all_reduce) {
    all_reduce_->wait_for(*reduce_);
    Communicator& replicas = unit.replicate_comm();
    all_reduce_->run([=, &replicas] { replicas.all_reduce(*out, Reduce::kSum, tag); }, &replicas);
  }
  Stream& last = unit.comms().replicas() > 1 ? *all_reduce_ : *reduce_;
  last.run([=, &group] {
    at::NoGradGuard guard;
    if (factors.post != 1) out->div_(factors.post);
    group.accumulate(*out, used);
  });
  previous_.done = last.record();
  if (previous_.done.ready()) previous_ = {};
}

void GradientReducer::finish() {
  if (previous_.input.defined()) release(previous_);
  if (all_reduce_ != reduce_) compute_->wait_for(*all_reduce_);
  compute_->wait_for(*reduce_);
}

}  // namespace tessera::fsdp::detail

#include "fsdp_core/runtime/gradient_reducer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/comm_hook.h>

#include <algorithm>
#include <cmath>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/unit/pool.h"

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
                     param.fqn, comm.global_rank(), bad.numel(), at,
                     param.grad_view.view({-1})[at].item<double>()));
  }
}

/// A number given as a number becomes two tensors in memory of their own, each time.
void divide(const at::Tensor& gradient, double by) {
  if (gradient.is_cpu() && gradient.scalar_type() == at::kFloat) {
    thread_local const at::Tensor divisor = at::zeros({}, at::kFloat);
    *divisor.data_ptr<float>() = static_cast<float>(by);
    gradient.div_(divisor);
  } else {
    gradient.div_(by);
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

void GradientReducer::make_room_for_output() {
  if (outputs_.size() < 2) return;
  reduce_->wait(outputs_.front().done);
  outputs_.erase(outputs_.begin());
}

void GradientReducer::reduce(Unit& unit) {
  unit.root()->order().before_reduce(unit);
  for (const std::unique_ptr<ParamGroup>& group : unit.groups()) {
    if (!group->has_gradients()) continue;
    const UsedParams used =
        unit.options().find_unused_parameters ? used_anywhere(unit, *group) : group->all_used();
    for (Param& param : group->params()) param.used = false;
    if (unit.options().check_nan) check_finite(unit, *group);
    reduce_group(unit, *group, used);
  }
  if (unit.stepper) step(unit);
}

UsedParams GradientReducer::used_anywhere(Unit& unit, const ParamGroup& group) {
  std::vector<bool> used(group.params().size());
  at::Tensor bits = at::zeros({static_cast<std::int64_t>(used.size())}, at::kByte);
  for (std::size_t p = 0; p < used.size(); ++p)
    bits.data_ptr<std::uint8_t>()[p] = group.params()[p].used;
  const CommTag tag{unit.name(), CommPhase::kBackward};
  for (Communicator* comm : {&unit.shard_comm(), &unit.replicate_comm()})
    if (comm->size() > 1) compute_->run([&] { comm->all_reduce(bits, Reduce::kMax, tag); }, comm);
  for (std::size_t p = 0; p < used.size(); ++p) used[p] = bits.data_ptr<std::uint8_t>()[p] != 0;
  return std::make_shared<const std::vector<bool>>(std::move(used));
}

Stream& GradientReducer::last_stream(Unit& unit) {
  return unit.comms().replicas() > 1 && unit.all_reduce && !unit.comm_hook ? *all_reduce_
                                                                           : *reduce_;
}

void GradientReducer::step(Unit& unit) {
  Stream& last = last_stream(unit);
  // The step of an offloaded unit is host code: its gradients have to be on the host by then.
  if (unit.options().cpu_offload.offload_params) last.record().synchronize();
  unit.stepper->issue();
  last.run([&unit] { unit.stepper->step(unit); });
  if (!outputs_.empty())
    outputs_.back().done = last.record();
  else if (previous_.input.defined())
    previous_.done = last.record();
}

void GradientReducer::reduce_group(Unit& unit, ParamGroup& group, const UsedParams& used_now) {
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
  const at::Tensor input = previous_.input;
  Communicator& shard = unit.shard_comm();
  if (unit.comm_hook) {
    run_hook(unit, group, n, used_now);
    return;
  }

  const bool replicated = unit.comms().replicas() > 1, holds = replicated && !unit.all_reduce;
  // The all-reduce runs beside the next unit's reduce-scatter, which takes the place of this input.
  const bool apart = replicated && !holds && shard.size() > 1 && !reduce_->immediate();
  if (apart) make_room_for_output();
  // The stream's own work holds its tensors; `out` is handed from step to step.
  auto out = make_pooled<at::Tensor>();
  reduce_->run(
      [=, &shard, &group] {
        at::NoGradGuard guard;
        if (factors.pre > 1) divide(input, factors.pre);
        if (shard.size() == 1) {
          *out = input;
        } else {
          // In place: this rank's part of the input is nobody else's.
          const std::int64_t numel = group.layout().shard_numel();
          *out = apart ? new_tensor(numel, input.scalar_type(), input.device())
                       : tensor_over(input.storage(), input.scalar_type(), shard.rank() * numel,
                                     {numel});
          shard.reduce_scatter_into(*out, input, Reduce::kSum, tag);
        }
      },
      &shard);
  if (apart) previous_.done = reduce_->record();
  const UsedParams used = group.used_with_partial(used_now, holds);
  Stream& last = last_stream(unit);
  if (replicated && !holds) {
    all_reduce_->wait_for(*reduce_);
    Communicator& replicas = unit.replicate_comm();
    all_reduce_->run(
        [=, &replicas, &group] {
          at::NoGradGuard guard;
          group.add_partial(*out);
          replicas.all_reduce(*out, Reduce::kSum, tag);
        },
        &replicas);
  }
  last.run([=, &group] {
    at::NoGradGuard guard;
    if (holds) return group.hold_partial(*out);
    if (factors.post != 1) divide(*out, factors.post);
    group.accumulate(*out, *used);
  });
  if (apart)
    outputs_.push_back({out, last.record()});
  else
    previous_.done = last.record();
  if (previous_.done.ready()) previous_ = {};
}

void GradientReducer::run_hook(Unit& unit, ParamGroup& group, double n, const UsedParams& used) {
  const bool sharded = unit.options().strategy != ShardingStrategy::kNoShard;
  const DivideFactors factors = divide_factors(n);
  const std::shared_ptr<GradientBucket> bucket(
      new GradientBucket{sharded ? unit.shard_comm() : unit.replicate_comm(),
                         {unit.name(), CommPhase::kBackward},
                         previous_.input,
                         {},
                         group.dtypes().stored,
                         n,
                         factors.pre,
                         factors.post});
  reduce_->run(
      [bucket, sharded, used, &group, hook = unit.comm_hook] {
        at::NoGradGuard guard;
        const std::int64_t numel = group.layout().shard_numel();
        if (sharded)
          bucket->shard =
              new_tensor(numel, hook->low_precision ? group.dtypes().stored : group.dtypes().reduce,
                         bucket->gradient.device());
        hook->function(*bucket);
        const at::Tensor& result = sharded ? bucket->shard : bucket->gradient;
        if (!result.defined() || result.numel() != numel || !result.is_contiguous())
          fail(Code::kInvalidArgument,
               fmt::format(
                   "communication hook \"{}\": what it left for unit \"{}\" is not {} elements "
                   "end to end",
                   hook->name, bucket->tag.unit, numel));
        group.accumulate(result, *used);
      },
      &bucket->comm);
  previous_.done = reduce_->record();
  if (previous_.done.ready()) previous_ = {};
}

void GradientReducer::abandon() noexcept {
  try {
    if (previous_.input.defined()) release(previous_);
    for (const Output& each : outputs_) compute_->wait(each.done);
  } catch (...) {
    previous_ = {};  // what failed there was told where it mattered
  }
  outputs_.clear();
}

void GradientReducer::finish() {
  if (previous_.input.defined()) release(previous_);
  if (all_reduce_ != reduce_) compute_->wait_for(*all_reduce_);
  compute_->wait_for(*reduce_);
  outputs_.clear();
}

}  // namespace tessera::fsdp::detail

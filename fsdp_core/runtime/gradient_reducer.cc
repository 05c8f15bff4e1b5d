#include "fsdp_core/runtime/gradient_reducer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/comm_hook.h>

#include <algorithm>
#include <cmath>

#include "fsdp_core/params/pool.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/put_back.h"
#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp::detail {

namespace {

void check_finite(const ParamGroup& group) {
  for (const Param& param : group.params()) {
    if (!param.requires_grad) continue;
    const at::Tensor bad = at::logical_not(at::isfinite(param.grad_view)).view({-1}).nonzero();
    if (bad.numel() == 0) continue;
    const std::int64_t at = bad[0].item<std::int64_t>();
    const UnitGroups& comms = group.comms();
    const Communicator& comm = comms.shards() > 1 ? *comms.shard : *comms.replicate;
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

/// The backend divides while it sums: no kernel of ours has to.
bool GradientReducer::averages_itself(const Unit& unit, const ParamGroup& group) {
  const Options& options = unit.options();
  if (options.force_sum_reduction_for_comms || options.gradient_divide_factor) return false;
  return std::ranges::all_of(
      std::initializer_list{group.comms().reduce.get(), group.comms().replicate.get()},
      [](const Communicator* comm) { return comm->size() == 1 || comm->has_average(); });
}

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

void GradientReducer::share(StreamFactory& factory, const GradientReducer& other) {
  finish(/*host_reads=*/true);
  const bool replicas = all_reduce_ != reduce_;
  compute_ = other.compute_;
  reduce_ = other.reduce_;
  all_reduce_ = !replicas                            ? reduce_
                : other.all_reduce_ != other.reduce_ ? other.all_reduce_
                                                     : factory.make("all-reduce", false);
}

void GradientReducer::release_oldest() {
  if (!is_put_back(Race::kInputFreedEarly)) compute_->wait(in_flight_.front().done);
  in_flight_.erase(in_flight_.begin());
}

void GradientReducer::forget_done() {
  std::erase_if(in_flight_, [](const InFlight& each) { return each.done.ready(); });
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
    if (unit.options().check_nan) check_finite(*group);
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
  const at::Tensor there = bits.to(group.device());
  for (Communicator* comm : {group.comms().reduce.get(), group.comms().replicate.get()})
    if (comm->size() > 1) compute_->run([&] { comm->all_reduce(there, Reduce::kMax, tag); }, comm);
  bits = there.cpu();  // the host waits: what it does next depends on them
  for (std::size_t p = 0; p < used.size(); ++p) used[p] = bits.data_ptr<std::uint8_t>()[p] != 0;
  return std::make_shared<const std::vector<bool>>(std::move(used));
}

Stream& GradientReducer::last_stream(const Unit& unit, const ParamGroup& group) {
  if (!unit.all_reduce || unit.comm_hook) return *reduce_;
  const bool all_reduced =
      group.comms().replicas() > 1 ||
      (unit.stepper && std::ranges::any_of(unit.parts(), [](const Unit::Part& part) {
         return part.comms->replicas() > 1;
       }));
  return all_reduced ? *all_reduce_ : *reduce_;
}

void GradientReducer::step(Unit& unit) {
  Stream& last = last_stream(unit, *unit.groups().front());
  // The step of an offloaded unit is host code: its gradients have to be on the host by then.
  if (unit.options().cpu_offload.offload_params) last.record().synchronize();
  unit.stepper->issue();
  last.run([&unit] { unit.stepper->step(unit); });
  if (!outputs_.empty())
    outputs_.back().done = last.record();
  else if (!in_flight_.empty())
    in_flight_.back().done = last.record();
}

void GradientReducer::reduce_group(Unit& unit, ParamGroup& group, const UsedParams& used) {
  at::NoGradGuard no_grad;
  Reduction one = begin(unit, group, used);
  if (unit.comm_hook) {
    run_hook(one);
    return;
  }
  sum_over_shards(one);
  // On the stream that held them: their memory goes back to it.
  if (one.replicated && !one.holds) {
    const bool elsewhere = is_put_back(Race::kPartialFreedElsewhere);
    if (elsewhere) all_reduce_->wait_for(*reduce_);
    (elsewhere ? all_reduce_ : reduce_)->run([sum = one.sum, &group = one.group] {
      group.add_partial(*sum);
    });
  }
  one.used = group.used_with_partial(one.used, one.holds);
  if (one.replicated && !one.holds) sum_over_replicas(one);
  keep_result(one);
  remember(one);
}

GradientReducer::Reduction GradientReducer::begin(Unit& unit, ParamGroup& group,
                                                  const UsedParams& used) {
  // The memory of those before is given back first.
  const auto most = static_cast<std::size_t>(unit.options().reduce_scatter_max_input_buffers);
  while (in_flight_.size() >= most) release_oldest();
  at::Tensor input = group.take_gradients();
  reduce_->wait_for(*compute_);

  Reduction one{unit, group, used, std::move(input), make_pooled<at::Tensor>()};
  const UnitGroups& comms = group.comms();
  one.n = unit.options().gradient_divide_factor.value_or(comms.ranks());
  const bool half = group.dtypes().reduce == at::kHalf;
  one.averages = !half && averages_itself(unit, group);
  one.factors = half           ? divide_factors(one.n)
                : one.averages ? DivideFactors{}
                               : DivideFactors{1, one.n};
  one.replicated = comms.replicas() > 1;
  one.holds = one.replicated && !unit.all_reduce;
  one.apart = one.replicated && !one.holds && comms.shards() > 1 && !reduce_->immediate();
  return one;
}

void GradientReducer::sum_over_shards(const Reduction& one) {
  if (one.apart) make_room_for_output();
  reduce_->run(
      [one] {
        at::NoGradGuard guard;
        if (one.factors.pre > 1) divide(one.input, one.factors.pre);
        Communicator& shard = *one.group.comms().reduce;
        if (shard.size() == 1) {
          *one.sum = one.input;
          return;
        }
        // In place: this rank's part of the input is nobody else's.
        const std::int64_t numel = one.group.layout().shard_numel();
        *one.sum = one.apart ? new_tensor(numel, one.input.scalar_type(), one.input.device())
                             : tensor_over(one.input.storage(), one.input.scalar_type(),
                                           shard.rank() * numel, {numel});
        shard.reduce_scatter_into(*one.sum, one.input, one.op(), one.tag());
      },
      one.group.comms().reduce.get());
  // Else when all is done with it: remember().
  if (one.apart) in_flight_.push_back({one.input, reduce_->record()});
}

void GradientReducer::sum_over_replicas(const Reduction& one) {
  Communicator& replicas = *one.group.comms().replicate;
  all_reduce_->wait_for(*reduce_);
  all_reduce_->run(
      [sum = one.sum, &replicas, op = one.op(), tag = one.tag()] {
        at::NoGradGuard guard;
        replicas.all_reduce(*sum, op, tag);
      },
      &replicas);
}

void GradientReducer::keep_result(const Reduction& one) {
  Stream& last = last_stream(one.unit, one.group);
  if (!one.replicated) last.wait_for(*reduce_);
  // Not `one`, whose input is to be freed as soon as it was read.
  last.run([sum = one.sum, used = one.used, post = one.factors.post, holds = one.holds,
            &hook = one.unit.all_reduce_hook, &group = one.group] {
    at::NoGradGuard guard;
    if (holds) return group.hold_partial(*sum);
    if (hook) hook(*sum);
    if (post != 1) divide(*sum, post);
    group.accumulate(*sum, *used);
  });
}

void GradientReducer::remember(const Reduction& one) {
  const Event done = last_stream(one.unit, one.group).record();
  if (one.apart && !is_put_back(Race::kOutputFreedEarly))
    outputs_.push_back({one.sum, done});
  else if (!one.apart)
    in_flight_.push_back({one.input, done});
  forget_done();
}

void GradientReducer::run_hook(const Reduction& one) {
  const UnitGroups& comms = one.group.comms();
  const bool sharded = comms.strategy->shards_params;
  const DivideFactors factors = divide_factors(one.n);
  const std::shared_ptr<GradientBucket> bucket(
      new GradientBucket{sharded ? *comms.reduce : *comms.replicate,
                         one.tag(),
                         one.input,
                         {},
                         one.group.dtypes().stored,
                         one.n,
                         factors.pre,
                         factors.post});
  reduce_->run(
      [bucket, sharded, used = one.used, &group = one.group, hook = one.unit.comm_hook] {
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
  in_flight_.push_back({one.input, reduce_->record()});
  forget_done();
}

void GradientReducer::abandon() noexcept {
  try {
    while (!in_flight_.empty()) release_oldest();
    for (const Output& each : outputs_) compute_->wait(each.done);
  } catch (...) {
    // What failed there was reported where it mattered.
  }
  in_flight_.clear();
  outputs_.clear();
}

void GradientReducer::finish(bool host_reads) {
  while (!in_flight_.empty()) release_oldest();
  if (all_reduce_ != reduce_) compute_->wait_for(*all_reduce_);
  compute_->wait_for(*reduce_);
  if (host_reads) {
    all_reduce_->record().synchronize();
    reduce_->record().synchronize();
  }
  outputs_.clear();
}

}  // namespace tessera::fsdp::detail

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/fsdp/simulate.h>
#include <tessera/fsdp/world.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <set>

#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/units_of.h"
#include "fsdp_core/simulate/costs.h"
#include "fsdp_core/simulate/noted_streams.h"

namespace tessera::fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What happens while the model runs. Memory is of stand-ins, `scale` times smaller.
struct Run {
  Run(const SimulatedJob& job_, double scale_)
      : costs(job_), scale(scale_), memory_before(static_cast<double>(recycler_counts().in_use)) {}

  void compute(std::size_t unit, bool backward) {
    const SimulatedUnit& of = costs.unit(unit);
    if (!backward) activations += of.activation_bytes;
    look_at_memory();
    if (backward) activations -= of.activation_bytes;
    notes->note({.name = fmt::format("{} {}", backward ? "backward" : "forward", of.name),
                 .fixed = costs.compute(unit, backward),
                 .after = {}});
  }
  void collective(const Communicator& group, const CommRecord& record) {
    look_at_memory();
    const auto unit = costs.find(record.unit);
    if (!unit) return;
    TimedOperation operation = costs.collective(*unit, record.op, group);
    operation.name = fmt::format("{} {}", comm_op_name(record.op), costs.unit(*unit).name);
    notes->note_collective(&group, std::move(operation));
  }
  void look_at_memory() {
    const double held = static_cast<double>(recycler_counts().in_use) - memory_before;
    peak_bytes = std::max(peak_bytes, held * scale + activations);
  }

  const std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  const Costs costs;
  const double scale;
  const double memory_before;
  double activations = 0, peak_bytes = 0;
};

/// Computes nothing, for as long as a unit would.
struct Spend : torch::autograd::Function<Spend> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            std::int64_t run, std::int64_t unit) {
    context->saved_data["run"] = run;
    context->saved_data["unit"] = unit;
    context->saved_data["numel"] = weight.numel();
    context->saved_data["dtype"] = static_cast<std::int64_t>(weight.scalar_type());
    reinterpret_cast<Run*>(run)->compute(static_cast<std::size_t>(unit), false);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::int64_t run = context->saved_data["run"].toInt();
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    reinterpret_cast<Run*>(run)->compute(
        static_cast<std::size_t>(context->saved_data["unit"].toInt()), true);
    return {grads[0], at::zeros({1}, dtype).expand({context->saved_data["numel"].toInt()}), {}, {}};
  }
};

struct StandInImpl : torch::nn::Module {
  StandInImpl(Run& run_, std::size_t unit_, std::int64_t numel) : run(run_), unit(unit_) {
    weight = register_parameter("weight", at::zeros({numel}));
  }
  at::Tensor forward(at::Tensor x) {
    return Spend::apply(x, weight, reinterpret_cast<std::int64_t>(&run),
                        static_cast<std::int64_t>(unit));
  }
  Run& run;
  std::size_t unit;
  at::Tensor weight;
};
FSDP_MODULE(StandIn);

/// The units one after the other, then what the root owns itself.
struct StandInsImpl : torch::nn::Module {
  StandInsImpl(Run& run, std::vector<StandIn> units_, std::int64_t numel)
      : units(std::move(units_)), own(run, units.size(), numel) {
    for (std::size_t i = 0; i < units.size(); ++i) register_module(fmt::format("u{}", i), units[i]);
    register_module("own", own);
  }
  at::Tensor forward(at::Tensor x) {
    for (StandIn& unit : units) x = unit->forward(x);
    return own->forward(x);
  }
  std::vector<StandIn> units;
  StandIn own;
};
FSDP_MODULE(StandIns);

struct OwnStreams {
  explicit OwnStreams(std::shared_ptr<StreamFactory> factory) {
    detail::Root::use_streams(std::move(factory));
  }
  ~OwnStreams() { detail::Root::use_streams(nullptr); }
};

void check(const SimulatedJob& job) {
  const auto expect = [](bool holds, const std::string& what) {
    if (!holds) fail(Code::kInvalidArgument, "simulate: " + what);
  };
  expect(job.ranks > 0 && job.ranks_per_node > 0 && job.replicas > 0,
         "ranks, ranks_per_node and replicas are at least 1");
  expect(job.ranks % job.replicas == 0,
         fmt::format("{} ranks are not {} replicas", job.ranks, job.replicas));
  expect(job.parameter_bytes == 2 || job.parameter_bytes == 4, "parameter_bytes is 2 or 4");
  expect(job.reduce_bytes == 2 || job.reduce_bytes == 4, "reduce_bytes is 2 or 4");
  expect(job.flops_per_second > 0 && job.intra.bandwidth > 0 && job.inter.bandwidth > 0,
         "flops_per_second and bandwidths are above 0");
  expect(job.inter_rate_beside_intra > 0 && job.inter_rate_beside_intra <= 1,
         "inter_rate_beside_intra is above 0 and at most 1");
  expect(!job.units.empty(), "there is no unit");
  for (const SimulatedUnit& unit : job.units) {
    expect(unit.bytes > 0, fmt::format("unit \"{}\" has no bytes", unit.name));
    expect(unit.ranks >= 0 && (unit.ranks == 0 || job.ranks % unit.ranks == 0),
           fmt::format("unit \"{}\": {} ranks are not groups of {}", unit.name, job.ranks,
                       unit.ranks));
  }
}

Options options_of(const SimulatedJob& job, const World& world) {
  Options options = job.options;
  options.check = Check::kOff;
  options.device.reset();
  options.cpu_offload = {};
  if (!options.separate_reduce_scatter_group)  // as on devices
    options.separate_reduce_scatter_group = options.backward_prefetch != BackwardPrefetch::kPost;
  options.mixed_precision = {};
  if (job.parameter_bytes == 2) options.mixed_precision.param_dtype = at::kBFloat16;
  options.mixed_precision.reduce_dtype = job.reduce_bytes == 2 ? at::kBFloat16 : at::kFloat;
  const bool hybrid = strategy_of(options.strategy).hybrid();
  options.mesh =
      hybrid ? DeviceMesh(world, {job.replicas, job.ranks / job.replicas}, {"replicate", "shard"})
             : world.mesh();
  return options;
}

StandIns make_model(Run& run, const SimulatedJob& job, const World& world) {
  const auto numel = [&](const SimulatedUnit& unit) {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(unit.bytes / job.parameter_bytes / run.scale));
  };
  std::vector<StandIn> units;
  for (std::size_t i = 0; i < job.units.size(); ++i)
    units.emplace_back(run, i, numel(job.units[i]));
  StandIns model(run, std::move(units), numel(job.root));
  const Options options = options_of(job, world);
  for (std::size_t i = 0; i < job.units.size(); ++i) {
    Options own = options;
    if (const int few = job.units[i].ranks; few > 0)
      own.mesh = DeviceMesh(world, {job.ranks / few, few}, {"part", "shard"}).sub(1);
    fully_shard(model->units[i], own);
  }
  fully_shard(model, options);
  return model;
}

void observe_groups(StandIns& model, Run& run) {
  std::set<Communicator*> seen;
  for (const auto& [name, unit] : named_units(*model))
    for (const UnitGroups* comms : unit->all_comms())
      for (Communicator* group :
           {comms->shard.get(), comms->reduce.get(), comms->replicate.get(), comms->regather.get()})
        if (group && group->size() > 1 && seen.insert(group).second)
          group->observe(
              [&run, group](const CommRecord& record) { run.collective(*group, record); });
}

SimulatedStep report(const SimulatedJob& job, const Run& run, int begin_of_step) {
  SimulatedStep out;
  const auto& operations = run.notes->timeline.operations();
  const double begin = operations[static_cast<std::size_t>(begin_of_step)].end;
  for (std::size_t i = static_cast<std::size_t>(begin_of_step) + 1; i < operations.size(); ++i) {
    const TimedOperation& each = operations[i];
    out.seconds = std::max(out.seconds, each.end - begin);
    if (each.name.empty()) continue;
    (each.collective ? out.collective_seconds : out.compute_seconds) += each.end - each.begin;
    out.spans.push_back({run.notes->lanes()[static_cast<std::size_t>(each.lane)], each.name,
                         each.begin - begin, each.end - begin, each.collective});
  }
  out.exposed_seconds = out.seconds - out.compute_seconds;
  out.bound_seconds = run.costs.bound();
  out.peak_bytes = run.peak_bytes;
  for (std::size_t i = 0; i <= job.units.size(); ++i) out.state_bytes += run.costs.state_bytes(i);
  return out;
}

}  // namespace

SimulatedStep simulate(const SimulatedJob& job) {
  check(job);
  double largest = job.root.bytes;
  for (const SimulatedUnit& unit : job.units) largest = std::max(largest, unit.bytes);
  // Large enough that padding to equal shards is nothing.
  const double most = std::max(4096.0, 16.0 * job.ranks);
  Run run(job, largest / job.parameter_bytes / most);
  const World world = fake_world(0, job.ranks);
  const OwnStreams streams(noted_streams(run.notes, job.serial_all_reduce));
  StandIns model = make_model(run, job, world);
  observe_groups(model, run);
  int begin = 0;
  for (int step = 0; step < 3; ++step) {
    begin = run.notes->point(0);
    run.notes->settle();
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    model->forward(at::zeros({1})).sum().backward();
  }
  run.notes->timeline.play(job.inter_rate_beside_intra);
  return report(job, run, begin);
}

}  // namespace tessera::fsdp

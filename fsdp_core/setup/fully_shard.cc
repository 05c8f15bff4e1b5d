#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/fully_shard.h>

#include <algorithm>

#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/params/ownership.h"
#include "fsdp_core/runtime/fail_together.h"
#include "fsdp_core/runtime/unit.h"
#include "fsdp_core/runtime/unit_groups.h"
#include "fsdp_core/runtime/units_of.h"
#include "fsdp_core/setup/collector.h"

namespace tessera::fsdp {
namespace detail {

ForwardCall::ForwardCall(const HookPoint& point) : point_(point), unit_(point.unit) {}
ForwardCall::~ForwardCall() {
  if (use_ && !finished_) unit_->abandon_forward(*use_);
}
void ForwardCall::begin(const TensorPointers& inputs) { use_ = unit_->pre_forward(inputs); }
void ForwardCall::finish(const TensorPointers& outputs) {
  unit_->post_forward(*use_, outputs, point_);
  finished_ = true;
}

}  // namespace detail

namespace {

/// options.device by its number, where this process has it.
at::Device numbered(at::Device device) {
  if (device.is_cpu()) return at::kCPU;
  if (device.is_meta())
    fail(Code::kInvalidArgument, "options.device is meta, on which nothing is computed",
         "a module built there goes to options.device");
  const int count = c10::impl::hasDeviceGuardImpl(device.type())
                        ? c10::impl::VirtualGuardImpl(device.type()).deviceCount()
                        : 0;
  if (device.index() >= count || count == 0)
    fail(Code::kInvalidArgument,
         fmt::format("options.device is {}: this process has {} of these", device.str(), count));
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Parameters on one device; with options.device on that, or on the CPU still.
void check_devices(const std::vector<Param>& params, const std::vector<at::Tensor>& buffers,
                   const std::optional<at::Device>& wanted) {
  for (const Param& param : params) {
    const at::Device device = param.compute.device();
    if (wanted ? device == *wanted || device.is_cpu() : device == params.front().compute.device())
      continue;
    if (wanted)
      fail(Code::kInvalidArgument,
           fmt::format("parameter \"{}\" is on {}, options.device is {}", param.fqn, device.str(),
                       wanted->str()),
           "leave the module on the CPU, or move it to options.device first");
    fail(Code::kInvalidArgument,
         fmt::format("parameter \"{}\" is on {}, \"{}\" on {}", param.fqn, device.str(),
                     params.front().fqn, params.front().compute.device().str()),
         "move the module to one device first");
  }
  if (!wanted) return;
  for (const at::Tensor& buffer : buffers)
    if (buffer.device() != *wanted && !buffer.is_cpu())
      fail(Code::kInvalidArgument,
           fmt::format("a buffer is on {}, options.device is {}", buffer.device().str(),
                       wanted->str()),
           "leave the module on the CPU, or move it to options.device first");
}

/// Parameters go there shard by shard.
void move_buffers(std::vector<at::Tensor>& buffers, at::Device device) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& buffer : buffers)
    if (buffer.device() != device) buffer.set_data(buffer.to(device));
}

/// What an extension has made of parameters, and says of them.
std::string lines_of(const std::vector<Param>& params) {
  std::string out;
  for (const Param& param : params) {
    out += fmt::format("\"{}\" {} {}", param.fqn, c10::toString(param.compute.scalar_type()),
                       Shape(param.compute.sizes().vec()).to_string());
    out += param.extension_dim ? fmt::format(", a part by dim {}\n", *param.extension_dim) : "\n";
  }
  return out;
}

/// Values that are on the CPU still go over groups of `device` through copies there.
void synchronise(const Collector& found, UnitGroups& comms, const std::string& label,
                 const std::optional<at::Device>& device) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const Param& param : found.params) tensors.push_back(param.compute.detach());
  for (const at::Tensor& buffer : found.buffers) tensors.push_back(buffer.detach());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    // As bytes: buffers are of any dtype, transports are not.
    const at::Tensor values = tensor.to(device.value_or(tensor.device())).contiguous();
    const at::Tensor bytes = values.view({-1}).view(at::kByte);
    for (Communicator* comm : {comms.shard.get(), comms.replicate.get()})
      if (comm->size() > 1) comm->broadcast(bytes, 0, {label, CommPhase::kSetup});
    if (!values.is_same(tensor)) tensor.copy_(values);
  }
}

/// What this rank takes, ready to be sharded. Where ranks may fail apart (a function of the user's
/// runs, or values come from another rank), all of them throw if one does: the call can be made
/// again on all.
void collect(Collector& found, const Options& options, UnitGroups& comms) {
  const auto take = [&] {
    found.collect();
    check_devices(found.params, found.buffers, options.device);
    if (options.device) move_buffers(found.buffers, *options.device);
  };
  if (!options.param_init_fn && !options.sync_module_states && !options.extension) {
    take();
    found.prepare();
    return;
  }
  const TogetherCall call{"fully_shard",
                          {options.name, CommPhase::kSetup},
                          "nothing is sharded by this call on any rank, and what was on the meta "
                          "device is there again: call it again on every rank"};
  const std::vector<Communicator*> groups = communicators_of(comms);
  fail_together(groups, call, take);
  if (options.sync_module_states) synchronise(found, comms, options.name, options.device);
  fail_together(groups, call, [&] { found.prepare(); });
  if (options.extension)
    fail_together(groups, call, [&] {
      check_alike(groups, call.tag, "parameters", lines_of(found.params),
                  "pre_flatten and sharded_dim must answer alike on all ranks");
    });
}

GroupDtypes dtypes_of(const Options& options, at::ScalarType stored) {
  GroupDtypes dtypes{stored, stored, stored};
  if (!c10::isFloatingType(stored)) return dtypes;
  const MixedPrecision& precision = options.mixed_precision;
  if (precision.keep_full_precision) return dtypes;
  dtypes.compute = precision.param_dtype.value_or(stored);
  dtypes.reduce = precision.reduce_dtype.value_or(dtypes.compute);
  return dtypes;
}

struct GroupPlan {
  std::vector<Param> params;
  c10::Device device;
  GroupDtypes dtypes;
  std::unique_ptr<UnitLayout> layout;
};

int cut_dim(const Param& param, const Options& options) {
  if (!options.shard_placement_fn) return 0;
  const int dim = options.shard_placement_fn(param.fqn, param.compute.detach()).value_or(0);
  return dim < 0 ? dim + static_cast<int>(param.compute.dim()) : dim;
}

/// One group per (dtype, requires_grad), in order of first appearance. Throws what layouts refuse;
/// changes no parameter.
std::vector<GroupPlan> plan_groups(std::vector<Param> params, const Options& options,
                                   const UnitGroups& comms) {
  std::vector<std::pair<std::pair<at::ScalarType, bool>, std::vector<Param>>> sorted;
  for (Param& param : params) {
    const std::pair key(param.compute.scalar_type(), param.compute.requires_grad());
    auto at = std::ranges::find(sorted, key, &decltype(sorted)::value_type::first);
    if (at == sorted.end()) at = sorted.insert(sorted.end(), {key, {}});
    at->second.push_back(std::move(param));
  }
  std::vector<GroupPlan> plans;
  for (auto& [key, members] : sorted) {
    std::vector<UnitLayout::Parameter> shapes;
    for (const Param& param : members)
      shapes.push_back({param.fqn, param.compute.sizes().vec(), cut_dim(param, options)});
    const c10::Device device = options.device.value_or(members.front().compute.device());
    const GroupDtypes dtypes = dtypes_of(options, key.first);
    // Kernels of a GPU read 16 bytes at a time; on CPUs padding would only cost.
    const std::int64_t align =
        device.is_cpu() ? 1 : 16 / static_cast<std::int64_t>(c10::elementSize(dtypes.compute));
    auto layout = make_layout(options.layout, shapes, comms.shards(), comms.shard->rank(), align);
    plans.push_back({std::move(members), device, dtypes, std::move(layout)});
  }
  return plans;
}

std::vector<std::unique_ptr<ParamGroup>> make_groups(std::vector<GroupPlan> plans,
                                                     const Options& options) {
  std::vector<std::unique_ptr<ParamGroup>> groups;
  for (GroupPlan& plan : plans)
    groups.push_back(std::make_unique<ParamGroup>(std::move(plan.params), std::move(plan.layout),
                                                  plan.dtypes, plan.device,
                                                  options.cpu_offload.offload_params));
  return groups;
}

bool frees_after_forward(const Options& options) {
  const ReshardAfterForward& wanted = options.reshard_after_forward;
  if (wanted.is_group()) return wanted.group_size() > 1;
  if (!wanted.is_auto()) return wanted.yes();
  return strategy_of(options.strategy).frees_after_forward;
}

}  // namespace

namespace {

HookPoint& point_of(torch::nn::Module* module) {
  if (!module) fail(Code::kInvalidArgument, "fully_shard: no module (an empty holder)");
  auto* point = dynamic_cast<HookPoint*>(module);
  if (!point)
    fail(Code::kUnsupported,
         fmt::format("fully_shard: the forward of class {} cannot be intercepted", module->name()),
         "declare it with FSDP_MODULE(X) instead of TORCH_MODULE(X), or hold it as "
         "fsdp::Holder<XImpl>");
  if (point->unit)
    fail(Code::kInvalidArgument,
         fmt::format("fully_shard: this {} is a unit already", module->name()));
  return *point;
}

/// Each is to call the unit's hooks by itself.
void check_apart(const std::vector<torch::nn::Module*>& modules) {
  if (modules.empty()) fail(Code::kInvalidArgument, "fully_shard: a list of no modules");
  for (std::size_t m = 0; m < modules.size(); ++m)
    for (const auto& below : modules[m]->modules(/*include_self=*/true))
      for (std::size_t other = 0; other < modules.size(); ++other)
        if (below.get() == modules[other] && other != m)
          fail(Code::kInvalidArgument,
               fmt::format("fully_shard: number {} of the modules, a {}, is number {} or below it",
                           other, modules[other]->name(), m));
}

void shard_together(const std::vector<torch::nn::Module*>& modules, const Options& given) {
  for (torch::nn::Module* module : modules) point_of(module);
  check_apart(modules);
  if (given.reduce_scatter_max_input_buffers < 1)
    fail(Code::kInvalidArgument,
         fmt::format("options.reduce_scatter_max_input_buffers is {}; it is at least 1",
                     given.reduce_scatter_max_input_buffers));
  const OutsideInference outside;
  Options options = given;
  if (options.device) options.device = numbered(*options.device);
  UnitGroups comms = make_unit_groups(options);
  const bool first = comms.shard->rank() == 0 && comms.replicate->rank() == 0;
  Collector found(modules, options, options.sync_module_states && !first);
  collect(found, options, comms);
  auto plans = plan_groups(std::move(found.params), options, comms);
  found.keep();
  const bool frees = frees_after_forward(options);
  auto groups = make_groups(std::move(plans), options);
  for (const std::unique_ptr<ParamGroup>& group : groups) {
    for (const Param& param : group->params()) {
      own(param.compute, param.fqn);
      own(param.shard, param.fqn);
    }
  }
  const auto unit = std::make_shared<detail::Unit>(modules, options, std::move(comms),
                                                   std::move(groups), std::move(found.buffers));
  unit->set_reshard_after_forward(frees);
  unit->install_hooks();
  for (torch::nn::Module* module : modules) point_of(module).unit = unit;
  for (torch::nn::Module* module : modules)
    for (const auto& [fqn, inner] : named_units(*module))
      if (inner != unit) inner->outermost = unit;
}

}  // namespace

void fully_shard(const std::shared_ptr<torch::nn::Module>& module, const Options& options) {
  shard_together({module.get()}, options);
}

void fully_shard(const std::vector<ModuleRef>& modules, const Options& options) {
  std::vector<torch::nn::Module*> all;
  for (const ModuleRef& module : modules) all.push_back(module.ptr().get());
  shard_together(all, options);
}

}  // namespace tessera::fsdp

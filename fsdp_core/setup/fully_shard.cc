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

/// How each of the parameters found is cut.
struct Places {
  std::vector<ShardPlacement> asked;
  std::vector<std::shared_ptr<UnitGroups>> comms;
};

/// What options.shard_placement_fn says. `overwritten`: all values come from another rank, but for
/// those of which this rank is the first of the mesh.
std::vector<ShardPlacement> ask_placements(const Collector& found, const Options& options,
                                           bool overwritten) {
  std::vector<ShardPlacement> out(found.params.size());
  if (!options.shard_placement_fn) return out;
  for (std::size_t p = 0; p < out.size(); ++p) {
    const Param& param = found.params[p];
    out[p] = options.shard_placement_fn(param.fqn, param.compute.detach());
    if (out[p].dim < 0) out[p].dim += static_cast<int>(param.compute.dim());
    std::optional<DeviceMesh>& mesh = out[p].mesh;
    if (mesh && options.mesh && mesh->same(*options.mesh)) mesh.reset();
    if (!mesh) continue;
    const auto refuse = [&](std::string_view with, const char* hint) {
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is to be sharded over a mesh of its own: not with {}", param.fqn,
                       with),
           hint);
    };
    if (!strategy_of(options.strategy).shards_params)
      refuse(strategy_of(options.strategy).name, "take a strategy that shards");
    if (options.extension)
      refuse("options.extension, which knows the unit's mesh alone", "make it a unit of its own");
    bool first = true;
    for (int dim = 0; dim < mesh->ndim(); ++dim) first &= mesh->coordinate(dim) == 0;
    if (overwritten && first) found.check_written(param.compute);
  }
  return out;
}

/// Makes the communicators of meshes of their own: collective over their ranks.
Places make_places(std::vector<ShardPlacement> asked, const Options& options,
                   const std::shared_ptr<UnitGroups>& of_the_unit) {
  Places out{std::move(asked), {}};
  std::vector<std::shared_ptr<UnitGroups>> known{of_the_unit};
  const auto over = [&](const DeviceMesh& mesh) {
    for (const auto& each : known)
      if (each != of_the_unit && each->mesh->same(mesh)) return each;
    const auto made = std::make_shared<UnitGroups>(make_own_groups(options, mesh));
    for (const auto& each : known)
      if (each->same(*made)) return each;
    return known.emplace_back(made);
  };
  for (const ShardPlacement& each : out.asked)
    out.comms.push_back(each.mesh ? over(*each.mesh) : of_the_unit);
  return out;
}

/// Values that are on the CPU still go over groups of `device` through copies there.
void synchronise(const Collector& found, const Places& places, const UnitGroups& of_the_unit,
                 const std::string& label, const std::optional<at::Device>& device) {
  at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, const UnitGroups*>> tensors;
  for (std::size_t p = 0; p < found.params.size(); ++p)
    tensors.emplace_back(found.params[p].compute.detach(), places.comms[p].get());
  for (const at::Tensor& buffer : found.buffers)
    tensors.emplace_back(buffer.detach(), &of_the_unit);
  for (const auto& [tensor, comms] : tensors) {
    if (tensor.numel() == 0) continue;
    // As bytes: buffers are of any dtype, transports are not.
    const at::Tensor values = tensor.to(device.value_or(tensor.device())).contiguous();
    const at::Tensor bytes = values.view({-1}).view(at::kByte);
    for (Communicator* comm : {comms->shard.get(), comms->replicate.get()})
      if (comm->size() > 1) comm->broadcast(bytes, 0, {label, CommPhase::kSetup});
    if (!values.is_same(tensor)) tensor.copy_(values);
  }
}

/// What this rank takes, ready to be sharded. Where ranks may fail apart (a function of the user's
/// runs, or values come from another rank), all of them throw if one does: the call can be made
/// again on all.
Places collect(Collector& found, const Options& options, const std::shared_ptr<UnitGroups>& comms,
               bool overwritten) {
  std::vector<ShardPlacement> asked;
  const auto take = [&] {
    found.collect();
    check_devices(found.params, found.buffers, options.device);
    if (options.device) move_buffers(found.buffers, *options.device);
    if (!options.extension) asked = ask_placements(found, options, overwritten);
  };
  if (!options.param_init_fn && !options.sync_module_states && !options.extension) {
    take();
    found.prepare();
    return make_places(std::move(asked), options, comms);
  }
  const TogetherCall call{"fully_shard",
                          {options.name, CommPhase::kSetup},
                          "nothing is sharded by this call on any rank, and what was on the meta "
                          "device is there again: call it again on every rank"};
  const std::vector<Communicator*> groups = communicators_of(*comms);
  fail_together(groups, call, take);
  // (With an extension, which makes other tensors of parameters first, no mesh but the unit's.)
  if (options.extension) asked.resize(found.params.size());
  Places places = make_places(std::move(asked), options, comms);
  if (options.sync_module_states) synchronise(found, places, *comms, options.name, options.device);
  fail_together(groups, call, [&] {
    found.prepare();
    if (options.extension) places.asked = ask_placements(found, options, overwritten);
  });
  if (options.extension)
    fail_together(groups, call, [&] {
      check_alike(groups, call.tag, "parameters", lines_of(found.params),
                  "pre_flatten and sharded_dim must answer alike on all ranks");
    });
  return places;
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
  std::shared_ptr<UnitGroups> comms;
};

/// One group per (ranks, dtype, requires_grad), in order of first appearance, those over the same ranks
/// together. Throws what layouts refuse; changes no parameter.
std::vector<GroupPlan> plan_groups(std::vector<Param> params, const Options& options,
                                   const Places& places) {
  struct Sorted {
    std::shared_ptr<UnitGroups> comms;
    at::ScalarType dtype;
    bool requires_grad;
    std::vector<Param> members = {};
    std::vector<int> dims = {};
  };
  std::vector<Sorted> sorted;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const at::Tensor& tensor = params[p].compute;
    const Sorted key{places.comms[p], tensor.scalar_type(), tensor.requires_grad()};
    auto at = std::ranges::find_if(sorted, [&](const Sorted& each) {
      return each.comms == key.comms && each.dtype == key.dtype &&
             each.requires_grad == key.requires_grad;
    });
    if (at == sorted.end()) {
      const auto over_the_same =
          std::ranges::find(sorted.rbegin(), sorted.rend(), key.comms, &Sorted::comms);
      at = sorted.insert(over_the_same == sorted.rend() ? sorted.end() : over_the_same.base(), key);
    }
    at->members.push_back(std::move(params[p]));
    at->dims.push_back(places.asked[p].dim);
  }
  std::vector<GroupPlan> plans;
  for (auto& [comms, dtype, requires_grad, members, dims] : sorted) {
    std::vector<UnitLayout::Parameter> shapes;
    for (std::size_t m = 0; m < members.size(); ++m)
      shapes.push_back({members[m].fqn, members[m].compute.sizes().vec(), dims[m]});
    const c10::Device device = options.device.value_or(members.front().compute.device());
    const GroupDtypes dtypes = dtypes_of(options, dtype);
    // Kernels of a GPU read 16 bytes at a time; on CPUs padding would only cost.
    const std::int64_t align =
        device.is_cpu() ? 1 : 16 / static_cast<std::int64_t>(c10::elementSize(dtypes.compute));
    auto layout = make_layout(options.layout, shapes, comms->shards(), comms->shard->rank(), align);
    plans.push_back({std::move(members), device, dtypes, std::move(layout), comms});
  }
  return plans;
}

std::vector<std::unique_ptr<ParamGroup>> make_groups(std::vector<GroupPlan> plans,
                                                     const Options& options) {
  std::vector<std::unique_ptr<ParamGroup>> groups;
  for (GroupPlan& plan : plans)
    groups.push_back(std::make_unique<ParamGroup>(
        std::move(plan.params), std::move(plan.layout), plan.dtypes, plan.device,
        options.cpu_offload.offload_params, std::move(plan.comms)));
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
  const auto comms = std::make_shared<UnitGroups>(make_unit_groups(options));
  const bool overwritten = options.sync_module_states && !comms->is_first_rank();
  Collector found(modules, options, overwritten);
  const Places places = collect(found, options, comms, overwritten);
  auto plans = plan_groups(std::move(found.params), options, places);
  found.keep();
  const bool frees = frees_after_forward(options);
  auto groups = make_groups(std::move(plans), options);
  for (const std::unique_ptr<ParamGroup>& group : groups) {
    for (const Param& param : group->params()) {
      own(param.compute, param.fqn);
      own(param.shard, param.fqn);
    }
  }
  const auto unit = std::make_shared<detail::Unit>(modules, options, comms, std::move(groups),
                                                   std::move(found.buffers));
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

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/comm_hook.h>

#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace {

/// The average of the ranks' `gradient` into `shard`, or in place where there is none.
void reduce_average(const GradientBucket& bucket, at::Tensor& gradient, at::Tensor& shard) {
  if (bucket.predivide != 1) gradient.div_(bucket.predivide);
  at::Tensor& result = shard.defined() ? shard : gradient;
  if (shard.defined())
    bucket.comm.reduce_scatter_into(shard, gradient, Reduce::kSum, bucket.tag);
  else
    bucket.comm.all_reduce(gradient, Reduce::kSum, bucket.tag);
  if (bucket.postdivide != 1) result.div_(bucket.postdivide);
}

CommHook compress_hook(at::ScalarType dtype, const char* name) {
  CommHook hook([dtype](GradientBucket& bucket) {
    at::Tensor low = bucket.gradient.to(dtype), part;
    if (bucket.shard.defined()) part = at::empty(bucket.shard.sizes(), low.options());
    reduce_average(bucket, low, part);
    if (part.defined())
      bucket.shard.copy_(part);
    else
      bucket.gradient = low.to(bucket.parameter_dtype);
  });
  hook.low_precision = true;
  hook.name = name;
  return hook;
}

void check_unit(detail::Unit& unit) {
  for (const UnitGroups* comms : unit.all_comms())
    if (comms->strategy->hybrid())
      fail(Code::kUnsupported,
           fmt::format("register_comm_hook: {} uses {}: the hook would see its reduce-scatter and "
                       "not its all-reduce",
                       unit.label(), comms->strategy->name));
  if (unit.comm_hook)
    fail(Code::kInvalidArgument,
         fmt::format("register_comm_hook: {} has a hook already ({})", unit.label(),
                     unit.comm_hook->name),
         "register one hook, once");
}

}  // namespace

CommHook average_hook() {
  CommHook hook(
      [](GradientBucket& bucket) { reduce_average(bucket, bucket.gradient, bucket.shard); });
  hook.name = "average_hook";
  return hook;
}

CommHook fp16_compress_hook() { return compress_hook(at::kHalf, "fp16_compress_hook"); }
CommHook bf16_compress_hook() { return compress_hook(at::kBFloat16, "bf16_compress_hook"); }

GatherHook bf16_gather_hook() {
  return {[](GatherBucket& bucket) {
            const at::Tensor low = bucket.shard.to(at::kBFloat16);
            const at::Tensor all = at::empty({bucket.output.numel()}, low.options());
            bucket.comm.all_gather_into(all, low, bucket.tag);
            bucket.output.copy_(all);
          },
          "bf16_gather_hook"};
}

GatherHook float8_gather_hook() {
  return {[](GatherBucket& bucket) {
            constexpr double kLargest = 448,
                             kLeast = 1e-30;  // of e4m3; a shard of zeros has a scale
            const at::Tensor wide = bucket.shard.to(at::kFloat);
            const at::Tensor scale = (wide.abs().amax() / kLargest).clamp_min(kLeast).view({1});
            const at::Tensor low = (wide / scale).to(at::kFloat8_e4m3fn).view(at::kByte);
            const std::int64_t ranks = bucket.comm.size();
            const at::Tensor all = at::empty({bucket.output.numel()}, low.options());
            const at::Tensor scales = at::empty({ranks}, scale.options());
            bucket.comm.all_gather_into(all, low, bucket.tag);
            bucket.comm.all_gather_into(scales, scale, bucket.tag);
            bucket.output.view({ranks, -1})
                .copy_(all.view(at::kFloat8_e4m3fn).to(at::kFloat).view({ranks, -1}) *
                       scales.view({ranks, 1}));
          },
          "float8_gather_hook"};
}

void set_custom_all_gather(const ModuleRef& module, GatherHook hook) {
  const auto units = idle_units_of(module, "set_custom_all_gather");
  const auto shared = hook.function ? std::make_shared<const GatherHook>(std::move(hook)) : nullptr;
  for (const auto& unit : units) {
    unit->reshard();  // what is kept was gathered in another way
    unit->gather_hook = shared;
  }
}

void set_all_reduce_hook(const ModuleRef& module, std::function<void(const at::Tensor&)> hook) {
  for (const auto& unit : idle_units_of(module, "set_all_reduce_hook"))
    unit->all_reduce_hook = hook;
}

void register_comm_hook(const ModuleRef& module, CommHook hook) {
  if (!hook.function) fail(Code::kInvalidArgument, "register_comm_hook: the hook is empty");
  const auto units = idle_units_of(module, "register_comm_hook");
  auto* point = dynamic_cast<HookPoint*>(&*module);
  if (!point || !point->unit || !point->unit->is_root())
    fail(Code::kInvalidArgument,
         fmt::format("register_comm_hook: this {} is not the outermost unit", module->name()),
         "call it on the module whose forward the training loop calls");
  // Everything is checked before anything is registered.
  for (const auto& unit : units) check_unit(*unit);
  if (point->unit->root()->backward_ran())
    fail(Code::kInvalidArgument, "register_comm_hook: a backward of this module ran already",
         "register the hook before the first step");
  const auto shared = std::make_shared<const CommHook>(std::move(hook));
  for (const auto& unit : units) unit->comm_hook = shared;
}

}  // namespace tessera::fsdp

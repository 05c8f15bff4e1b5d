#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace {

detail::Unit& unit_at(const ModuleRef& module, const char* call) {
  auto* point = dynamic_cast<HookPoint*>(&*module);
  if (!point || !point->unit)
    fail(Code::kInvalidArgument, fmt::format("{}: this {} is no unit", call, module->name()),
         "call fsdp::fully_shard on it first");
  return *point->unit;
}

std::vector<std::weak_ptr<detail::Unit>> units_at(const std::vector<ModuleRef>& modules,
                                                  const detail::Unit& self, const char* call) {
  std::vector<std::weak_ptr<detail::Unit>> out;
  for (const ModuleRef& module : modules) {
    detail::Unit& unit = unit_at(module, call);
    if (&unit == &self)
      fail(Code::kInvalidArgument,
           fmt::format("{}: {} cannot prefetch itself", call, unit.label()));
    out.push_back(unit.weak_from_this());
  }
  return out;
}

}  // namespace

void set_modules_to_forward_prefetch(const ModuleRef& unit, const std::vector<ModuleRef>& modules) {
  constexpr const char* kCall = "set_modules_to_forward_prefetch";
  detail::Unit& self = unit_at(unit, kCall);
  self.forward_prefetch = units_at(modules, self, kCall);
}

void set_modules_to_backward_prefetch(const ModuleRef& unit,
                                      const std::vector<ModuleRef>& modules) {
  constexpr const char* kCall = "set_modules_to_backward_prefetch";
  detail::Unit& self = unit_at(unit, kCall);
  self.backward_prefetch = units_at(modules, self, kCall);
}

}  // namespace tessera::fsdp

#include "fsdp_core/runtime/units_of.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <set>

namespace tessera::fsdp {
namespace {

using Units = std::vector<std::shared_ptr<detail::Unit>>;

void collect(torch::nn::Module& module, std::set<const void*>& seen, Units& out) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children()) collect(*child.value(), seen, out);
  if (auto* point = dynamic_cast<HookPoint*>(&module); point && point->unit)
    out.push_back(point->unit);
}

}  // namespace

Units units_of(const ModuleRef& module, const char* call, bool recurse) {
  Units out;
  if (recurse) {
    std::set<const void*> seen;
    collect(*module, seen, out);
  } else if (auto* point = dynamic_cast<HookPoint*>(&*module); point && point->unit) {
    out.push_back(point->unit);
  }
  if (out.empty())
    fail(Code::kInvalidArgument, fmt::format("{}: {} holds no unit", call, module->name()),
         "call fsdp::fully_shard on it first");
  if (auto* point = dynamic_cast<HookPoint*>(&*module); point && point->unit)
    detail::Root::of(*point->unit);
  for (const auto& unit : out) detail::Root::of(*unit);
  return out;
}

Units idle_units_of(const ModuleRef& module, const char* call, bool recurse) {
  Units units = units_of(module, call, recurse);
  for (const auto& unit : units) {
    unit->root()->check_alive(*unit);
    if (unit->state().phase() != Phase::kIdle || unit->state().params() == ParamsState::kSummoned)
      fail(Code::kInvalidArgument, fmt::format("{} inside forward, backward or summon: {} is {}",
                                               call, unit->label(), unit->state().to_string()));
  }
  return units;
}

}  // namespace tessera::fsdp

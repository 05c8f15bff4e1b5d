#include "fsdp_core/runtime/units_of.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <map>
#include <set>

namespace tessera::fsdp {
namespace {

using Units = std::vector<std::shared_ptr<detail::Unit>>;

void collect(torch::nn::Module& module, const std::string& fqn, std::set<const void*>& seen,
             NamedUnits& out) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children())
    collect(*child.value(), fqn.empty() ? child.key() : fqn + "." + child.key(), seen, out);
  if (auto* point = dynamic_cast<HookPoint*>(&module); point && point->unit)
    out.emplace_back(fqn, point->unit);
}

/// A unit of several modules has as many entries: one stays, after all units below any of them, under
/// the name of the module that comes first.
void drop_repeated(NamedUnits& units) {
  std::map<const detail::Unit*, std::size_t> entries;
  for (const auto& [fqn, unit] : units) ++entries[unit.get()];
  if (entries.size() == units.size()) return;
  std::map<const detail::Unit*, std::string> names;
  std::erase_if(units, [&](auto& named) {
    auto& [fqn, unit] = named;
    names.try_emplace(unit.get(), fqn);
    if (--entries[unit.get()] > 0) return true;
    fqn = names[unit.get()];
    return false;
  });
}

}  // namespace

NamedUnits named_units(torch::nn::Module& module) {
  NamedUnits out;
  std::set<const void*> seen;
  collect(module, "", seen, out);
  drop_repeated(out);
  return out;
}

std::vector<std::string> fqns_of(torch::nn::Module& root,
                                 const std::vector<torch::nn::Module*>& modules,
                                 const std::string& first) {
  std::vector<std::string> out(modules.size(), first);
  if (modules.size() == 1) return out;
  for (const auto& each : root.named_modules(std::string(), /*include_self=*/false))
    for (std::size_t m = 0; m < modules.size(); ++m)
      if (each.value().get() == modules[m]) out[m] = each.key();
  return out;
}

Units units_of(const ModuleRef& module, const char* call, bool recurse) {
  Units out;
  if (recurse) {
    for (auto& [fqn, unit] : named_units(*module)) out.push_back(std::move(unit));
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

#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include <map>
#include <set>

#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace {

/// The modules whose parameters a unit holds, children first; those of no unit under nullptr.
using Owned = std::map<const detail::Unit*, std::vector<torch::nn::Module*>>;

void collect(torch::nn::Module& module, const detail::Unit* owner, std::set<const void*>& seen,
             Owned& out) {
  if (!seen.insert(&module).second) return;
  if (auto* point = dynamic_cast<HookPoint*>(&module); point && point->unit)
    owner = point->unit.get();
  for (const auto& child : module.named_children()) collect(*child.value(), owner, seen, out);
  out[owner].push_back(&module);
}

void apply_to_unit(detail::Unit& unit, const std::vector<torch::nn::Module*>& modules,
                   const std::function<void(torch::nn::Module&)>& function) {
  SummonOptions options;
  options.recurse = false;
  SummonFullParams full(ModuleRef(unit.module().shared_from_this()), options);
  for (torch::nn::Module* module : modules) function(*module);
  full.finish();
}

}  // namespace

void apply(const ModuleRef& module, const std::function<void(torch::nn::Module&)>& function) {
  const auto units = idle_units_of(module, "apply");
  Owned owned;
  std::set<const void*> seen;
  collect(*module, nullptr, seen, owned);
  // The other ranks wait in the next unit's gather, or will.
  run_or_abort_peers(units, "apply", [&] {
    for (const auto& unit : units) apply_to_unit(*unit, owned[unit.get()], function);
    for (torch::nn::Module* outside : owned[nullptr]) function(*outside);
  });
}

}  // namespace tessera::fsdp

// `param_names` of optimizers made of named parameters: names beside the ids, renamed with them.
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>

#include "tests/support/random_optimizer.h"

namespace param_names_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("names that groups record follow a rename, and still name the ids") {
  int renamed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Manifest manifest = random_optimizer(seed, OptimizerKind::kAdam, OptimizerForm::kIds);
    const StateEntry* recorded = manifest.state.find("optim.param_groups.0.param_names");
    if (recorded == nullptr) continue;
    const std::size_t count = recorded->value.as_list().size();
    rename_parameters(manifest, find_roles(manifest.state),
                      [](const std::string& fqn) { return "fresh." + fqn; });
    const ValueList& names =
        manifest.state.find("optim.param_groups.0.param_names")->value.as_list();
    REQUIRE(names.size() == count);
    for (const Value& name : names) CHECK(name.as_string().starts_with("fresh."));
    for (const OptimState& optim : canonical_optim_states(manifest, find_roles(manifest.state)))
      for (const OptimParameter& p : optim.parameters) {
        CHECK(p.fqn.starts_with("fresh."));
        CHECK(p.certain);
      }
    ++renamed;
  }
  CHECK(renamed > 5);
}

}  // namespace param_names_test

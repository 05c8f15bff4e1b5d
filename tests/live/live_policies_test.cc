// What each policy means for each part of a state, and that nothing is loaded where it refuses.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/support/live_saved.h"

namespace live_policies_test {

using namespace tessera;
using namespace tessera::test;

namespace {

enum class Part { kModel, kOptimizer, kOther };

/// What `name` is in the part: a tensor, or, in what is neither model nor optimizer, a value.
void add(LiveState& state, Part part, const char* name, float* data) {
  const TensorView view{DType::kFloat32, {2}, {}, data};
  if (part == Part::kModel) state.add(at({"model", name}), view);
  if (part == Part::kOptimizer) state.add(at({"optim", "state", name, "exp_avg"}), view);
  if (part == Part::kOther) state.add_value(name, Value::real(data[1]));
}

void set(LoadPolicy& policy, Part part, PartPolicy value) {
  if (part == Part::kModel) policy.model = value;
  if (part == Part::kOptimizer) policy.optimizer = value;
  if (part == Part::kOther) policy.other = value;
}

bool allows_missing(PartPolicy policy) {
  return policy == PartPolicy::kAllowMissing || policy == PartPolicy::kAllowBoth ||
         policy == PartPolicy::kSkip;
}
bool allows_unexpected(PartPolicy policy) {
  return policy == PartPolicy::kAllowUnexpected || policy == PartPolicy::kAllowBoth ||
         policy == PartPolicy::kSkip;
}

constexpr Part kParts[] = {Part::kModel, Part::kOptimizer, Part::kOther};
constexpr PartPolicy kPolicies[] = {PartPolicy::kStrict, PartPolicy::kAllowMissing,
                                    PartPolicy::kAllowUnexpected, PartPolicy::kAllowBoth,
                                    PartPolicy::kSkip};

}  // namespace

TEST_CASE("a policy is of its part alone, in every part") {
  float stored[2] = {1, 2};
  for (const Part part : kParts)
    for (const PartPolicy policy : kPolicies)
      for (const bool lacks : {false, true})
        for (const bool has_more : {false, true}) {
          CAPTURE(static_cast<int>(part), static_cast<int>(policy), lacks, has_more);
          MemoryFileSystem fs;
          save_one(fs, [&](LiveState& state) {
            for (const Part each : kParts) add(state, each, "both", stored);
            if (has_more) add(state, part, "stored", stored);
          });
          float model[2] = {9, 9}, moment[2] = {9, 9}, absent[2] = {9, 9};
          LiveState state;
          add(state, Part::kModel, "both", model);
          add(state, Part::kOptimizer, "both", moment);
          add(state, Part::kOther, "both", absent);
          if (lacks) add(state, part, "absent", absent);
          LoadPolicy policies = loading(fs);
          set(policies, part, policy);
          const bool refused =
              (lacks && !allows_missing(policy)) || (has_more && !allows_unexpected(policy));
          if (refused) {
            CHECK_THROWS_AS(load_one(state, policies), Error);
            CHECK((model[1] == 9 && moment[1] == 9));
            continue;
          }
          const LoadResult result = load_one(state, policies);
          const bool skipped = policy == PartPolicy::kSkip;
          CHECK(model[1] == (skipped && part == Part::kModel ? 9 : 2));
          CHECK(moment[1] == (skipped && part == Part::kOptimizer ? 9 : 2));
          CHECK(result.values.size() == (skipped && part == Part::kOther ? 0U : 1U));
          for (const StateEntry& value : result.values) CHECK(value.value == Value::real(2));
          CHECK(absent[1] == 9);
          CHECK(result.missing.size() == (lacks && !skipped ? 1U : 0U));
          CHECK(result.skipped.size() == (skipped ? (lacks ? 2U : 1U) : 0U));
          CHECK(result.loaded.size() == (skipped ? 2U : 3U));
          CHECK(result.unexpected.size() == (has_more ? 1U : 0U));
        }
}

}  // namespace live_policies_test

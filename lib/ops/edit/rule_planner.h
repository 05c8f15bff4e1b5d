#pragma once
// One rule on one model: the parameters it names, gathered by layer (or by whatever its names
// capture), become edits of parameters, or plain renames where both sides arrange parts alike.
//
//   layers.0.{q,k,v}.weight    -- instance {layer: 0} -->    layers.0.qkv.weight, pieces by groups
#include <tessera/ops/rules.h>

#include <map>
#include <set>
#include <string>

#include "lib/ops/edit/rule_numbers.h"
#include "lib/ops/edit/side_matcher.h"

namespace tessera {

/// What all rules of a set work on, and what they found so far.
struct RulePlan {
  const std::map<std::string, Shape>& shapes;
  RuleNumbers& numbers;
  RulesOutcome& out;
  std::set<std::string> taken = {};                            // FQNs that a rule names
  std::map<std::string, std::set<std::string>> captured = {};  // every value of each capture
};

/// Adds to `plan` what the rule does to the parameters of its side `from`. Throws kInvalidArgument
/// naming the parameter: taken by two rules, parts that are missing, shapes that do not divide;
/// kUnsupported for what no rule can say.
void plan_rule(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
               const Matchers& matchers, RulePlan& plan);

}  // namespace tessera

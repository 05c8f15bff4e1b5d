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

/// Adds to `out` what the rule does to the parameters of its side `from`, as `matcher` names them,
/// and to `taken` their FQNs. Throws kInvalidArgument naming the parameter: taken by two rules,
/// parts that are missing, shapes that do not divide; kUnsupported for what no rule can say.
void plan_rule(const TensorRule& rule, const RuleSide& from, const RuleSide& to,
               const SideMatcher& matcher, const std::map<std::string, Shape>& shapes,
               RuleNumbers& numbers, std::set<std::string>& taken, RulesOutcome& out);

}  // namespace tessera

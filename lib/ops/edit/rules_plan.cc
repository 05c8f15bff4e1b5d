#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/rules.h>

#include <algorithm>
#include <set>

#include "lib/ops/edit/rule_numbers.h"
#include "lib/ops/edit/rule_planner.h"
#include "lib/ops/edit/side_matcher.h"

namespace tessera {
namespace {

/// Parameters that this side alone names; those that all sides name alike say nothing.
/// `alike`: one of the latter.
std::map<std::string, std::size_t> deciding_matches(const RuleSet& rules, const Matchers& matchers,
                                                    const std::map<std::string, Shape>& shapes,
                                                    std::string& alike) {
  std::map<std::string, std::size_t> count;
  for (const auto& [fqn, shape] : shapes) {
    std::set<std::string> sides;
    for (const TensorRule& rule : rules.tensors)
      for (const auto& [name, side] : rule.sides)
        if (!sides.contains(name) && matchers.at(&side).match(fqn)) sides.insert(name);
    if (sides.size() == 1) ++count[*sides.begin()];
    if (sides.size() > 1) alike = fqn;
  }
  return count;
}

std::string source_side(const RuleSet& rules, const Matchers& matchers,
                        const std::map<std::string, Shape>& shapes) {
  std::vector<std::pair<std::size_t, std::string>> found;
  std::string alike;
  for (const auto& [side, count] : deciding_matches(rules, matchers, shapes, alike))
    found.emplace_back(count, side);
  if (found.empty() && !alike.empty())
    fail(Code::kInvalidArgument,
         fmt::format(
             "rules {}: \"{}\" is a name of several sides, and no other name shows which side "
             "this is",
             rules.name, printable(alike)),
         "rename with --map instead");
  if (found.empty()) {
    fail(Code::kInvalidArgument,
         fmt::format(
             "rules {} match none of the {} parameters{}", rules.name, shapes.size(),
             shapes.empty() ? "" : fmt::format(", as \"{}\"", printable(shapes.begin()->first))),
         "ckpt-inspect ls shows the names; other rules are made by hand (docs/rules.md)");
  }
  if (found.size() > 1) {
    fail(Code::kInvalidArgument,
         fmt::format("rules {}: {} names are those of {}, {} those of {}", rules.name,
                     found[0].first, found[0].second, found[1].first, found[1].second),
         "choose a part of the checkpoint with --root or --include");
  }
  return found[0].second;
}

std::string target_side(const RuleSet& rules, const std::string& from, const std::string& asked) {
  if (asked.empty()) {
    for (const std::string& side : rules.sides)
      if (side != from) return side;
  }
  if (std::ranges::find(rules.sides, asked) == rules.sides.end()) {
    fail(Code::kInvalidArgument, fmt::format("rules {} have no side \"{}\"; sides: {}", rules.name,
                                             printable(asked), fmt::join(rules.sides, ", ")));
  }
  return asked;
}

}  // namespace

RulesOutcome plan_rules(const RuleSet& rules, const RulesRequest& request,
                        const std::map<std::string, Shape>& shapes, const ModelNumber& number) {
  RulesOutcome out;
  const Matchers matchers = compile_sides(rules);
  out.from = source_side(rules, matchers, shapes);
  out.to = target_side(rules, out.from, request.side);
  RuleNumbers numbers(rules, request, number);
  std::set<std::string> taken;
  for (const TensorRule& rule : rules.tensors) {
    const auto from = rule.sides.find(out.from);
    const auto to = rule.sides.find(out.to);
    if (from == rule.sides.end() || to == rule.sides.end()) continue;
    if (out.from == out.to) {  // nothing to convert: the vocabulary alone is wanted
      for (const auto& [fqn, shape] : shapes) {
        if (!matchers.at(&from->second).match(fqn)) continue;
        taken.insert(fqn);
        if (rule.vocabulary) out.vocabulary.push_back(fqn);
      }
      continue;
    }
    plan_rule(rule, from->second, to->second, matchers.at(&from->second), shapes, numbers, taken,
              out);
  }
  for (const auto& [fqn, shape] : shapes)
    if (!taken.contains(fqn)) out.unmatched.push_back(fqn);
  return out;
}

std::vector<std::string> known_vocabulary(const std::map<std::string, Shape>& shapes) {
  std::set<std::string> found;
  for (const BuiltinRules& builtin : builtin_rules()) {
    const RuleSet rules = parse_rules(builtin.text, std::string(builtin.name));
    const Matchers matchers = compile_sides(rules);
    for (const TensorRule& rule : rules.tensors) {
      if (!rule.vocabulary) continue;
      for (const auto& [name, side] : rule.sides)
        for (const auto& [fqn, shape] : shapes)
          if (matchers.at(&side).match(fqn)) found.insert(fqn);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace tessera

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

/// What a side names among the parameters.
struct SideNames {
  std::string side;
  std::set<std::string_view> names;
  std::size_t primary = 0;  // of them by the name that would be written
};

std::vector<SideNames> named_by_sides(const RuleSet& rules, const Matchers& matchers,
                                      const std::map<std::string, Shape>& shapes) {
  std::vector<SideNames> found;
  for (const std::string& name : rules.sides) {
    SideNames side{name, {}, 0};
    for (const TensorRule& rule : rules.tensors) {
      const auto of_side = rule.sides.find(name);
      if (of_side == rule.sides.end()) continue;
      const SideMatcher& matcher = matchers.at(&of_side->second);
      for (const auto& [fqn, shape] : shapes) {
        const auto match = matcher.match(fqn, shapes);
        if (match && side.names.insert(fqn).second) side.primary += match->other_name ? 0 : 1;
      }
    }
    if (!side.names.empty()) found.push_back(std::move(side));
  }
  return found;
}

/// Whether `less` names nothing that `more` does not.
bool within(const SideNames& less, const SideNames& more) {
  return std::ranges::includes(more.names, less.names);
}

/// The side that names all that any side names; of several, the one whose own names these are.
std::string source_side(const RuleSet& rules, const Matchers& matchers,
                        const std::map<std::string, Shape>& shapes) {
  const std::vector<SideNames> found = named_by_sides(rules, matchers, shapes);
  if (found.empty()) {
    fail(Code::kInvalidArgument,
         fmt::format(
             "rules {} match none of the {} parameters{}", rules.name, shapes.size(),
             shapes.empty() ? "" : fmt::format(", as \"{}\"", printable(shapes.begin()->first))),
         "ckpt-inspect ls shows the names; other rules are made by hand (docs/rules.md)");
  }
  const SideNames* best = &found[0];
  for (const SideNames& side : found) {
    if (!within(*best, side)) continue;
    if (!within(side, *best) || side.primary > best->primary) best = &side;
  }
  for (const SideNames& side : found) {
    if (&side == best) continue;
    if (!within(side, *best)) {
      const auto alone = [](const SideNames& a, const SideNames& b) {
        return std::ranges::count_if(a.names, [&](auto name) { return !b.names.contains(name); });
      };
      fail(Code::kInvalidArgument,
           fmt::format("rules {}: {} names are those of {}, {} those of {}", rules.name,
                       alone(*best, side), best->side, alone(side, *best), side.side),
           "choose a part of the checkpoint with --root or --include");
    }
    if (within(*best, side) && side.primary == best->primary)
      fail(Code::kInvalidArgument,
           fmt::format(
               "rules {}: \"{}\" is a name of several sides, and no other name shows which side "
               "this is",
               rules.name, printable(*best->names.begin())),
           "rename with --map instead");
  }
  return best->side;
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

/// Copies that the target has and the source does not: one for each value that the source's names
/// give to what the copy's name captures.
void make_copies(const TensorRule& rule, const Matchers& matchers, RulePlan& plan) {
  const auto from = rule.sides.find(plan.out.from);
  const auto to = rule.sides.find(plan.out.to);
  if (from == rule.sides.end() || to == rule.sides.end()) return;
  for (std::size_t c = from->second.copies.size(); c < to->second.copies.size(); ++c) {
    const NamePattern& copy = matchers.at(&to->second).copies()[c];
    const std::set<std::string> captures = copy.captures();
    for (const auto& [fqn, shape] : plan.shapes) {
      const auto found = matchers.at(&from->second).match(fqn, plan.shapes);
      if (!found) continue;
      const std::string kept = matchers.at(&to->second).names()[0].fill(found->captures);
      std::vector<Captures> places{found->captures};
      for (const std::string& capture : captures) {
        if (found->captures.contains(capture)) continue;
        std::vector<Captures> more;
        for (const Captures& place : places)
          for (const std::string& value : plan.captured[capture]) {
            more.push_back(place);
            more.back()[capture] = value;
          }
        places = std::move(more);
      }
      for (const Captures& place : places) {
        plan.out.copies_made.emplace_back(copy.fill(place), kept);
        if (rule.vocabulary) plan.out.vocabulary.push_back(plan.out.copies_made.back().first);
      }
    }
  }
}

}  // namespace

RulesOutcome plan_rules(const RuleSet& rules, const RulesRequest& request,
                        const std::map<std::string, Shape>& shapes, const ModelNumber& number) {
  RulesOutcome out;
  RuleNumbers numbers(rules, request, shapes, number);
  const Matchers matchers = compile_sides(rules, numbers.of_names());
  out.from = source_side(rules, matchers, shapes);
  out.to = target_side(rules, out.from, request.side);
  RulePlan plan{shapes, numbers, out};
  for (const TensorRule& rule : rules.tensors) {
    const auto from = rule.sides.find(out.from);
    const auto to = rule.sides.find(out.to);
    if (from == rule.sides.end() || to == rule.sides.end()) continue;
    // Nothing to convert but what is turned: the vocabulary alone is wanted.
    if (out.from == out.to && from->second.turned_by.empty()) {
      for (const auto& [fqn, shape] : shapes) {
        if (!matchers.at(&from->second).match(fqn, shapes)) continue;
        plan.taken.insert(fqn);
        if (rule.vocabulary) out.vocabulary.push_back(fqn);
      }
      continue;
    }
    plan_rule(rule, from->second, to->second, matchers, plan);
  }
  if (out.from != out.to)
    for (const TensorRule& rule : rules.tensors) make_copies(rule, matchers, plan);
  for (const auto& [fqn, shape] : shapes)
    if (!plan.taken.contains(fqn)) out.unmatched.push_back(fqn);
  return out;
}

std::vector<std::string> known_vocabulary(const std::map<std::string, Shape>& shapes) {
  std::set<std::string> found;
  for (const BuiltinRules& builtin : builtin_rules()) {
    const RuleSet rules = parse_rules(builtin.text, std::string(builtin.name));
    const ModelNumber none = [](const std::string&) { return std::optional<std::int64_t>(); };
    const Matchers matchers = compile_sides(rules, RuleNumbers(rules, {}, shapes, none).of_names());
    for (const TensorRule& rule : rules.tensors) {
      if (!rule.vocabulary) continue;
      for (const auto& [name, side] : rule.sides)
        for (const auto& [fqn, shape] : shapes)
          if (matchers.at(&side).match(fqn, shapes)) found.insert(fqn);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace tessera

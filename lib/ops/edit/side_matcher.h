#pragma once
// The names of the sides of a rule set, compiled for matching. Pure; immutable once made.
#include <tessera/ops/rules.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/ops/edit/name_pattern.h"

namespace tessera {

/// The names of one side of a rule, ready to match.
class SideMatcher {
 public:
  explicit SideMatcher(const RuleSide& side)
      : names_(side.names.begin(), side.names.end()),
        alternatives_(side.alternatives.begin(), side.alternatives.end()) {}

  /// The part a name is of, and what it captures.
  std::optional<std::pair<std::size_t, Captures>> match(const std::string& fqn) const {
    for (std::size_t part = 0; part < names_.size(); ++part)
      if (auto captures = names_[part].match(fqn)) return std::pair{part, std::move(*captures)};
    for (const NamePattern& other : alternatives_)
      if (auto captures = other.match(fqn)) return std::pair{std::size_t{0}, std::move(*captures)};
    return std::nullopt;
  }

 private:
  std::vector<NamePattern> names_;
  std::vector<NamePattern> alternatives_;
};

using Matchers = std::map<const RuleSide*, SideMatcher>;

inline Matchers compile_sides(const RuleSet& rules) {
  Matchers matchers;
  for (const TensorRule& rule : rules.tensors)
    for (const auto& [name, side] : rule.sides) matchers.try_emplace(&side, side);
  return matchers;
}

}  // namespace tessera

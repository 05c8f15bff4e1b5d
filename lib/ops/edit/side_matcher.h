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

/// What a name is on a side of a rule.
struct SideMatch {
  std::size_t part = 0;
  Captures captures;
  bool other_name = false;          // one of RuleSide::alternatives
  std::optional<std::size_t> copy;  // which of RuleSide::copies
};

/// The names of one side of a rule, ready to match.
class SideMatcher {
 public:
  SideMatcher(const RuleSide& side, const PatternNumbers& numbers) {
    for (const std::string& name : side.names) names_.emplace_back(name, numbers);
    for (const OtherName& other : side.alternatives)
      alternatives_.emplace_back(other.part, NamePattern(other.name, numbers));
    for (const std::string& name : side.beside) beside_.emplace_back(name, numbers);
    for (const std::string& name : side.copies) copies_.emplace_back(name, numbers);
    for (const std::string& name : side.turned_by) turned_by_.emplace_back(name, numbers);
  }

  /// `shapes`: all names of the source, for what must stand beside.
  std::optional<SideMatch> match(const std::string& fqn,
                                 const std::map<std::string, Shape>& shapes) const {
    std::optional<SideMatch> found = match_name(fqn);
    if (!found || beside_.empty() || found->copy) return found;
    for (const NamePattern& other : beside_)
      if (shapes.contains(other.fill(found->captures))) return found;
    return std::nullopt;
  }

  /// Whether a tensor with these captures is stored as its parts stand, though the side has them
  /// transposed (RuleSide::turned_by).
  bool stands_upright(const Captures& captures, const std::map<std::string, Shape>& shapes) const {
    for (std::size_t pair = 0; pair + 1 < turned_by_.size(); pair += 2) {
      const auto matrix = shapes.find(turned_by_[pair].fill(captures));
      const auto vector = shapes.find(turned_by_[pair + 1].fill(captures));
      if (matrix == shapes.end() || vector == shapes.end()) continue;
      const int rank = matrix->second.rank(), last = vector->second.rank() - 1;
      if (rank < 2 || last < 0) continue;
      const bool fits = matrix->second[rank - 1] == vector->second[last];
      const bool fits_turned = matrix->second[rank - 2] == vector->second[last];
      if (fits != fits_turned) return fits_turned;
    }
    return false;
  }

  /// The patterns of the parts, and of the copies.
  const std::vector<NamePattern>& names() const { return names_; }
  const std::vector<NamePattern>& copies() const { return copies_; }

 private:
  std::optional<SideMatch> match_name(const std::string& fqn) const {
    for (std::size_t part = 0; part < names_.size(); ++part)
      if (auto captures = names_[part].match(fqn))
        return SideMatch{part, std::move(*captures), false, {}};
    for (const auto& [part, other] : alternatives_)
      if (auto captures = other.match(fqn)) return SideMatch{part, std::move(*captures), true, {}};
    for (std::size_t copy = 0; copy < copies_.size(); ++copy)
      if (auto captures = copies_[copy].match(fqn))
        return SideMatch{0, std::move(*captures), false, copy};
    return std::nullopt;
  }

  std::vector<NamePattern> names_;
  std::vector<std::pair<std::size_t, NamePattern>> alternatives_;
  std::vector<NamePattern> beside_;
  std::vector<NamePattern> copies_;
  std::vector<NamePattern> turned_by_;
};

using Matchers = std::map<const RuleSide*, SideMatcher>;

inline Matchers compile_sides(const RuleSet& rules, const PatternNumbers& numbers) {
  Matchers matchers;
  for (const TensorRule& rule : rules.tensors)
    for (const auto& [name, side] : rule.sides) matchers.try_emplace(&side, side, numbers);
  return matchers;
}

}  // namespace tessera

#include "lib/live/load_match.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <unordered_map>

#include "lib/live/live_merge.h"
#include "lib/state/live/wire.h"

namespace tessera {

namespace {

constexpr std::size_t kListedNames = 5;

PartPolicy policy_of(const LoadPolicy& policy, Role role) {
  switch (role) {
    case Role::kModel:
      return policy.model;
    case Role::kOptimState:
    case Role::kOptimGroup:
      return policy.optimizer;
    default:
      return policy.other;
  }
}

std::string_view part_text(Role role) {
  switch (role) {
    case Role::kModel:
      return "model";
    case Role::kOptimState:
    case Role::kOptimGroup:
      return "optimizer";
    default:
      return "other state";
  }
}

Role part_role(Role role) { return role == Role::kOptimGroup ? Role::kOptimState : role; }

bool allows_missing(PartPolicy policy) {
  return policy == PartPolicy::kAllowMissing || policy == PartPolicy::kAllowBoth;
}
bool allows_unexpected(PartPolicy policy) {
  return policy == PartPolicy::kAllowUnexpected || policy == PartPolicy::kAllowBoth ||
         policy == PartPolicy::kSkip;
}

bool one_castable(const TensorSpec& spec) {
  return spec.shape.numel() == 1 && is_castable(spec.dtype);
}
bool is_plain_number(const Value& value) {
  return value.is_number() || value.kind() == Value::Kind::kBool ||
         value.kind() == Value::Kind::kBigInt;
}

std::string found_text(const Value& value) {
  return fmt::format("the value {}", short_text(value));
}

class Matcher {
 public:
  Matcher(const LiveState& state, const Manifest& stored, const LoadPolicy& policy,
          LoadResult& result)
      : state_(state), stored_(stored), policy_(policy), result_(result) {
    for (std::uint32_t e = 0; e < stored.state.entries.size(); ++e)
      by_name_.emplace(stored.state.entries[e].name, e);
  }

  std::vector<Match> run(int rank) {
    const Roles roles = find_roles(state_.dict());
    for (std::uint32_t e = 0; e < state_.dict().entries.size(); ++e) {
      const StateEntry& entry = state_.dict().entries[e];
      if (policy_of(policy_, roles.entries[e].role) == PartPolicy::kSkip) {
        result_.skipped.push_back(entry.name);
        continue;
      }
      const auto found = by_name_.find(stored_name(state_, entry, rank));
      if (found == by_name_.end()) {
        result_.missing.push_back(entry.name);
      } else {
        match(e, found->second);
      }
    }
    return std::move(matches_);
  }

  void find_unexpected(const AskedNames& asked) {
    for (const StateEntry& entry : stored_.state.entries)
      if (!asked.names.contains(entry.name)) result_.unexpected.push_back(entry.name);
  }

 private:
  void match(std::uint32_t live, std::uint32_t stored) {
    const StateEntry& wanted = state_.dict().entries[live];
    const Value& found = stored_.state.entries[stored].value;
    if (!wanted.value.is_tensor()) {
      const bool fits = !found.is_tensor() || one_castable(spec_of(found));
      if (!fits) return differ(wanted, "a value", spec_of(found).to_string());
      add(Match::Kind::kValue, live, stored);
      return;
    }
    const TensorSpec& spec = state_.tensors()[wanted.value.tensor_index()].spec;
    if (!found.is_tensor()) {
      if (!one_castable(spec) || !is_plain_number(found))
        return differ(wanted, spec.to_string(), found_text(found));
      return add(Match::Kind::kNumber, live, stored);
    }
    const TensorSpec& there = spec_of(found);
    if (there == spec) return add(Match::Kind::kTensor, live, stored);
    const bool castable = there.shape == spec.shape && is_floating(there.dtype) &&
                          is_floating(spec.dtype) && is_castable(there.dtype) &&
                          is_castable(spec.dtype);
    const bool number = !castable && one_castable(there) && one_castable(spec);
    const bool is_cast = there.dtype != spec.dtype;
    if (!(castable || number) || (is_cast && !policy_.allow_cast))
      return differ(wanted, spec.to_string(), there.to_string());
    if (is_cast) result_.cast.push_back({wanted.name, spec.to_string(), there.to_string()});
    add(number ? Match::Kind::kNumber : Match::Kind::kTensor, live, stored);
  }

  const TensorSpec& spec_of(const Value& value) const {
    return stored_.tensors[value.tensor_index()].spec;
  }
  void add(Match::Kind kind, std::uint32_t live, std::uint32_t stored) {
    matches_.push_back({kind, live, stored});
    result_.loaded.push_back(state_.dict().entries[live].name);
  }
  void differ(const StateEntry& entry, std::string expected, std::string found) {
    result_.mismatched.push_back({entry.name, std::move(expected), std::move(found)});
  }

  const LiveState& state_;
  const Manifest& stored_;
  const LoadPolicy& policy_;
  LoadResult& result_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::vector<Match> matches_;
};

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kListedNames); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", printable(names[i]));
  if (names.size() > kListedNames) text += fmt::format(" and {} more", names.size() - kListedNames);
  return text;
}

/// Names that the policy is strict about, by part.
using Refused = std::vector<std::pair<Role, std::vector<std::string>>>;

template <class Allows>
Refused refused(const std::vector<std::string>& names, const StateDict& dict,
                const LoadPolicy& policy, const Allows& allows) {
  Refused out;
  if (names.empty()) return out;
  const Roles roles = find_roles(dict);
  std::unordered_map<std::string_view, std::size_t> number;
  for (std::size_t e = 0; e < dict.entries.size(); ++e) number.emplace(dict.entries[e].name, e);
  for (const std::string& name : names) {
    const Role role = roles.entries[number.at(name)].role;
    if (allows(role, policy_of(policy, role))) continue;
    const std::string_view part = part_text(role);
    auto at =
        std::ranges::find_if(out, [&](const auto& each) { return part_text(each.first) == part; });
    if (at == out.end()) at = out.insert(out.end(), {role, {}});
    at->second.push_back(name);
  }
  return out;
}

/// `what`: "not stored"; `value`: of the policy that would allow it.
[[noreturn]] void refuse(std::string_view what, std::string_view value, const Refused& parts) {
  std::string text, fields;
  for (const auto& [role, names] : parts) {
    const std::string_view field = role == Role::kModel                   ? "model"
                                   : part_role(role) == Role::kOptimState ? "optimizer"
                                                                          : "other";
    text +=
        fmt::format("{} of the {}: {}", text.empty() ? "," : ";", part_text(role), listed(names));
    fields += fmt::format("{}LoadPolicy::{}", fields.empty() ? "" : " and ", field);
  }
  fail(Code::kInvalidArgument, fmt::format("{}{}", what, text),
       fmt::format("{} = PartPolicy::{} {} them out", fields, value,
                   parts.size() == 1 ? "leaves" : "leave"));
}

}  // namespace

std::string stored_name(const LiveState& state, const StateEntry& entry, int rank) {
  return state.per_rank().contains(entry.name) ? rank_value_name(entry.name, rank)
                                               : std::string(entry.name);
}

Bytes encode_asked(const LiveState& state, int rank) {
  const Roles roles = find_roles(state.dict());
  WireWriter out;
  out.number(state.dict().entries.size());
  for (std::size_t e = 0; e < state.dict().entries.size(); ++e) {
    const StateEntry& entry = state.dict().entries[e];
    const Role role = roles.entries[e].role;
    const bool is_of_group = roles.entries[e].group >= 0 && !entry.value.is_tensor() &&
                             !state.per_rank().contains(entry.name);
    out.text(stored_name(state, entry, rank))
        .number(static_cast<std::uint64_t>(part_role(role)))
        .number(is_of_group ? 1 : 0);
  }
  return out.finish();
}

AskedNames join_asked(std::span<const std::vector<std::byte>> all) {
  AskedNames asked;
  for (std::size_t r = 0; r < all.size(); ++r) {
    WireReader in(all[r]);
    for (std::size_t left = in.count(3); left > 0; --left) {
      std::string name = in.text();
      asked.roles.insert(static_cast<Role>(in.number()));
      if (in.number() != 0) asked.of_groups[name].push_back(static_cast<int>(r));
      asked.names.insert(std::move(name));
    }
  }
  return asked;
}

void check_same_optimizers(const AskedNames& asked, int ranks) {
  for (const auto& [name, askers] : asked.of_groups) {
    if (askers.size() == static_cast<std::size_t>(ranks)) continue;
    int lacks = 0;
    while (std::ranges::find(askers, lacks) != askers.end()) ++lacks;
    in_tensor(name, [&] {
      fail(Code::kInvalidArgument,
           fmt::format("rank {} asks for it, rank {} does not", askers.front(), lacks),
           "give every rank the same optimizer");
    });
  }
}

std::vector<Match> match_state(const LiveState& state, const Manifest& stored,
                               const AskedNames& asked, int rank, const LoadPolicy& policy,
                               LoadResult& result) {
  Matcher matcher(state, stored, policy, result);
  std::vector<Match> matches = matcher.run(rank);
  matcher.find_unexpected(asked);
  return matches;
}

void judge_match(const LiveState& state, const Manifest& stored, const AskedNames& asked,
                 const LoadPolicy& policy, const LoadResult& result) {
  if (!policy.allow_mismatched && !result.mismatched.empty()) {
    const LoadDifference& first = result.mismatched.front();
    in_tensor(first.name, [&] {
      fail(Code::kInvalidArgument,
           fmt::format("expected {}, found {}{}", first.expected, first.found,
                       result.mismatched.size() > 1
                           ? fmt::format(" (and {} more differ)", result.mismatched.size() - 1)
                           : ""),
           "LoadPolicy::allow_mismatched leaves such tensors as they are");
    });
  }
  const Refused missing = refused(result.missing, state.dict(), policy,
                                  [](Role, PartPolicy part) { return allows_missing(part); });
  if (!missing.empty()) refuse("not stored", "kAllowMissing", missing);
  const Refused unexpected =
      refused(result.unexpected, stored.state, policy, [&](Role role, PartPolicy part) {
        return allows_unexpected(part) || !asked.roles.contains(part_role(role));
      });
  if (!unexpected.empty()) refuse("stored and not asked for", "kAllowUnexpected", unexpected);
}

}  // namespace tessera

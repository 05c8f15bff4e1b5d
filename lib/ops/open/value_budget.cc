#include "lib/ops/open/value_budget.h"

#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

/// Nodes of values, those of a shared one once.
class DistinctNodes {
 public:
  void add(const Value& root) {
    open_.push_back(&root);
    while (!open_.empty()) {
      const Value& value = *open_.back();
      open_.pop_back();
      ++count_;
      if (value.node_id() != nullptr && seen_.insert(value.node_id()).second) enter(value);
    }
  }
  std::uint64_t count() const { return count_; }

 private:
  void enter(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kString:
      case Value::Kind::kBigInt:
      case Value::Kind::kBytes:
      case Value::Kind::kByteArray:
      case Value::Kind::kBytesIo:
        count_ += value.as_string().size() / 16;
        break;
      case Value::Kind::kSize:
        count_ += value.as_size().size();
        break;
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        push(value.as_list());
        break;
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        push(value.as_dict());
        break;
      case Value::Kind::kOpaque:
        enter(value.as_opaque());
        break;
      default:
        break;
    }
  }
  void enter(const OpaqueObject& object) {
    for (const Value* part : {&object.arguments, &object.keyword_arguments, &object.state})
      open_.push_back(part);
    push(object.items);
    push(object.dict_items);
  }
  void push(const ValueList& items) {
    for (const Value& item : items) open_.push_back(&item);
  }
  void push(const ValueDict& entries) {
    for (const auto& [key, value] : entries) {
      open_.push_back(&key);
      open_.push_back(&value);
    }
  }

  std::uint64_t count_ = 0;
  std::unordered_set<const void*> seen_;
  std::vector<const Value*> open_;
};

/// What values expand to at least, each shared node looked at once: objects count as one.
class Expansion {
 public:
  std::uint64_t of(const Value& value) {
    if (value.node_id() == nullptr) return 1;
    if (const auto known = known_.find(value.node_id()); known != known_.end())
      return known->second;
    return known_[value.node_id()] = sum(1, inside(value));
  }
  static std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
    return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
  }

 private:
  std::uint64_t inside(const Value& value) {
    std::uint64_t count = 0;
    switch (value.kind()) {
      case Value::Kind::kString:
      case Value::Kind::kBytes:
      case Value::Kind::kByteArray:
      case Value::Kind::kBytesIo:
        return value.as_string().size() / 16;
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        for (const Value& item : value.as_list()) count = sum(count, of(item));
        return count;
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        for (const auto& [key, item] : value.as_dict())
          count = sum(count, sum(key.is_string() ? inside(key) : of(key), of(item)));
        return count;
      default:
        return 0;
    }
  }

  std::unordered_map<const void*, std::uint64_t> known_;
};

}  // namespace

ValueBudget printing_budget(const StateDict& state) {
  DistinctNodes nodes;
  Expansion expansion;
  std::uint64_t least = 0;
  for (const StateEntry& entry : state.entries) {
    if (entry.value.is_tensor()) continue;
    nodes.add(entry.value);
    least = Expansion::sum(least, expansion.of(entry.value));
  }
  const ValueBudget budget(kValueNodes + 2 * nodes.count());
  ValueBudget(budget).spend(least);  // before any of it is made
  return budget;
}

void require_printable(const StateDict& state) {
  const bool any_large = std::ranges::any_of(
      state.entries, [](const StateEntry& entry) { return entry.value.node_id() != nullptr; });
  if (!any_large) return;  // numbers, as a job's own values mostly are
  ValueBudget budget = printing_budget(state);
  const DescribeTensor describe = [](std::uint32_t) { return Value(); };
  for (const StateEntry& entry : state.entries)
    if (!entry.value.is_tensor()) to_json_value(entry.value, describe, budget);
}

}  // namespace tessera

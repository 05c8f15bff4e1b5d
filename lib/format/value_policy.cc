#include "lib/format/value_policy.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <utility>

namespace tessera {
namespace {

const OpaqueObject* find_in(const ValueList& items, ValueBudget& budget) {
  for (const Value& item : items)
    if (const auto* found = find_opaque(item, budget)) return found;
  return nullptr;
}

const OpaqueObject* find_in(const ValueDict& entries, ValueBudget& budget) {
  for (const auto& [key, item] : entries) {
    if (const auto* found = find_opaque(key, budget)) return found;
    if (const auto* found = find_opaque(item, budget)) return found;
  }
  return nullptr;
}

}  // namespace

const OpaqueObject* find_opaque(const Value& value, ValueBudget& budget) {
  budget.spend();
  switch (value.kind()) {
    case Value::Kind::kOpaque:
      return &value.as_opaque();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      return find_in(value.as_list(), budget);
    case Value::Kind::kDict:
      return find_in(value.as_dict(), budget);
    case Value::Kind::kOrderedDict: {
      const auto* found = find_in(value.as_dict(), budget);
      return found ? found : find_opaque(value.attributes(), budget);
    }
    default:
      return nullptr;
  }
}

bool ValuePolicy::keeps(const StateEntry& entry) {
  const std::string what = fmt::format("\"{}\"", printable(entry.name));
  if (request_.values == KeepPolicy::kError)
    fail(Code::kUnsupported, fmt::format("{} is no tensor", what), "--values keep takes it along");
  const bool model_only = request_.hf_preset && request_.values == KeepPolicy::kDefault;
  if (request_.values == KeepPolicy::kDrop || model_only) {
    drop(what, model_only ? "the hf preset holds the model's tensors only" : "values are dropped");
    return false;
  }
  const OpaqueObject* opaque = find_opaque(entry.value, budget_);
  return !opaque || keeps_opaque(what, *opaque);
}

bool ValuePolicy::keeps_attributes(const ContainerNote& container) {
  const OpaqueObject* opaque = find_opaque(container.attributes, budget_);
  return !opaque ||
         keeps_opaque(fmt::format("the attributes of \"{}\"", printable(dotted(container.path))),
                      *opaque);
}

bool ValuePolicy::keeps_opaque(const std::string& what, const OpaqueObject& opaque) {
  const std::string name = printable(opaque.global());
  if (request_.opaque == KeepPolicy::kDrop) {
    drop(what, fmt::format("it holds an object of class {}", name));
    return false;
  }
  if (request_.opaque == KeepPolicy::kError || !holds_opaque_)
    fail(Code::kUnsupported,
         fmt::format("{} holds an object of class {}{}", what, name,
                     holds_opaque_ ? "" : fmt::format(", which {} cannot hold", format_)),
         "--opaque drop leaves it out; torch-save and torch-dcp can keep it");
  if (kept_class_.empty()) kept_class_ = name;
  return true;
}

void ValuePolicy::drop(const std::string& what, const std::string& why) {
  notes_.push_back({"CK034", "warning", fmt::format("{} was left out: {}", what, why), "", ""});
}

}  // namespace tessera

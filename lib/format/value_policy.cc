#include "lib/format/value_policy.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_safety.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

std::string find_in(const ValueList& items, const ObjectSupport& support, ValueBudget& budget) {
  for (const Value& item : items)
    if (auto found = find_object(item, support, budget); !found.empty()) return found;
  return "";
}

std::string find_in(const ValueDict& entries, const ObjectSupport& support, ValueBudget& budget) {
  for (const auto& [key, item] : entries) {
    if (auto found = find_object(key, support, budget); !found.empty()) return found;
    if (auto found = find_object(item, support, budget); !found.empty()) return found;
  }
  return "";
}

/// The entry, or whose attributes they are.
std::string in_words(const LeftOut& entry) {
  const bool attributes = entry.kind == LeftOut::Kind::kAttribute;
  return fmt::format("{}\"{}\"", attributes ? "the attributes of " : "", printable(entry.name));
}

}  // namespace

std::string find_object(const Value& value, const ObjectSupport& support, ValueBudget& budget) {
  budget.spend();
  switch (value.kind()) {
    case Value::Kind::kOpaque:
      return object_class(value);
    case Value::Kind::kBackReference:
      return "builtins.object";  // it stands inside of an object
    case Value::Kind::kBytesIo:
      return support.bytes_io ? "" : "_io.BytesIO";
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      return find_in(value.as_list(), support, budget);
    case Value::Kind::kDict:
      return find_in(value.as_dict(), support, budget);
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter: {
      auto found = find_in(value.as_dict(), support, budget);
      const bool plain =
          value.kind() == Value::Kind::kDefaultDict && is_plain_factory(value.attributes());
      return found.empty() && !plain ? find_object(value.attributes(), support, budget) : found;
    }
    default:
      return "";
  }
}

void refuse_split_lists(const StateDict& state, const Roles& roles, std::string_view format) {
  struct Kinds {
    const StateEntry* tensor = nullptr;  // of the model
    const StateEntry* value = nullptr;
  };
  std::map<std::string, Kinds> lists;  // by path
  for (std::size_t i = 0; i < state.entries.size(); ++i) {
    const StateEntry& entry = state.entries[i];
    if (roles.entries[i].role != Role::kModel && entry.value.is_tensor()) continue;
    const auto item = std::ranges::find(entry.path, PathItem::Kind::kIndex,
                                        [](const PathItem& p) { return p.kind; });
    if (item == entry.path.end()) continue;
    Kinds& list = lists[dotted(Path(entry.path.begin(), item))];
    (entry.value.is_tensor() ? list.tensor : list.value) = &entry;
  }
  for (const auto& [path, list] : lists) {
    if (!list.tensor || !list.value) continue;
    fail(Code::kUnsupported,
         fmt::format(
             "the list \"{}\" holds tensors of the model (\"{}\") and values (\"{}\"), which "
             "{} keeps apart",
             printable(path), printable(list.tensor->name), printable(list.value->name), format),
         fmt::format("leave the values out: --exclude '{}', or --values drop",
                     printable(list.value->name)));
  }
}

std::vector<std::string> keep_out_danger(Manifest& manifest, KeepPolicy opaque,
                                         std::vector<Note>& notes) {
  std::vector<std::string> left_out;
  // What would be done, where it is too much to pass on.
  const auto danger = [&](const std::string& what, const Value& value) {
    const std::optional<Judgement> worst = judge_value(value);
    if (!worst || worst->safety != Safety::kDangerous) return false;
    const std::string name = printable(worst->name);
    if (opaque != KeepPolicy::kDrop)
      fail(Code::kCorrupt,
           fmt::format("refused as unsafe: in {} {} is {}, and loading the result would do that",
                       what, name, role_name(worst->role)),
           "--opaque drop leaves it out; ckpt-inspect scan lists every call in SRC");
    notes.push_back(
        {Finding::kLeftOut, Severity::kWarning,
         fmt::format("{} was left out: {} is {} in it", what, name, role_name(worst->role)), "",
         ""});
    return true;
  };
  std::vector<bool> keep;
  for (const StateEntry& entry : manifest.state.entries) {
    keep.push_back(entry.value.is_tensor() ||
                   !danger(fmt::format("\"{}\"", printable(entry.name)), entry.value));
    if (!keep.back()) left_out.push_back(entry.name);
  }
  const std::size_t known = manifest.left_out.size();
  if (!left_out.empty()) keep_entries(manifest, keep);
  for (std::size_t i = known; i < manifest.left_out.size(); ++i)
    manifest.left_out[i].reason = "loading it would call functions";
  for (ContainerNote& note : manifest.state.containers)
    if (danger(fmt::format("the attributes of \"{}\"", printable(dotted(note.path))),
               note.attributes))
      note.attributes = Value();
  return left_out;
}

bool ValuePolicy::keeps(const StateEntry& entry) {
  const LeftOut itself{LeftOut::Kind::kValue, entry.name, ""};
  if (request_.values == KeepPolicy::kError)
    fail(Code::kUnsupported, fmt::format("{} is no tensor", in_words(itself)),
         "--values keep takes it along");
  const bool model_only = request_.hf_preset && request_.values == KeepPolicy::kDefault;
  if (request_.values == KeepPolicy::kDrop || model_only) {
    drop(itself,
         model_only ? "the hf preset holds the model's tensors only" : "values are dropped");
    return false;
  }
  return keeps_value(itself, entry.value);
}

bool ValuePolicy::keeps_attributes(const ContainerNote& container) {
  if (container.kind == Value::Kind::kDefaultDict && is_plain_factory(container.attributes))
    return true;
  return keeps_value({LeftOut::Kind::kAttribute, dotted(container.path), ""}, container.attributes);
}

bool ValuePolicy::keeps_value(const LeftOut& entry, const Value& value) {
  const std::string object = find_object(value, support_, budget_);
  if (object.empty()) return true;
  const std::string name = printable(object);
  if (request_.opaque == KeepPolicy::kDrop) {
    drop(entry, fmt::format("it holds an object of class {}", name));
    return false;
  }
  if (request_.opaque == KeepPolicy::kError || !support_.opaque)
    fail(Code::kUnsupported,
         fmt::format("{} holds an object of class {}{}", in_words(entry), name,
                     support_.opaque ? "" : fmt::format(", which {} cannot hold", format_)),
         "--opaque drop leaves it out; torch-save and torch-dcp can keep it");
  note_objects(name);
  return true;
}

/// Once for the first object that is kept.
void ValuePolicy::note_objects(const std::string& class_name) {
  if (std::exchange(noted_objects_, true)) return;
  notes_.push_back(
      {Finding::kUnsafeObjects, Severity::kWarning,
       fmt::format("it holds objects of class {}: torch.load(weights_only=True) may refuse it",
                   class_name),
       "", ""});
}

void ValuePolicy::drop(LeftOut entry, std::string why) {
  notes_.push_back({Finding::kLeftOut, Severity::kWarning,
                    fmt::format("{} was left out: {}", in_words(entry), why), "", ""});
  entry.reason = std::move(why);
  left_out_.push_back(std::move(entry));
}

}  // namespace tessera

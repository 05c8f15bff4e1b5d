#include "lib/format/hdf5/own_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lib/format/hdf5/names.h"
#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/state.h"

namespace tessera::h5 {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kAttributeTag = "__attribute__";

[[noreturn]] void malformed(const char* what) {
  fail(Code::kCorrupt, fmt::format("\"{}\": {}", kStateDataset, what));
}

Value read_json(const Report& report, const Directory& directory, const std::string& file,
                std::uint64_t memory_limit_bytes) {
  const Dataset* dataset = report.find_dataset(std::string(kStateDataset));
  if (!dataset) return Value::dict({});
  if (dataset->layout != LayoutKind::kContiguous || dataset->type.size != 1)
    malformed("is no contiguous dataset of bytes");
  if (dataset->length > memory_limit_bytes)
    fail(Code::kResourceExhausted,
         fmt::format("\"{}\" of {} bytes is larger than the memory limit", kStateDataset,
                     dataset->length),
         "raise --mem-limit");
  const auto open = directory.open(file);
  if (dataset->offset > open->size_bytes() ||
      dataset->length > open->size_bytes() - dataset->offset)
    malformed("reaches past the file's end");
  Bytes text(dataset->length);
  open->read_at(dataset->offset, text);
  return parse_json(text, {.max_depth = kTaggedJsonDepth + 8});
}

std::map<std::string, std::string> string_map(const Value* json) {
  std::map<std::string, std::string> out;
  if (!json) return out;
  if (!json->is_dict()) malformed("is malformed");
  for (const auto& [key, value] : json->as_dict()) {
    if (!value.is_string()) malformed("is malformed");
    out.emplace(key.as_string(), value.as_string());
  }
  return out;
}

/// The attributes of a report by owner and name; notes which were taken.
class Attributes {
 public:
  explicit Attributes(const Report& report) {
    for (const NamedValue& v : report.values)
      if (v.is_attribute) by_place_.emplace(std::pair(v.owner, v.name), &v.value);
  }
  /// {"__attribute__": [group, name]} or [group, name, "tuple"] as tagged JSON of the value.
  Value resolve(const Value& json) {
    const Value* place =
        json.is_dict() && json.as_dict().size() == 1 ? json.find(kAttributeTag) : nullptr;
    if (!place) return json;
    if (place->kind() != Value::Kind::kList) malformed("is malformed");
    const ValueList& parts = place->as_list();
    const bool tuple = parts.size() == 3;
    if (parts.size() < 2 || parts.size() > 3 ||
        !std::ranges::all_of(parts, [](const Value& v) { return v.is_string(); }) ||
        (tuple && parts[2].as_string() != "tuple"))
      malformed("is malformed");
    const auto key = std::pair(parts[0].as_string(), parts[1].as_string());
    const auto found = by_place_.find(key);
    if (found == by_place_.end())
      fail(Code::kCorrupt,
           fmt::format("the attribute \"{}\" of \"/{}\" is gone, which holds a value",
                       printable(key.second), printable(key.first)));
    taken_.insert(key);
    ValueBudget budget(1 << 22);
    Value tagged = to_tagged_json(*found->second, {}, budget);
    if (!tuple) return tagged;
    if (tagged.kind() != Value::Kind::kList) malformed("is malformed");
    return Value::dict({{Value::string("__tuple__"), std::move(tagged)}});
  }
  bool is_taken(const NamedValue& v) const { return taken_.contains({v.owner, v.name}); }

 private:
  std::map<std::pair<std::string, std::string>, const Value*> by_place_;
  std::set<std::pair<std::string, std::string>> taken_;
};

/// What others added to the file with their own tools.
void add_foreign(const Report& report, const Attributes& attributes, StateDict& state) {
  std::set<std::string> datasets;
  for (const Dataset& dataset : report.datasets) datasets.insert(dataset.path);
  for (const NamedValue& v : report.values) {
    if (v.is_attribute && attributes.is_taken(v)) continue;
    if (v.is_attribute && v.name == "dtype" && datasets.contains(v.owner)) continue;
    if (v.is_attribute && v.owner.empty() && v.name == kVersionAttribute) continue;
    std::string name = v.owner + (v.is_attribute ? "@" + v.name : "");
    std::ranges::replace(name, '/', '.');
    state.entries.push_back({name, {key_item(name)}, v.value});
  }
}

}  // namespace

std::optional<OwnState> OwnState::read(const Report& report, const Directory& directory,
                                       const std::string& file, std::uint64_t memory_limit_bytes) {
  const auto version = std::ranges::find_if(report.values, [](const NamedValue& v) {
    return v.is_attribute && v.owner.empty() && v.name == kVersionAttribute;
  });
  if (version == report.values.end()) return std::nullopt;
  if (!version->value.is_int() || version->value.as_int() != kVersion)
    fail(Code::kUnsupported,
         fmt::format("written by a later version (\"{}\" is not {})", kVersionAttribute, kVersion));
  const Value json = read_json(report, directory, file, memory_limit_bytes);
  if (!json.is_dict()) malformed("is no JSON object");
  OwnState out;
  if (const Value* values = json.find("values")) out.values_ = *values;
  if (const Value* state = json.find("state")) out.state_ = *state;
  out.names_ = string_map(json.find("names"));
  out.aliases_ = string_map(json.find("aliases"));
  return out;
}

bool OwnState::is_state_dataset(const std::string& path) const { return path == kStateDataset; }

std::string OwnState::name_of(const std::string& dataset_path) const {
  if (const auto found = names_.find(dataset_path); found != names_.end()) return found->second;
  std::string name = dataset_path;
  std::ranges::replace(name, '/', '.');
  return name;
}

StateDict OwnState::restore(const Report& report, const std::vector<std::string>& names,
                            std::vector<bool>& embedded) const {
  Attributes attributes(report);
  std::map<std::string, std::string> documents;
  if (values_.is_dict()) {
    ValueDict values;
    // {"__dict__": [[name, value], ..]} when a name is no plain key.
    const Value* pairs = values_.find("__dict__");
    if (pairs && pairs->kind() == Value::Kind::kList) {
      ValueList list;
      for (const Value& pair : pairs->as_list()) {
        if (pair.kind() != Value::Kind::kList || pair.as_list().size() != 2)
          malformed("is malformed");
        list.push_back(Value::list({pair.as_list()[0], attributes.resolve(pair.as_list()[1])}));
      }
      values.emplace_back(Value::string("__dict__"), Value::list(std::move(list)));
    } else {
      for (const auto& [name, value] : values_.as_dict())
        values.emplace_back(name, attributes.resolve(value));
    }
    documents.emplace(st::kValues, dump_json(Value::dict(std::move(values))));
  }
  if (!state_.is_none()) documents.emplace(st::kState, dump_json(state_));
  const std::vector<SharedText> order(names.begin(), names.end());
  StateDict state = st::decode_state(order, documents, embedded);
  add_foreign(report, attributes, state);
  return state;
}

}  // namespace tessera::h5

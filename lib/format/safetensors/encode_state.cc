#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>
#include <tessera/state/aliases.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/state.h"
#include "lib/format/value_policy.h"

namespace tessera::st {
namespace {

class StateEncoder {
 public:
  StateEncoder(const Manifest& source, const TargetRequest& request, std::string_view format)
      : source_(source),
        request_(request),
        policy_(request, {.opaque = false, .bytes_io = true}, format, out_.notes, out_.left_out) {}

  EncodedState run() {
    for (const StateEntry& entry : source_.state.entries) taken_.insert(entry.name);
    for (const StateEntry& entry : source_.state.entries) {
      kept_before_.push_back(entries_.size());
      if (entry.value.is_tensor()) {
        out_.tensors.push_back({entry.name, entry.value.tensor_index()});
        add_entry(entry);
      } else if (policy_.keeps(entry)) {
        encode_value(entry);
        add_entry(entry);
      }
    }
    for (auto& tensor : inner_) out_.tensors.push_back(std::move(tensor));
    // As safetensors' own save_model records what it left out.
    for (const auto& [dropped, kept] : aliases()) out_.metadata.emplace_back(dropped, kept);
    if (!request_.hf_preset) encode_containers();
    if (!values_.empty()) emit(kValues, wrap_values());
    if (structured_ && !request_.hf_preset)
      emit(kState,
           Value::dict({{Value::string("entries"), Value::list(std::move(entries_))},
                        {Value::string("containers"), Value::list(std::move(containers_))}}));
    return std::move(out_);
  }

 private:
  /// What was left out now, and what the source has recorded already.
  std::map<std::string, std::string> aliases() const {
    std::map<std::string, std::string> all(request_.aliases.begin(), request_.aliases.end());
    for (const auto& [dropped, kept] : recorded_aliases(source_))
      if (taken_.contains(kept) && !taken_.contains(dropped)) all.emplace(dropped, kept);
    return all;
  }
  void emit(std::string_view key, const Value& json) {
    out_.metadata.emplace_back(std::string(key), dump_json(json));
  }
  void encode_value(const StateEntry& entry) {
    next_inner_ = 0;
    const auto tensor_name = [&](std::uint32_t index) { return inner_name(entry.name, index); };
    Value json = to_tagged_json(entry.value, tensor_name, budget_);
    values_.emplace_back(Value::string(entry.name), std::move(json));
    structured_ = true;
  }
  /// A tensor inside a value gets a name of its own: "<leaf>#0", not taken by any leaf.
  std::string inner_name(const std::string& leaf, std::uint32_t index) {
    while (true) {
      std::string name = fmt::format("{}#{}", leaf, next_inner_++);
      if (!taken_.insert(name).second) continue;
      inner_.push_back({name, index});
      return name;
    }
  }
  /// {"name": value}; names that are no plain JSON keys make it {"__dict__": [[name, value], ..]},
  /// by the codec's own rule.
  Value wrap_values() {
    ValueDict marks;
    for (const auto& entry : values_) marks.emplace_back(entry.first, Value());
    ValueBudget budget(kMaxWalkedValues);
    const Value shape = to_tagged_json(Value::dict(std::move(marks)), {}, budget);
    const ValueDict& first = shape.as_dict();
    if (first[0].first.as_string() != "__dict__") return Value::dict(std::move(values_));
    ValueList pairs;
    for (std::size_t i = 0; i < values_.size(); ++i)
      pairs.push_back(
          Value::list({first[0].second.as_list()[i].as_list()[0], std::move(values_[i].second)}));
    return Value::dict({{Value::string("__dict__"), Value::list(std::move(pairs))}});
  }

  static Value text(const std::string& v) {
    ValueBudget budget(1);
    return to_tagged_json(Value::string(v), {}, budget);
  }
  static Value path_json(const Path& path) {
    ValueList out;
    for (const PathItem& item : path) {
      if (item.kind == PathItem::Kind::kKey) out.push_back(text(item.key));
      if (item.kind == PathItem::Kind::kIndex) out.push_back(Value::integer(item.index));
      if (item.kind == PathItem::Kind::kIntKey)
        out.push_back(Value::dict(
            {{Value::string("int_key"), Value::string(fmt::format("{}", item.index))}}));
    }
    return Value::list(std::move(out));
  }
  void add_entry(const StateEntry& entry) {
    entries_.push_back(Value::list({text(entry.name), path_json(entry.path)}));
    const bool flat = entry.path.size() == 1 && entry.path[0].kind == PathItem::Kind::kKey &&
                      entry.path[0].key == entry.name;
    structured_ |= !flat;
  }
  void encode_containers() {
    for (const ContainerNote& note : source_.state.containers) {
      const Value attributes = policy_.keeps_attributes(note) ? note.attributes : Value();
      const auto tensor_name = [&](std::uint32_t) -> std::string {
        fail(Code::kUnsupported,
             fmt::format("attributes of \"{}\" hold a tensor", dotted(note.path)));
      };
      // As the dict itself is written, without entries: a factory has no form of its own.
      Value json = note.kind == Value::Kind::kDefaultDict
                       ? to_tagged_json(Value::default_dict({}, attributes), tensor_name, budget_)
                       : to_tagged_json(attributes, tensor_name, budget_);
      const auto* word = std::ranges::find(kContainerWords, note.kind,
                                           &std::pair<Value::Kind, std::string_view>::first);
      std::string kind(word->second);
      const std::size_t before = note.entries_before < kept_before_.size()
                                     ? kept_before_[note.entries_before]
                                     : entries_.size();
      containers_.push_back(
          Value::list({path_json(note.path), Value::string(std::move(kind)), std::move(json),
                       Value::integer(static_cast<std::int64_t>(before))}));
      structured_ = true;
    }
  }

  const Manifest& source_;
  const TargetRequest& request_;
  EncodedState out_;
  ValuePolicy policy_;
  ValueBudget budget_{kMaxWalkedValues};
  std::set<std::string> taken_;
  std::vector<NamedTensor> inner_;
  std::size_t next_inner_ = 0;
  ValueDict values_;
  ValueList entries_, containers_;
  std::vector<std::size_t> kept_before_;  // entries written before source entry i
  bool structured_ = false;
};

}  // namespace

EncodedState encode_state(const Manifest& source, const TargetRequest& request,
                          std::string_view format) {
  return StateEncoder(source, request, format).run();
}

}  // namespace tessera::st

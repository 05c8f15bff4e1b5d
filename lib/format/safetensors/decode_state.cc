#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/state.h"

namespace tessera::st {
namespace {

[[noreturn]] void malformed(std::string_view key) {
  fail(Code::kCorrupt, fmt::format("\"{}\" is malformed", key));
}

Value parse(const std::string& text) {
  return parse_json(as_bytes(text), {.max_depth = kTaggedJsonDepth});
}

class StateDecoder {
 public:
  StateDecoder(std::span<const SharedText> order,
               const std::map<std::string, std::string>& metadata, std::vector<bool>& embedded)
      : order_(order),
        metadata_(metadata),
        embedded_(embedded),
        is_ours_(metadata.contains(std::string(kValues)) ||
                 metadata.contains(std::string(kState))) {
    if (!is_ours_) return;  // tensors alone, which nothing asks for by name
    for (std::uint32_t i = 0; i < order.size(); ++i) index_.emplace(order[i], i);
  }

  StateDict run() {
    embedded_.assign(order_.size(), false);
    if (const auto found = metadata_.find(std::string(kValues)); found != metadata_.end())
      read_values(found->second);
    if (const auto found = metadata_.find(std::string(kState)); found != metadata_.end())
      read_state(found->second);
    out_.entries.reserve(out_.entries.size() + order_.size());
    for (std::uint32_t i = 0; i < order_.size(); ++i)
      if (!embedded_[i]) add_flat(order_[i], Value::tensor(i));
    for (auto& [name, value] : values_) add_flat(name, value);
    return std::move(out_);
  }

 private:
  void add_flat(const SharedText& name, Value value) {
    if (is_ours_ && !done_.emplace(name, true).second) return;  // names are distinct
    out_.entries.push_back({name, {key_item(name)}, std::move(value)});
  }

  void read_values(const std::string& text) {
    const auto tensor_index = [&](const std::string& name) {
      const auto found = index_.find(name);
      if (found == index_.end())
        fail(Code::kCorrupt,
             fmt::format("a value refers to tensor \"{}\", which is not here", name));
      embedded_[found->second] = true;
      return found->second;
    };
    const Value decoded = from_tagged_json(parse(text), tensor_index);
    if (!decoded.is_dict()) malformed(kValues);
    for (const auto& [key, value] : decoded.as_dict()) {
      if (!key.is_string() || value.is_tensor()) malformed(kValues);
      if (index_.contains(key.as_string()))
        fail(Code::kCorrupt, fmt::format("\"{}\" is a tensor and a value", key.as_string()));
      if (!value_index_.emplace(key.as_string(), values_.size()).second) malformed(kValues);
      values_.emplace_back(key.as_string(), value);
    }
  }

  void read_state(const std::string& text) {
    const Value json = parse(text);
    const Value* entries = json.find("entries");
    const Value* containers = json.find("containers");
    if (!entries || entries->kind() != Value::Kind::kList || !containers ||
        containers->kind() != Value::Kind::kList)
      malformed(kState);
    for (const Value& entry : entries->as_list()) read_entry(entry);
    for (const Value& container : containers->as_list()) read_container(container);
  }
  void read_entry(const Value& json) {
    if (json.kind() != Value::Kind::kList || json.as_list().size() != 2) malformed(kState);
    const Value name = plain(json.as_list()[0]);
    if (!name.is_string()) malformed(kState);
    const std::string& text = name.as_string();
    Value value;
    if (const auto tensor = index_.find(text); tensor != index_.end())
      value = Value::tensor(tensor->second);
    else if (const auto found = value_index_.find(text); found != value_index_.end())
      value = values_[found->second].second;
    else
      fail(Code::kCorrupt, fmt::format("\"{}\" names \"{}\", which is not here", kState, text));
    if (!done_.emplace(text, true).second) malformed(kState);
    out_.entries.push_back({text, read_path(json.as_list()[1]), std::move(value)});
  }
  void read_container(const Value& json) {
    if (json.kind() != Value::Kind::kList || json.as_list().size() != 4) malformed(kState);
    const ValueList& parts = json.as_list();
    if (!parts[1].is_string() || !parts[3].is_int() || parts[3].as_int() < 0) malformed(kState);
    const std::string& word = parts[1].as_string();
    const auto* found =
        std::ranges::find(kContainerWords, word, &std::pair<Value::Kind, std::string_view>::second);
    if (found == kContainerWords.end()) malformed(kState);
    const Value::Kind kind = found->first;
    Value attributes = plain(parts[2]);
    if (kind == Value::Kind::kDefaultDict) {
      if (attributes.kind() != kind) malformed(kState);
      attributes = Value(attributes.attributes());
    }
    out_.containers.push_back({read_path(parts[0]), kind, std::move(attributes),
                               static_cast<std::size_t>(parts[3].as_int())});
  }
  Path read_path(const Value& json) {
    if (json.kind() != Value::Kind::kList || json.as_list().size() > kMaxValueDepth)
      malformed(kState);
    Path path;
    for (const Value& item : json.as_list()) path.push_back(read_item(item));
    return path;
  }
  PathItem read_item(const Value& json) const {
    if (json.is_int()) {
      if (json.as_int() < 0) malformed(kState);
      return index_item(json.as_int());
    }
    if (const Value* number = json.find("int_key")) {
      const Value value = number->is_string() ? integer(number->as_string()) : Value();
      if (!value.is_int()) malformed(kState);
      return int_key_item(value.as_int());
    }
    const Value key = plain(json);
    if (!key.is_string()) malformed(kState);
    return key_item(key.as_string());
  }
  static Value integer(const std::string& digits) {
    return plain(Value::dict({{Value::string("__int__"), Value::string(digits)}}));
  }
  static Value plain(const Value& json) {
    return from_tagged_json(json, [](const std::string&) -> std::uint32_t { malformed(kState); });
  }

  const std::span<const SharedText> order_;
  const std::map<std::string, std::string>& metadata_;
  std::vector<bool>& embedded_;
  const bool is_ours_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::unordered_map<std::string, std::size_t> value_index_;
  std::vector<std::pair<std::string, Value>> values_;
  std::unordered_map<std::string, bool> done_;
  StateDict out_;
};

}  // namespace

StateDict decode_state(std::span<const SharedText> order,
                       const std::map<std::string, std::string>& metadata,
                       std::vector<bool>& embedded) {
  return StateDecoder(order, metadata, embedded).run();
}

}  // namespace tessera::st

#include "lib/ops/inspect/content_digests.h"

#include <fmt/format.h>
#include <tessera/format/registry.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "lib/ops/inspect/listing.h"
#include "lib/state/other_keys.h"

namespace tessera {
namespace {

/// What typed_containers() knows of a dict on the way.
struct Contents {
  Value::Kind kind = Value::Kind::kDict;
  Value attributes;
  Value other_keys;            // from texts to the keys that are neither text nor integers, or None
  std::vector<PathItem> keys;  // in order
  bool values = false;
  bool tensors = false;
};

/// The dict with its type alone: of an OrderedDict the keys as well, whose order counts, of others
/// those that are no text.
Value type_of(const Contents& contents) {
  ValueDict keys;
  const OtherKeysByText others = other_keys_by_text(contents.other_keys);
  for (const PathItem& key : contents.keys) {
    if (key.kind == PathItem::Kind::kIntKey)
      keys.emplace_back(Value::integer(key.index), Value());
    else if (const auto other = others.find(key.key); other != others.end())
      keys.emplace_back(*other->second, Value());
    else if (contents.kind == Value::Kind::kOrderedDict)
      keys.emplace_back(Value::string(key.key), Value());
  }
  return Value::dict_of(contents.kind, std::move(keys), contents.attributes);
}

/// The top dict, whose name is "": of another kind than a plain one, where it holds values alone.
void add_top_kind(const StateDict& state, std::map<std::string, Contents>& found) {
  const auto note = std::ranges::find_if(state.containers, [](const ContainerNote& container) {
    return container.path.empty() && container.kind != Value::Kind::kDict;
  });
  const bool holds_tensors = std::ranges::any_of(
      state.entries, [](const StateEntry& entry) { return entry.value.is_tensor(); });
  if (note == state.containers.end() || holds_tensors) return;
  Contents& top = found[""];
  top.kind = note->kind;
  top.attributes = note->attributes;
  top.other_keys = other_top_keys(state);
  top.values = !state.entries.empty();
  for (const StateEntry& entry : state.entries)
    if (!entry.path.empty() && (top.keys.empty() || top.keys.back() != entry.path[0]))
      top.keys.push_back(entry.path[0]);
}

/// Keys of the top dict that are no text, below which no tensor lies.
void add_top_keys(const StateDict& state, std::map<std::string, Contents>& found) {
  const Value other_keys = other_top_keys(state);
  const OtherKeysByText others = other_keys_by_text(other_keys);
  const auto is_no_text = [&](const StateEntry& entry) {
    return !entry.path.empty() &&
           (entry.path[0].kind == PathItem::Kind::kIntKey || others.contains(entry.path[0].key));
  };
  std::set<std::string> with_tensors;
  for (const StateEntry& entry : state.entries)
    if (is_no_text(entry) && entry.value.is_tensor()) with_tensors.insert(entry.path[0].text());
  for (const StateEntry& entry : state.entries) {
    if (!is_no_text(entry) || with_tensors.contains(entry.path[0].text())) continue;
    Contents& top = found[""];
    top.values = true;
    top.other_keys = other_keys;
    if (top.keys.empty() || top.keys.back() != entry.path[0]) top.keys.push_back(entry.path[0]);
  }
}

/// Ids of parameters, which formats spell as text or as numbers.
bool is_optimizer_state(std::string_view name) {
  return name == "state" || name.ends_with(".state");
}

}  // namespace

TensorDigests inner_digests(OpenedCheckpoint& checkpoint, bool quantizers,
                            const TransferOptions& transfer, TensorDigests known) {
  // Copies that a format keeps beside the state are in no value: nobody asks for them here.
  std::set<std::uint32_t> used;
  const auto use = [&used](std::uint32_t index) { used.insert(index); };
  for (const StateEntry& entry : checkpoint.manifest.state.entries)
    if (!entry.value.is_tensor()) for_each_tensor(entry.value, use);
  if (quantizers) {
    for (const QuantParams& quant : checkpoint.manifest.quant) {
      for_each_tensor(quant.scales, use);
      for_each_tensor(quant.zero_points, use);
    }
  }
  for (const auto& [index, digest] : known) used.erase(index);
  const std::vector<std::uint32_t> inside(used.begin(), used.end());
  if (inside.empty()) return known;
  checkpoint.locate(inside, read_options(transfer));
  TransferOptions quiet = transfer;
  quiet.progress = nullptr;
  const auto digests = hash_tensors(checkpoint.manifest, *checkpoint.directory, inside, quiet);
  for (std::size_t i = 0; i < inside.size(); ++i) known[inside[i]] = digests[i];
  return known;
}

ContentDigests::ContentDigests(OpenedCheckpoint& checkpoint, const TransferOptions& transfer,
                               TensorDigests known)
    : manifest_(checkpoint.manifest),
      tensors_(inner_digests(checkpoint, true, transfer, std::move(known))),
      digester_([this](std::uint32_t index) { return tensor_text(index); }) {}

std::string ContentDigests::tensor_text(std::uint32_t index) {
  const StoredTensor& tensor = manifest_.tensors.at(index);
  const auto extents = tensor.spec.shape.extents();
  return content_text({{},
                       std::string(torch_name(tensor.spec.dtype)),
                       {extents.begin(), extents.end()},
                       tensors_.at(index),
                       quantizer(tensor)});
}

std::optional<HashedQuantizer> ContentDigests::quantizer(const StoredTensor& tensor) {
  if (tensor.quant < 0) return std::nullopt;
  const QuantParams& params = manifest_.quant.at(static_cast<std::size_t>(tensor.quant));
  HashedQuantizer out{params.scheme, params.scale, params.zero_point, params.axis, {}, {}};
  if (params.scales.is_none()) return out;
  // A digester of their own: one that is at work on a tensor must not start another text.
  ValueDigester vectors([this](std::uint32_t index) { return tensor_text(index); });
  out.scales = vectors.digest(params.scales);
  out.zero_points = vectors.digest(params.zero_points);
  return out;
}

std::vector<HashedValue> ContentDigests::values() {
  std::vector<HashedValue> out;
  for (const StateEntry& entry : manifest_.state.entries) {
    if (entry.value.is_tensor()) continue;
    out.push_back({entry.name, digester_.digest(entry.value), digester_.is_whole(entry.value)});
  }
  for (const auto& [name, empty] : typed_containers(manifest_.state)) {
    ValueDigester own([this](std::uint32_t index) { return tensor_text(index); });
    out.push_back({name, own.digest(empty), true, true});
  }
  return out;
}

std::map<std::string, Value> typed_containers(const StateDict& state) {
  std::map<std::string, Contents> found;
  for (const ContainerNote& note : state.containers) {
    const bool of_other_keys = is_of_other_keys(note);
    if (note.path.empty() || (note.kind == Value::Kind::kDict && !of_other_keys)) continue;
    Contents& dict = found[dotted(note.path)];
    if (of_other_keys) {
      dict.other_keys = note.attributes;
      continue;
    }
    dict.kind = note.kind;
    dict.attributes = note.attributes;
  }
  add_top_kind(state, found);
  if (!found.contains("")) add_top_keys(state, found);
  for (const StateEntry& entry : state.entries) {
    std::string name;
    for (std::size_t i = 0; i + 1 < entry.path.size(); ++i) {
      name += fmt::format("{}{}", i ? "." : "", entry.path[i].text());
      const PathItem& key = entry.path[i + 1];
      auto dict = found.find(name);
      if (dict == found.end()) {
        if (key.kind != PathItem::Kind::kIntKey || is_optimizer_state(name)) continue;
        dict = found.try_emplace(name).first;
      }
      Contents& contents = dict->second;
      if (contents.keys.empty() || contents.keys.back() != key) contents.keys.push_back(key);
      (entry.value.is_tensor() ? contents.tensors : contents.values) = true;
    }
  }
  std::map<std::string, Value> out;
  for (const auto& [name, contents] : found)
    if (!contents.tensors && (contents.values || contents.keys.empty()))
      out.emplace(name, type_of(contents));
  return out;
}

std::string not_compared_words(std::uint64_t values) {
  return fmt::format(
      "{} value{} objects that could not be followed to the end (too deep, or cycles within "
      "cycles): these parts were not compared",
      values, values == 1 ? " holds" : "s hold");
}

std::string dict_words(const Value& dict) {
  switch (dict.kind()) {
    case Value::Kind::kOrderedDict:
      return fmt::format("OrderedDict{}: {} keys",
                         dict.attributes().is_none() ? "" : " with attributes",
                         dict.as_dict().size());
    case Value::Kind::kDefaultDict: {
      const Value& factory = dict.attributes();
      const bool object = factory.kind() == Value::Kind::kOpaque;
      return fmt::format("defaultdict({})", object ? factory.as_opaque().global() : "None");
    }
    case Value::Kind::kCounter:
      return "Counter";
    default:
      if (dict.as_dict().empty()) return "dict";
      return std::ranges::all_of(dict.as_dict(), &Value::is_int, &ValueDict::value_type::first)
                 ? "dict with integers as keys"
                 : "dict with keys that are no text";
  }
}

bool keep_container_types(std::string_view format_a, std::string_view format_b) {
  const auto keeps = [](std::string_view format) {
    return capabilities_of(format).keeps_containers;
  };
  return format_a == format_b || (keeps(format_a) && keeps(format_b));
}

bool keep_top_kind(std::string_view format_a, std::string_view format_b) {
  const auto loses = [](std::string_view format) {
    return capabilities_of(format).loses_dict_kinds;
  };
  return format_a == format_b || (!loses(format_a) && !loses(format_b));
}

std::map<std::string, Value> with_plain_top(std::map<std::string, Value> types) {
  const auto top = types.find("");
  if (top == types.end()) return types;
  ValueDict keys;
  for (const auto& [key, none] : top->second.as_dict())
    if (!key.is_string()) keys.emplace_back(key, none);
  if (keys.empty())
    types.erase(top);
  else
    top->second = Value::dict(std::move(keys));
  return types;
}

}  // namespace tessera

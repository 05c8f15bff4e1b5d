#include "lib/ops/open/dequantize.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "lib/base/append.h"
#include "lib/ops/open/model_config.h"
#include "lib/state/quant_parts.h"
#include "lib/state/quant_weights.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

constexpr std::int64_t kMostSmall = std::int64_t{64} << 20;  // bytes

/// Whether any tensor may be codes, by its type or by a table beside it.
bool may_have_codes(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors, [](const StoredTensor& tensor) {
    const DType dtype = tensor.spec.dtype;
    const bool small = dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt32 ||
                       (is_floating(dtype) && bits(dtype) <= 8);
    return small || tensor.name.ends_with(".quant_map");
  });
}

/// torchao's classes whose numbers are (qdata - zero_point) * scale.
bool is_affine_class(std::string_view name) {
  return name.starts_with("torchao.") &&
         (name.ends_with(".Int8Tensor") || name.ends_with(".Float8Tensor") ||
          name.ends_with(".IntxUnpackedToInt8Tensor"));
}

/// The weight that an object of such a class is; nullopt for others.
std::optional<QuantWeight> affine_weight(const StateEntry& entry) {
  if (!is_affine_class(wrapper_class(entry.value))) return std::nullopt;
  QuantWeight weight{std::string(entry.name), QuantMethod::kSubclass, kNoTensor, {}};
  for (const auto& [name, tensor] : wrapper_parts(entry.value)) {
    if (name == "qdata")
      weight.codes = tensor;
    else if (name == "scale")
      weight.parts.emplace_back(QuantSlot::kScale, tensor);
    else if (name == "zero_point")
      weight.parts.emplace_back(QuantSlot::kZero, tensor);
    else if (name.starts_with("act_quant_"))
      weight.parts.emplace_back(QuantSlot::kActivation, tensor);
    else
      return std::nullopt;
  }
  if (weight.codes == kNoTensor) return std::nullopt;
  return weight;
}

/// The state's entry of each tensor.
std::unordered_map<std::uint32_t, std::size_t> entries_by_tensor(const StateDict& state) {
  std::unordered_map<std::uint32_t, std::size_t> entries;
  for (std::size_t i = 0; i < state.entries.size(); ++i)
    if (state.entries[i].value.is_tensor())
      entries.emplace(state.entries[i].value.tensor_index(), i);
  return entries;
}

class Dequantizer {
 public:
  Dequantizer(OpenedCheckpoint& checkpoint, const TransferOptions& transfer, bool strict)
      : checkpoint_(checkpoint),
        manifest_(checkpoint.manifest),
        transfer_(transfer),
        strict_(strict),
        facts_(quant_facts_beside(*checkpoint.directory)),
        parts_(quant_parts(manifest_)),
        found_(quant_weights(manifest_, facts_)) {}

  Dequantized run(DType dtype) {
    find_objects();
    refuse_lone();
    find_unread();
    entries_ = entries_by_tensor(manifest_.state);
    for (const auto& [codes, entry] : objects_) entries_.emplace(codes, entry);
    keep_.assign(manifest_.state.entries.size(), true);
    locate();
    for (const QuantWeight& weight : found_.weights) replace(weight, dtype);
    refuse_unknown();
    const std::size_t known = manifest_.left_out.size();
    keep_entries(manifest_, keep_);
    for (std::size_t i = known; i < manifest_.left_out.size(); ++i)
      manifest_.left_out[i].reason = "a part of a quantized weight, which is written as numbers";
    for (const auto& [scheme, count] : schemes_)
      out_.detail += fmt::format("{}{} ({})", out_.detail.empty() ? "" : "; ", scheme, count);
    return std::move(out_);
  }

 private:
  /// Weights that are objects of a class with several tensors.
  void find_objects() {
    const StateDict& state = manifest_.state;
    Roles roles;
    for (std::size_t e = 0; e < state.entries.size(); ++e) {
      const StateEntry& entry = state.entries[e];
      const std::string name = wrapper_class(entry.value);
      if (name.empty()) continue;
      if (roles.entries.empty()) roles = find_roles(state);
      const Role role = roles.entries[e].role;
      if (role == Role::kOptimState || role == Role::kOptimGroup) continue;
      if (std::optional<QuantWeight> weight = affine_weight(entry)) {
        objects_.emplace(weight->codes, e);
        found_.weights.push_back(std::move(*weight));
        continue;
      }
      const std::string why =
          fmt::format("how an object of class {} becomes numbers is not known here", name);
      if (strict_)
        in_tensor(entry.name, [&] { fail(Code::kUnsupported, why, "--exclude leaves it out"); });
      stays(std::string(entry.name), why);
    }
  }

  void refuse_lone() {
    for (const LoneCodes& lone : found_.lone) {
      const StoredTensor& tensor = manifest_.tensors[lone.codes];
      if (strict_)
        in_tensor(tensor.name, [&] {
          fail(Code::kUnsupported,
               fmt::format("its codes cannot be made numbers: {}", printable(lone.why)),
               "--exclude leaves it out; without --dequantize it is moved as it is");
        });
      stays(tensor.name, lone.why);
    }
    if (strict_ && found_.weights.empty() && !has_codes())
      fail(Code::kInvalidArgument, "--dequantize: no quantized weights are here", "leave it out");
  }

  /// Numbers in the modules of codes that no method's row takes.
  void find_unread() {
    std::unordered_set<std::uint32_t> taken;
    for (const QuantWeight& weight : found_.weights)
      for (const auto& [slot, part] : weight.parts) taken.insert(part);
    for (std::uint32_t i = 0; i < parts_.size(); ++i) {
      const QuantPart part = parts_[i];
      const bool numbers = part == QuantPart::kScale || part == QuantPart::kZeroPoint ||
                           part == QuantPart::kTable || part == QuantPart::kOther;
      if (numbers && !taken.contains(i))
        unread_.emplace(std::string(module_of(manifest_.tensors[i].name)), i);
    }
  }

  /// What a weight's numbers depend on besides must be known, too.
  void require_all_read(const QuantWeight& weight) const {
    const auto unread = unread_.find(std::string(module_of(weight.name)));
    if (unread == unread_.end()) return;
    in_tensor(manifest_.tensors[weight.codes].name, [&] {
      fail(Code::kUnsupported,
           fmt::format("\"{}\" cannot be dequantized: what \"{}\" beside it means is not known",
                       printable(weight.name), printable(manifest_.tensors[unread->second].name)),
           "leave it out with --exclude, or keep the model quantized");
    });
  }

  bool has_codes() const { return std::ranges::find(parts_, QuantPart::kCodes) != parts_.end(); }

  void stays(const std::string& name, const std::string& why) {
    out_.notes.push_back(
        {Finding::kCast, Severity::kInfo, fmt::format("shown as stored: {}", why), "", name});
  }

  /// All parts: what is viewed is read later.
  void locate() {
    std::vector<std::uint32_t> needed;
    for (const QuantWeight& weight : found_.weights) {
      needed.push_back(weight.codes);
      for (const auto& [slot, part] : weight.parts) needed.push_back(part);
    }
    std::ranges::sort(needed);
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    ReadOptions read;
    read.memory_limit_bytes = transfer_.memory_limit_bytes;
    read.threads = transfer_.threads;
    read.check_crc = transfer_.check_crc;
    checkpoint_.locate(needed, read);
    const auto bytes = [this](std::uint32_t index) {
      const StoredTensor& tensor = manifest_.tensors[index];
      if (tensor.spec.size_bytes() > kMostSmall)
        in_tensor(tensor.name, [] {
          fail(Code::kUnsupported, "it is too large for what it should be: a part of a weight");
        });
      if (!reader_) reader_.emplace(manifest_, *checkpoint_.directory, transfer_);
      Bytes out(static_cast<std::size_t>(tensor.spec.size_bytes()));
      reader_->read(index, 0, tensor.spec.shape.numel(), out);
      return out;
    };
    small_ = {bytes, [bytes](std::uint32_t index) { return parse_json(bytes(index)); }};
  }

  void replace(const QuantWeight& weight, DType dtype) {
    const auto entry = entries_.find(weight.codes);
    if (entry == entries_.end()) return;
    QuantRecipe made;
    try {
      require_all_read(weight);
      made = recipe(weight, entry->second);
    } catch (const Error& error) {
      if (strict_ || error.code() != Code::kUnsupported) throw;
      return stays(weight.name, error.status().message);
    }
    reader_.reset();  // the tables that it reads by grow
    rename(manifest_.state.entries[entry->second], weight);
    manifest_.state.entries[entry->second].value = Value::tensor(add(weight, made, dtype));
    manifest_.tensors[weight.codes].embedded = true;
    for (const auto& [slot, part] : weight.parts) {
      manifest_.tensors[part].embedded = true;
      const auto found = entries_.find(part);
      if (found != entries_.end() && found->second != entry->second) keep_[found->second] = false;
    }
    understood_.insert(weight.codes);
    ++schemes_[made.scheme];
    ++out_.tensors;
    out_.changes.push_back(
        fmt::format("{}: {} -> {}", weight.name, made.scheme, torch_name(dtype)));
  }

  QuantRecipe recipe(const QuantWeight& weight, std::size_t entry) const {
    if (!objects_.contains(weight.codes)) return quant_recipe(manifest_, weight, facts_, small_);
    const std::optional<TensorSpec> seen = wrapper_spec(manifest_.state.entries[entry].value);
    QuantFacts facts;
    if (seen) facts.dtype = seen->dtype;
    QuantRecipe made = quant_recipe(manifest_, weight, facts, small_);
    if (!seen || seen->shape != made.shape)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" cannot be dequantized: its codes have another shape than it",
                       printable(weight.name)),
           "leave it out with --exclude, or keep the model quantized");
    return made;
  }

  std::uint32_t add(const QuantWeight& weight, QuantRecipe& made, DType dtype) {
    const StoredTensor codes = manifest_.tensors[weight.codes];
    StoredTensor tensor;
    tensor.name = weight.name;
    tensor.spec = {dtype, made.shape};
    if (dtype != DType::kFloat32) tensor.cast_from = DType::kFloat32;
    tensor.kind = TensorKind::kParam;
    tensor.is_parameter = codes.is_parameter;
    tensor.always_sharded = codes.always_sharded;
    tensor.first_chunk = manifest_.chunks.size();
    tensor.chunk_count = 1;
    Source source;
    source.kind = Source::Kind::kComputed;
    source.side = static_cast<std::uint32_t>(manifest_.computed.size());
    manifest_.computed.push_back(std::move(made.elements));
    manifest_.chunks.add(Chunk::whole_of(Box::whole(made.shape)), source);
    manifest_.tensors.push_back(std::move(tensor));
    return static_cast<std::uint32_t>(manifest_.tensors.size() - 1);
  }

  /// "q.weight_packed" -> "q.weight", in the path as well.
  void rename(StateEntry& entry, const QuantWeight& weight) {
    const std::string old = entry.name;
    if (old == weight.name) return;
    const bool taken = std::ranges::any_of(
        manifest_.state.entries, [&](const StateEntry& e) { return e.name == weight.name; });
    if (taken)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is there already, and would be what \"{}\" means",
                       printable(weight.name), printable(old)));
    std::size_t common = 0;
    while (common < old.size() && common < weight.name.size() && old[common] == weight.name[common])
      ++common;
    const std::string last = entry.path.empty() ? std::string() : entry.path.back().text();
    const std::string ending = old.substr(common);
    entry.name = weight.name;
    if (!entry.path.empty() && last.ends_with(ending)) {
      entry.path.back() =
          key_item(last.substr(0, last.size() - ending.size()) + weight.name.substr(common));
    } else {
      entry.path = {key_item(weight.name)};
    }
  }

  /// Codes of methods that the table does not have the arithmetic of.
  void refuse_unknown() {
    for (std::uint32_t i = 0; i < parts_.size(); ++i) {
      const StoredTensor& tensor = manifest_.tensors[i];
      if (parts_[i] != QuantPart::kCodes || tensor.embedded || understood_.contains(i)) continue;
      const std::string why = "how its codes become numbers is not known here";
      if (strict_)
        in_tensor(tensor.name, [&] { fail(Code::kUnsupported, why, "--exclude leaves it out"); });
      stays(tensor.name, why);
    }
  }

  OpenedCheckpoint& checkpoint_;
  Manifest& manifest_;
  const TransferOptions& transfer_;
  bool strict_;
  QuantFacts facts_;
  std::vector<QuantPart> parts_;  // of the tensors that are stored
  QuantWeights found_;
  std::unordered_map<std::uint32_t, std::size_t> entries_;
  std::unordered_map<std::uint32_t, std::size_t> objects_;  // entries of objects, by their codes
  std::vector<bool> keep_;
  std::optional<TensorReader> reader_;
  SmallTensors small_;
  std::unordered_set<std::uint32_t> understood_;
  std::unordered_map<std::string, std::uint32_t> unread_;  // by module
  std::map<std::string, std::size_t> schemes_;
  Dequantized out_;
};

}  // namespace

std::vector<Note> lone_codes(const Manifest& manifest, const Directory& directory) {
  std::vector<Note> notes;
  if (!may_have_codes(manifest)) return notes;
  for (const LoneCodes& lone : quant_weights(manifest, quant_facts_beside(directory)).lone)
    notes.push_back({Finding::kMissingScale, Severity::kWarning,
                     "its codes cannot be made numbers: " + lone.why, "",
                     manifest.tensors[lone.codes].name});
  return notes;
}

Dequantized dequantize(OpenedCheckpoint& checkpoint, DType dtype, const TransferOptions& transfer) {
  return Dequantizer(checkpoint, transfer, true).run(dtype);
}

std::vector<Note> view_dequantized(OpenedCheckpoint& checkpoint, const TransferOptions& transfer) {
  return Dequantizer(checkpoint, transfer, false).run(DType::kFloat32).notes;
}

}  // namespace tessera

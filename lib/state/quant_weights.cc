#include "lib/state/quant_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace tessera {
namespace {

struct SlotName {
  QuantSlot slot;
  std::string_view text;
};

/// How one method names what belongs to a weight. `codes` ends the name of the codes, `weight` takes
/// its place in the plain weight's name. Parts begin with the rest of that name.
struct MethodRow {
  QuantMethod method;
  std::string_view codes;
  std::string_view weight;
  /// The first is the part without which the codes are no numbers.
  std::array<SlotName, 8> parts;
};

using enum QuantSlot;

/// The first row whose codes and first part are there says what the weight is.
constexpr std::array kMethods = {
    // bitsandbytes: q.weight, q.weight.absmax, ...
    MethodRow{QuantMethod::kFourBit,
              "weight",
              "weight",
              {{{kTable, "weight.quant_map"},
                {kScale, "weight.absmax"},
                {kNestedScale, "weight.nested_absmax"},
                {kNestedTable, "weight.nested_quant_map"},
                {kState, "weight.quant_state.bitsandbytes__nf4"},
                {kState, "weight.quant_state.bitsandbytes__fp4"}}}},
    MethodRow{
        QuantMethod::kScb, "weight", "weight", {{{kScale, "SCB"}, {kActivation, "weight_format"}}}},
    // GPTQ, AWQ
    MethodRow{QuantMethod::kTurned,
              "qweight",
              "weight",
              {{{kScale, "scales"}, {kZero, "qzeros"}, {kGroups, "g_idx"}}}},
    // compressed-tensors
    MethodRow{QuantMethod::kPacked,
              "_packed",
              "",
              {{{kScale, "_scale"},
                {kSecondScale, "_global_scale"},
                {kZero, "_zero_point"},
                {kGroups, "_g_idx"},
                {kShape, "_shape"}}}},
    MethodRow{QuantMethod::kMxfp4, "_blocks", "", {{{kScale, "_scales"}}}},
    // torchao in safetensors: q._weight_qdata
    MethodRow{QuantMethod::kSubclass,
              "._weight_qdata",
              ".weight",
              {{{kScale, "._weight_scale"}, {kZero, "._weight_zero_point"}}}},
    // tensor subclasses by their attributes
    MethodRow{QuantMethod::kSubclass, "#qdata", "", {{{kScale, "#scale"}, {kZero, "#zero_point"}}}},
    MethodRow{QuantMethod::kSubclass, "#codes", "", {{{kScale, "#scale"}, {kTable, "#qmap"}}}},
    // optimum-quanto
    MethodRow{QuantMethod::kScaled, "._data", "", {{{kScale, "._scale"}}}},
    // NVIDIA modelopt
    MethodRow{QuantMethod::kNvfp4, "", "", {{{kSecondScale, "_scale_2"}, {kScale, "_scale"}}}},
    // NVIDIA modelopt's stacked experts: experts.gate_up_proj, experts.gate_up_proj_weight_scale
    MethodRow{QuantMethod::kNvfp4,
              "",
              "",
              {{{kSecondScale, "_weight_scale_2"}, {kScale, "_weight_scale"}}}},
    MethodRow{QuantMethod::kScaled, "", "", {{{kScale, "_weight_scale"}}}},
    // DeepSeek-V3, transformers' fine-grained fp8
    MethodRow{QuantMethod::kScaled, "", "", {{{kScale, "_scale_inv"}}}},
    // compressed-tensors, FBGEMM, modelopt; the first form of DeepSeek-V3
    MethodRow{QuantMethod::kScaled,
              "",
              "",
              {{{kScale, "_scale"}, {kZero, "_zero_point"}, {kGroups, "_g_idx"}}}},
    MethodRow{QuantMethod::kScaled, "weight", "weight", {{{kScale, "scale"}}}},
    // ComfyUI
    MethodRow{QuantMethod::kScaled, "weight", "weight", {{{kScale, "scale_weight"}}}},
};

/// Scales of a module's inputs and outputs, whatever the method.
constexpr std::array kActivationNames = {std::string_view("input_scale"),
                                         std::string_view("input_scale_inv"),
                                         std::string_view("output_scale"),
                                         std::string_view("activation_scale"),
                                         std::string_view("activation_scale_inv"),
                                         std::string_view("input_scale_ub"),
                                         std::string_view("input_global_scale"),
                                         std::string_view("input_zero_point"),
                                         std::string_view("act_scale"),
                                         std::string_view("scale_input")};

std::string_view module_prefix(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot + 1);
}

bool is_one_byte(DType dtype) { return dtype == DType::kUInt8 || dtype == DType::kFloat4E2M1FnX2; }

bool is_small_float(DType dtype) {
  return is_floating(dtype) && bits(dtype) == 8 && dtype != DType::kFloat8E8M0Fnu;
}

/// Whether a tensor can be the codes of the method.
bool can_be_codes(QuantMethod method, const StoredTensor& tensor) {
  const DType dtype = tensor.spec.dtype;
  switch (method) {
    case QuantMethod::kFourBit:
      return true;  // any type: the table beside it decides
    case QuantMethod::kScb:
      return dtype == DType::kInt8;
    case QuantMethod::kTurned:
      return dtype == DType::kInt32;
    case QuantMethod::kPacked:
      return dtype == DType::kInt32 || is_one_byte(dtype);
    case QuantMethod::kMxfp4:
    case QuantMethod::kNvfp4:
      return is_one_byte(dtype);
    case QuantMethod::kScaled:
      return (is_small_float(dtype) || dtype == DType::kInt8) && tensor.spec.shape.rank() > 0;
    case QuantMethod::kSubclass:
      return is_small_float(dtype) || dtype == DType::kInt8 || is_one_byte(dtype);
  }
  return false;
}

class WeightFinder {
 public:
  WeightFinder(const Manifest& manifest, const QuantFacts& facts)
      : manifest_(manifest), facts_(facts), taken_(manifest.tensors.size()) {
    by_name_.reserve(manifest.tensors.size());
    for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i)
      if (!manifest.tensors[i].embedded) by_name_.emplace(manifest.tensors[i].name, i);
  }

  QuantWeights find() {
    for (const auto& [name, index] : by_name_) in_order_.push_back(index);
    std::ranges::sort(in_order_);
    for (const std::uint32_t index : in_order_) find_weight(index);
    for (const std::uint32_t index : in_order_) find_lone(index);
    return std::move(out_);
  }

 private:
  std::optional<std::uint32_t> at(std::string_view before, std::string_view text) const {
    const auto found = by_name_.find(std::string(before) + std::string(text));
    if (found == by_name_.end()) return std::nullopt;
    return found->second;
  }

  static std::optional<std::string_view> stem(const MethodRow& row, std::string_view name) {
    if (!name.ends_with(row.codes)) return std::nullopt;
    const std::string_view before = name.substr(0, name.size() - row.codes.size());
    const bool whole_leaf = row.codes.empty() || row.codes.front() == '_' ||
                            row.codes.front() == '.' || row.codes.front() == '#';
    if (!whole_leaf && !before.empty() && before.back() != '.') return std::nullopt;
    return before;
  }

  void find_weight(std::uint32_t index) {
    const StoredTensor& tensor = manifest_.tensors[index];
    for (const MethodRow& row : kMethods) {
      const auto before = stem(row, tensor.name);
      if (!before || !can_be_codes(row.method, tensor) || !at(*before, row.parts[0].text)) continue;
      if (row.method == QuantMethod::kScaled && !scales_fit(index, *at(*before, row.parts[0].text)))
        continue;
      QuantWeight weight{std::string(*before) + std::string(row.weight), row.method, index, {}};
      for (const SlotName& part : row.parts)
        if (const auto found = part.text.empty() ? std::nullopt : at(*before, part.text))
          weight.parts.emplace_back(part.slot, *found);
      for (const std::string_view text : kActivationNames)
        for (const auto& found :
             {at(module_prefix(weight.name), text), at(weight.name + "_", text)})
          if (found &&
              std::ranges::find(weight.parts, *found,
                                &std::pair<QuantSlot, std::uint32_t>::second) == weight.parts.end())
            weight.parts.emplace_back(kActivation, *found);
      taken_[index] = true;
      for (const auto& [slot, part] : weight.parts) taken_[part] = true;
      out_.weights.push_back(std::move(weight));
      return;
    }
  }

  /// A float beside the codes (of MXFP8 an exponent in a byte), that is no larger than they are.
  bool scales_fit(std::uint32_t codes, std::uint32_t scale) {
    const TensorSpec& of = manifest_.tensors[scale].spec;
    const bool exponents =
        of.dtype == DType::kUInt8 && is_small_float(manifest_.tensors[codes].spec.dtype);
    return codes != scale && (is_floating(of.dtype) || exponents) &&
           of.shape.numel() <= manifest_.tensors[codes].spec.shape.numel();
  }

  bool is_part_or_codes(std::uint32_t index) const { return taken_[index]; }

  /// Codes without scales: by a name that nothing else has, or in a model whose other weights of
  /// this kind have them. Plain 8-bit floats, cast without a scale, are healthy.
  void find_lone(std::uint32_t index) {
    const StoredTensor& tensor = manifest_.tensors[index];
    const std::string_view name = tensor.name;
    for (const std::string_view ending : {"_packed", "_blocks", "qweight"}) {
      const bool codes = ending == "_blocks"
                             ? is_one_byte(tensor.spec.dtype)
                             : tensor.spec.dtype == DType::kInt32 ||
                                   (ending == "_packed" && is_one_byte(tensor.spec.dtype));
      if (!name.ends_with(ending) || !codes || is_part_or_codes(index)) continue;
      if (at(module_prefix(name), "scale_packed")) continue;  // of sparse weights, for one kernel
      const std::string_view before = name.substr(0, name.size() - ending.size());
      const std::string wanted = std::string(before) + (ending == "_packed"   ? "_scale"
                                                        : ending == "_blocks" ? "_scales"
                                                                              : "scales");
      out_.lone.push_back({index, fmt::format("\"{}\" is not there", wanted)});
      return;
    }
    const bool matrix = tensor.spec.shape.rank() >= 2 && is_small_float(tensor.spec.dtype);
    if (!matrix || is_part_or_codes(index)) return;
    const QuantWeight* like = scaled_like(tensor.spec.dtype);
    const bool by_config = facts_.method == "fp8" || facts_.method == "fbgemm_fp8";
    if (like == nullptr && !by_config) return;
    for (const std::string_view text : {"_scale_inv", "_scale"})
      if (const auto scale = at(name, text)) {
        out_.lone.push_back({index, fmt::format("\"{}{}\" is {}, which cannot be its scale", name,
                                                text, manifest_.tensors[*scale].spec.to_string())});
        return;
      }
    out_.lone.push_back(
        {index, like != nullptr
                    ? fmt::format("it has no scale, as \"{}\" has", like->name)
                    : std::string("it has no scale, and config.json says that weights have one")});
  }

  const QuantWeight* scaled_like(DType dtype) const {
    const auto found = std::ranges::find_if(out_.weights, [&](const QuantWeight& weight) {
      return weight.method == QuantMethod::kScaled &&
             manifest_.tensors[weight.codes].spec.dtype == dtype;
    });
    return found == out_.weights.end() ? nullptr : &*found;
  }

  const Manifest& manifest_;
  const QuantFacts& facts_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  std::vector<std::uint32_t> in_order_;
  std::vector<bool> taken_;  // tensors that belong to a weight
  QuantWeights out_;
};

std::optional<std::int64_t> whole_at(const Value& dict, const char* key) {
  const Value* found = dict.find(key);
  if (found == nullptr || !found->is_int()) return std::nullopt;
  return found->as_int();
}

/// [rows, columns]
std::optional<std::pair<std::int64_t, std::int64_t>> block_at(const Value& dict, const char* key) {
  const Value* block = dict.find(key);
  if (block == nullptr || block->kind() != Value::Kind::kList || block->as_list().size() != 2 ||
      !block->as_list()[0].is_int() || !block->as_list()[1].is_int())
    return std::nullopt;
  return std::pair(block->as_list()[0].as_int(), block->as_list()[1].as_int());
}

/// What compressed-tensors' schemes by layers say of weights, where all say the same.
template <class Read>
auto common_of_groups(const Value& groups, const Read& read)
    -> decltype(read(std::declval<const Value&>())) {
  decltype(read(std::declval<const Value&>())) common;
  if (!groups.is_dict()) return common;
  for (const auto& [key, scheme] : groups.as_dict()) {
    const Value* weights = scheme.find("weights");
    const auto said = weights == nullptr ? std::nullopt : read(*weights);
    if (!said || (common && *common != *said)) return std::nullopt;
    common = said;
  }
  return common;
}

std::string text_at(const Value& dict, const char* key) {
  const Value* found = dict.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : std::string();
}

/// A model of text and images may have it beside what is said of the text model.
const Value* quantization_of(const Value& config) {
  for (const Value* of : {&config, config.find("text_config")}) {
    if (of == nullptr) continue;
    for (const char* key : {"quantization_config", "compression_config"})
      if (const Value* found = of->find(key)) return found;
  }
  return nullptr;
}

}  // namespace

std::optional<std::uint32_t> QuantWeight::find(QuantSlot slot) const {
  for (const auto& [of, index] : parts)
    if (of == slot) return index;
  return std::nullopt;
}

QuantFacts quant_facts(const Value& config) {
  QuantFacts facts;
  for (const char* key : {"dtype", "torch_dtype"})
    if (!facts.dtype) facts.dtype = dtype_from_torch_name(text_at(config, key));
  facts.bits = whole_at(config, "quantization_bit");  // ChatGLM's
  const Value* quantization = quantization_of(config);
  if (quantization == nullptr) return facts;
  facts.method = text_at(*quantization, "quant_method");
  facts.bits = whole_at(*quantization, "bits");
  facts.group_size = whole_at(*quantization, "group_size");
  facts.stored_zeros = text_at(*quantization, "checkpoint_format") == "gptq_v2";
  facts.words_by_column = facts.method == "awq" && text_at(*quantization, "version") == "gemv";
  facts.block = block_at(*quantization, "weight_block_size");
  if (const Value* groups = quantization->find("config_groups"); groups != nullptr) {
    if (!facts.block)
      facts.block = common_of_groups(
          *groups, [](const Value& weights) { return block_at(weights, "block_structure"); });
    facts.packed_bits = common_of_groups(
        *groups, [](const Value& weights) { return whole_at(weights, "num_bits"); });
  }
  return facts;
}

QuantWeights quant_weights(const Manifest& manifest, const QuantFacts& facts) {
  return WeightFinder(manifest, facts).find();
}

}  // namespace tessera

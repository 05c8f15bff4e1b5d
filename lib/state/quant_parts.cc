#include "lib/state/quant_parts.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

namespace tessera {

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

namespace {

/// Where a part's name stands, seen from the codes.
enum class Place : std::uint8_t {
  kWeight,  // the weight's name and `text`
  kModule,  // the module's name, a dot and `text`
  kCache,   // a dot and `text` at the end of any name: of the attention's cache, not of a weight
};

struct PartName {
  Place place;
  std::string_view text;
  QuantPart part;
};

/// Names beside codes, and who writes them.
constexpr std::array kPartNames = {
    // DeepSeek-V3 and transformers' fine-grained fp8: weight_scale_inv, gate_up_proj_scale_inv
    PartName{Place::kWeight, "_scale_inv", QuantPart::kScale},
    // compressed-tensors, FBGEMM fp8, NVIDIA modelopt, Llama 4's experts, BitNet
    PartName{Place::kWeight, "_scale", QuantPart::kScale},
    PartName{Place::kWeight, "_zero_point", QuantPart::kZeroPoint},
    PartName{Place::kWeight, "_shape", QuantPart::kLayout},
    PartName{Place::kWeight, "_g_idx", QuantPart::kLayout},
    // NVFP4: a scale of blocks in fp8 and one of the tensor (modelopt, compressed-tensors)
    PartName{Place::kWeight, "_scale_2", QuantPart::kScale},
    PartName{Place::kWeight, "_global_scale", QuantPart::kScale},
    // modelopt's and transformers' stacked experts: gate_up_proj_weight_scale
    PartName{Place::kWeight, "_weight_scale", QuantPart::kScale},
    PartName{Place::kWeight, "_weight_scale_2", QuantPart::kScale},
    PartName{Place::kWeight, "_input_scale", QuantPart::kScale},
    PartName{Place::kWeight, "_output_scale", QuantPart::kScale},
    PartName{Place::kWeight, "_activation_scale", QuantPart::kScale},
    // MXFP4 of GPT-OSS: gate_up_proj_blocks, gate_up_proj_scales
    PartName{Place::kWeight, "_scales", QuantPart::kScale},
    // bitsandbytes' 4 bits, doubly quantized: weight.absmax, weight.nested_quant_map
    PartName{Place::kWeight, ".absmax", QuantPart::kScale},
    PartName{Place::kWeight, ".quant_map", QuantPart::kTable},
    PartName{Place::kWeight, ".nested_absmax", QuantPart::kScale},
    PartName{Place::kWeight, ".nested_quant_map", QuantPart::kTable},
    PartName{Place::kWeight, ".quant_state.bitsandbytes__nf4", QuantPart::kLayout},
    PartName{Place::kWeight, ".quant_state.bitsandbytes__fp4", QuantPart::kLayout},
    // optimum-quanto: weight._data, weight._scale, weight._shift
    PartName{Place::kWeight, "._scale", QuantPart::kScale},
    PartName{Place::kWeight, "._shift", QuantPart::kZeroPoint},
    PartName{Place::kWeight, "._zeropoint", QuantPart::kZeroPoint},
    // tensor subclasses by their attributes (wrapper_parts), torchao in safetensors
    PartName{Place::kWeight, "#scale", QuantPart::kScale},
    PartName{Place::kWeight, "#zero_point", QuantPart::kZeroPoint},
    PartName{Place::kWeight, "#qmap", QuantPart::kTable},
    // bitsandbytes' 8 bits
    PartName{Place::kModule, "SCB", QuantPart::kScale},
    PartName{Place::kModule, "weight_format", QuantPart::kLayout},
    // AWQ, GPTQ, EETQ, HQQ, MLX (weight of uint32 with scales and biases)
    PartName{Place::kModule, "scales", QuantPart::kScale},
    PartName{Place::kModule, "scale", QuantPart::kScale},
    PartName{Place::kModule, "qzeros", QuantPart::kZeroPoint},
    PartName{Place::kModule, "zeros", QuantPart::kZeroPoint},
    PartName{Place::kModule, "zero", QuantPart::kZeroPoint},
    PartName{Place::kModule, "biases", QuantPart::kZeroPoint},
    PartName{Place::kModule, "g_idx", QuantPart::kLayout},
    PartName{Place::kModule, "weight_scales", QuantPart::kScale},
    // scales of activations
    PartName{Place::kModule, "input_scale", QuantPart::kScale},
    PartName{Place::kModule, "output_scale", QuantPart::kScale},
    PartName{Place::kModule, "activation_scale", QuantPart::kScale},
    PartName{Place::kModule, "input_scale_ub", QuantPart::kScale},
    PartName{Place::kModule, "input_global_scale", QuantPart::kScale},
    PartName{Place::kModule, "input_zero_point", QuantPart::kZeroPoint},
    PartName{Place::kModule, "pre_quant_scale", QuantPart::kScale},
    // codebooks: AQLM, VPTQ, QuIP#, HIGGS, SqueezeLLM; EXL2
    PartName{Place::kModule, "codebooks", QuantPart::kTable},
    PartName{Place::kModule, "centroids", QuantPart::kTable},
    PartName{Place::kModule, "res_centroids", QuantPart::kTable},
    PartName{Place::kModule, "outlier_centroids", QuantPart::kTable},
    PartName{Place::kModule, "centroids.weight", QuantPart::kTable},
    PartName{Place::kModule, "res_centroids.weight", QuantPart::kTable},
    PartName{Place::kModule, "outlier_centroids.weight", QuantPart::kTable},
    PartName{Place::kModule, "weight_scale", QuantPart::kScale},
    PartName{Place::kModule, "weight_bias", QuantPart::kZeroPoint},
    PartName{Place::kModule, "SU", QuantPart::kScale},
    PartName{Place::kModule, "SV", QuantPart::kScale},
    PartName{Place::kModule, "Wscale", QuantPart::kScale},
    PartName{Place::kModule, "tables", QuantPart::kTable},
    PartName{Place::kModule, "tables2", QuantPart::kTable},
    PartName{Place::kModule, "lookup_table", QuantPart::kTable},
    PartName{Place::kModule, "q_scale", QuantPart::kScale},
    PartName{Place::kModule, "q_scale_max", QuantPart::kScale},
    // vLLM's names for a quantized key and value cache
    PartName{Place::kCache, "k_scale", QuantPart::kCache},
    PartName{Place::kCache, "v_scale", QuantPart::kCache},
    PartName{Place::kCache, "q_scale", QuantPart::kCache},
    PartName{Place::kCache, "prob_output_scale", QuantPart::kCache},
};

/// What modelopt keeps in a module of its own beside the weight, `weight_quantizer._amax`: of a
/// weight that is codes, or of one that is rounded while it trains.
constexpr std::array kQuantizerNames = {
    std::string_view("_amax"), std::string_view("_global_amax"), std::string_view("_scale"),
    std::string_view("_double_scale"), std::string_view("_pre_quant_scale")};

/// What torch.ao's observers keep.
constexpr std::array kObserverNames = {std::string_view("min_val"), std::string_view("max_val"),
                                       std::string_view("eps"), std::string_view("histogram")};

/// Endings of codes that are no part of the weight's name: the last that fits.
constexpr std::array kCodeEndings = {std::string_view("_packed"),     std::string_view("_blocks"),
                                     std::string_view("_qdata"),      std::string_view("._data"),
                                     std::string_view("#codes"),      std::string_view("#qdata"),
                                     std::string_view("._data._data")};

/// What a module calls its codes, where the parts go by the module's name.
constexpr std::array kCodeNames = {
    std::string_view("weight"),  std::string_view("qweight"),  std::string_view("weight_packed"),
    std::string_view("W_q"),     std::string_view("codes"),    std::string_view("indices"),
    std::string_view("Qidxs"),   std::string_view("q_weight"), std::string_view("qweight2"),
    std::string_view("trellis"), std::string_view("B")};

/// QuIP#'s codes are int64, as indices are elsewhere.
constexpr std::string_view kWideCodes = "Qidxs";

/// bitsandbytes may keep packed codes in any type (bnb_4bit_quant_storage): the table shows it.
constexpr std::string_view kTableOfFour = ".quant_map";

bool is_code_type(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kInt32:
    case DType::kUInt32:
      return true;
    default:
      return is_quantized(dtype) || (is_floating(dtype) && bits(dtype) <= 8);
  }
}

std::string_view leaf_of(std::string_view name) {
  const std::string_view module = module_of(name);
  return name.substr(module.empty() ? 0 : module.size() + 1);
}

/// What a quantized module keeps as numbers of their own: biases, adapters.
bool is_plain_beside_codes(std::string_view leaf) {
  return leaf == "bias" || leaf.ends_with("_bias") || leaf.starts_with("lora_");
}

class QuantFinder {
 public:
  explicit QuantFinder(const Manifest& manifest)
      : manifest_(manifest), parts_(manifest.tensors.size(), QuantPart::kNone) {
    by_name_.reserve(manifest.tensors.size());
    for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i)
      by_name_.emplace(manifest.tensors[i].name, i);
  }

  std::vector<QuantPart> find() {
    bool any = false;
    for (std::uint32_t i = 0; i < manifest_.tensors.size(); ++i) any = take_codes(i) || any;
    if (any) take_caches();
    take_quantizers();
    if (!codes_of_.empty()) take_modules();
    return std::move(parts_);
  }

 private:
  /// Whether tensor i is codes: it and the parts beside it are marked then.
  bool take_codes(std::uint32_t i) {
    const StoredTensor& tensor = manifest_.tensors[i];
    const std::string_view name = tensor.name;
    const bool typed = (is_code_type(tensor.spec.dtype) || leaf_of(name) == kWideCodes) &&
                       tensor.spec.shape.rank() > 0;
    if (!typed && !find(std::string(name) + std::string(kTableOfFour))) return false;
    std::string_view weight = name;
    for (const std::string_view ending : kCodeEndings)
      if (name.ends_with(ending)) weight = name.substr(0, name.size() - ending.size());
    const bool names_codes = is_code_name(leaf_of(name)) || is_code_name(leaf_of(weight));
    const std::string_view module = module_of(weight);
    bool found = false;
    for (const PartName& part : kPartNames) {
      if (part.place == Place::kWeight) found = take(weight, "", part) || found;
      if (part.place == Place::kModule && names_codes) found = take(module, ".", part) || found;
    }
    if (found) parts_[i] = QuantPart::kCodes;
    if (names_codes && !module.empty()) codes_of_.try_emplace(module, i);
    return found;
  }

  static bool is_code_name(std::string_view leaf) {
    return std::ranges::find(kCodeNames, leaf) != kCodeNames.end();
  }

  /// A module with a weight of its own, and integers beside it (a pooling layer's indices).
  bool has_plain_weight(std::string_view module) const {
    const std::uint32_t* weight = find(std::string(module) + ".weight");
    if (weight == nullptr) return false;
    const TensorSpec& spec = manifest_.tensors[*weight].spec;
    return is_floating(spec.dtype) && bits(spec.dtype) > 8 && parts_[*weight] != QuantPart::kCodes;
  }

  /// What else lies in the modules of codes.
  void take_modules() {
    for (std::uint32_t i = 0; i < manifest_.tensors.size(); ++i) {
      const std::string_view name = manifest_.tensors[i].name;
      if (parts_[i] != QuantPart::kNone || is_plain_beside_codes(leaf_of(name))) continue;
      const auto codes = codes_of_.find(module_of(name));
      if (codes == codes_of_.end() || codes->second == i || has_plain_weight(codes->first))
        continue;
      const bool floating = is_floating(manifest_.tensors[i].spec.dtype);
      parts_[i] = floating ? QuantPart::kOther : QuantPart::kLayout;
      parts_[codes->second] = QuantPart::kCodes;
    }
  }

  bool take(std::string_view before, std::string_view between, const PartName& part) {
    const std::uint32_t* found =
        find(std::string(before) + std::string(between) + std::string(part.text));
    if (found == nullptr) return false;
    if (parts_[*found] == QuantPart::kNone) parts_[*found] = part.part;
    return true;
  }

  void take_caches() {
    for (std::uint32_t i = 0; i < manifest_.tensors.size(); ++i) {
      const std::string_view leaf = leaf_of(manifest_.tensors[i].name);
      for (const PartName& part : kPartNames)
        if (part.place == Place::kCache && leaf == part.text && parts_[i] == QuantPart::kNone)
          parts_[i] = part.part;
    }
  }

  void take_quantizers() {
    for (std::uint32_t i = 0; i < manifest_.tensors.size(); ++i) {
      const std::string_view name = manifest_.tensors[i].name;
      if (parts_[i] != QuantPart::kNone || !is_of_quantizer(name)) continue;
      parts_[i] = QuantPart::kOther;
      const std::string owner(module_of(module_of(name)));
      const std::uint32_t* weight = find(owner.empty() ? "weight" : owner + ".weight");
      const bool named = leaf_of(module_of(name)).starts_with("weight");
      if (weight != nullptr && named && is_code_type(manifest_.tensors[*weight].spec.dtype))
        parts_[*weight] = QuantPart::kCodes;
    }
  }

  bool is_of_quantizer(std::string_view name) const {
    const std::string_view leaf = leaf_of(name), module = module_of(name);
    const auto is_among = [leaf](const auto& names) {
      return std::ranges::find(names, leaf) != names.end();
    };
    if (is_among(kQuantizerNames)) return leaf_of(module).ends_with("_quantizer");
    if (is_among(kObserverNames)) return leaf_of(module) == "activation_post_process";
    // torch.ao: a module's own scale of what it gives, and a fake quantizer's.
    if (leaf != "scale" && leaf != "zero_point") return false;
    const std::uint32_t* scale = find(std::string(module) + ".scale");
    const std::uint32_t* zero = find(std::string(module) + ".zero_point");
    return scale != nullptr && zero != nullptr &&
           is_floating(manifest_.tensors[*scale].spec.dtype) &&
           is_integer(manifest_.tensors[*zero].spec.dtype);
  }

  const std::uint32_t* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }

  const Manifest& manifest_;
  std::vector<QuantPart> parts_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::unordered_map<std::string_view, std::uint32_t> codes_of_;  // by module
};

}  // namespace

std::vector<QuantPart> quant_parts(const Manifest& manifest) {
  return QuantFinder(manifest).find();
}

}  // namespace tessera

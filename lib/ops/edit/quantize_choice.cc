#include "lib/ops/edit/quantize_choice.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "lib/state/block_quantizer.h"

namespace tessera {
namespace {

constexpr std::size_t kMostNoted = 20;
constexpr std::string_view kWeight = ".weight";

/// Layers that writers of quantized checkpoints leave as they are, by the last part of the module's
/// name: output layers, routers, tables that are looked up, and what DeepSeek joins its extra
/// prediction layer with.
constexpr std::array kPlainLayers = {
    std::string_view("lm_head"), std::string_view("output"),
    std::string_view("head"),    std::string_view("score"),
    std::string_view("gate"),    std::string_view("shared_expert_gate"),
    std::string_view("router"),  std::string_view("classifier"),
    std::string_view("wte"),     std::string_view("wpe"),
    std::string_view("eh_proj")};
/// The same by a part of that name: embed_tokens, tok_embeddings, layer_norm.
constexpr std::array kPlainWords = {std::string_view("embed"), std::string_view("norm"),
                                    std::string_view("router")};

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

bool is_linear(std::string_view fqn) {
  if (!fqn.ends_with(kWeight)) return false;
  const std::string_view layer = last_part(fqn.substr(0, fqn.size() - kWeight.size()));
  return std::ranges::find(kPlainLayers, layer) == kPlainLayers.end() &&
         std::ranges::none_of(kPlainWords, [layer](std::string_view word) {
           return layer.find(word) != layer.npos;
         });
}

/// GPT-OSS's experts of one layer: "experts.gate_up_proj" and "experts.down_proj".
bool is_stacked_experts(std::string_view fqn, const Shape& shape) {
  const std::string_view leaf = last_part(fqn);
  if (shape.rank() != 3 || (leaf != "gate_up_proj" && leaf != "down_proj")) return false;
  return last_part(fqn.substr(0, std::max(leaf.size() + 1, fqn.size()) - leaf.size() - 1)) ==
         "experts";
}

class Chooser {
 public:
  Chooser(const Manifest& manifest, const Roles& roles, const Transformations& asked,
          const std::vector<Alias>& tied)
      : manifest_(manifest), roles_(roles), asked_(asked), hits_(asked.quantize_tensors.size()) {
    for (const auto& [first, second] : tied) tied_.insert({first, second});
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const Value& value = manifest.state.entries[i].value;
      if (roles.entries[i].role != Role::kModel || !value.is_tensor()) continue;
      shapes_[roles.entries[i].fqn] = manifest.tensors[value.tensor_index()].spec.shape;
      parameters_.push_back(i);
    }
  }

  QuantizeChoice choose() {
    const bool experts = *asked_.quantize == BlockScheme::kMxfp4 &&
                         asked_.quantize_tensors.empty() &&
                         std::ranges::any_of(shapes_, [](const auto& parameter) {
                           return is_stacked_experts(parameter.first, parameter.second);
                         });
    for (const std::size_t i : parameters_) look_at(i, experts);
    check_globs();
    check_mixed();
    if (out_.weights.empty())
      fail(Code::kInvalidArgument,
           out_.notes.empty() ? "--quantize: there is no weight that can be quantized"
                              : fmt::format("--quantize: no weight can be quantized: \"{}\" is {}",
                                            printable(out_.notes[0].tensor), out_.notes[0].message),
           "ckpt-inspect ls shows names, types and shapes; --quantize-tensor GLOB names weights");
    if (noted_ > kMostNoted)
      out_.notes.push_back({Finding::kCast, Severity::kWarning,
                            fmt::format("{} more weights are not quantized", noted_ - kMostNoted),
                            "", ""});
    return std::move(out_);
  }

 private:
  const StoredTensor& tensor(std::size_t entry) const {
    return manifest_.tensors[manifest_.state.entries[entry].value.tensor_index()];
  }

  bool is_asked(const std::string& fqn, bool by_default) {
    bool asked = asked_.quantize_tensors.empty() && by_default;
    for (std::size_t g = 0; g < hits_.size(); ++g)
      if (glob_match(asked_.quantize_tensors[g], fqn)) asked = hits_[g] = true;
    return asked;
  }

  void look_at(std::size_t entry, bool experts_alone) {
    const std::string fqn = roles_.entries[entry].fqn;
    const TensorSpec& spec = tensor(entry).spec;
    const bool stacked = is_stacked_experts(fqn, spec.shape);
    const bool by_default = stacked ? *asked_.quantize == BlockScheme::kMxfp4
                                    : !experts_alone && spec.shape.rank() == 2 && is_linear(fqn) &&
                                          is_floating(spec.dtype) && bits(spec.dtype) >= 16;
    QuantizedChoice choice{entry, fqn, stacked, false};
    const bool asked = is_asked(fqn, by_default);
    const std::string why = asked ? why_not(entry, choice) : "";
    if (asked && why.empty()) {
      out_.weights.push_back(std::move(choice));
      return;
    }
    if (asked) note(entry, why);
    const bool matrix = spec.shape.rank() == 2 && fqn.ends_with(kWeight);
    if (matrix || stacked) out_.kept.push_back(fqn);
  }

  /// "" where it can be quantized: `choice` says how then.
  std::string why_not(std::size_t entry, QuantizedChoice& choice) const {
    const StoredTensor& weight = tensor(entry);
    const Shape& shape = weight.spec.shape;
    if (!can_be_quantized(weight.spec.dtype) || weight.quant >= 0)
      return fmt::format("it is {}", torch_name(weight.spec.dtype));
    if (tied_.contains(manifest_.state.entries[entry].name))
      return "it is one tensor with another name, which would have to follow";
    const std::int64_t group = block_columns(*asked_.quantize);
    if (choice.stacked && *asked_.quantize == BlockScheme::kMxfp4) {
      choice.turned = is_turned(choice.fqn, shape);
      const std::int64_t inputs = choice.turned ? shape[1] : shape[2];
      return inputs % group == 0 ? "" : no_groups(inputs, group);
    }
    if (shape.rank() != 2)
      return fmt::format("it is no matrix ({}), and no loader reads this scheme of others",
                         shape.to_string());
    if (shape.numel() == 0) return "it has no elements";
    if (*asked_.quantize == BlockScheme::kFp8 || shape[1] % group == 0) return "";
    return no_groups(shape[1], group);
  }

  static std::string no_groups(std::int64_t columns, std::int64_t group) {
    return fmt::format("its rows of {} elements are no whole groups of {}", columns, group);
  }

  /// Whether stacked experts are [experts, inputs, outputs], as transformers has them: a bias has an
  /// element for each output. Where both dims are as many, the other weight of the layer says it.
  bool is_turned(const std::string& fqn, const Shape& shape) const {
    const std::string_view leaf = last_part(fqn);
    const std::string layer = fqn.substr(0, fqn.size() - leaf.size());
    const std::string other = layer + (leaf == "down_proj" ? "gate_up_proj" : "down_proj");
    for (const std::string& name : {fqn, other}) {
      const auto weight = shapes_.find(name), bias = shapes_.find(name + "_bias");
      if (weight == shapes_.end() || bias == shapes_.end() || weight->second.rank() != 3 ||
          bias->second.rank() != 2 || weight->second[1] == weight->second[2])
        continue;
      if (bias->second[1] == weight->second[2]) return true;
      if (bias->second[1] == weight->second[1]) return false;
    }
    fail(Code::kUnsupported,
         fmt::format("\"{}\" {}: no bias says which of its dims are the outputs", printable(fqn),
                     shape.to_string()),
         "--quantize-tensor GLOB names the weights that are quantized");
  }

  void note(std::size_t entry, const std::string& why) {
    if (++noted_ > kMostNoted) return;
    out_.notes.push_back({Finding::kCast, Severity::kWarning, "not quantized: " + why, "",
                          manifest_.state.entries[entry].name});
  }

  void check_globs() const {
    for (std::size_t g = 0; g < hits_.size(); ++g) {
      if (hits_[g]) continue;
      const std::string& glob = asked_.quantize_tensors[g];
      std::vector<std::string_view> known;
      for (const auto& [fqn, shape] : shapes_) known.push_back(fqn);
      const std::string near = nearest(glob, known);
      fail(Code::kInvalidArgument,
           fmt::format("--quantize-tensor \"{}\" matches no parameter", printable(glob)),
           near.empty() ? "ckpt-inspect ls shows the names"
                        : fmt::format("did you mean \"{}\"?", printable(near)));
    }
  }

  /// MXFP4 of stacked experts and of other weights are two formats, and a model has one.
  void check_mixed() const {
    if (*asked_.quantize != BlockScheme::kMxfp4) return;
    const auto experts = std::ranges::find(out_.weights, true, &QuantizedChoice::stacked);
    const auto others = std::ranges::find(out_.weights, false, &QuantizedChoice::stacked);
    if (experts == out_.weights.end() || others == out_.weights.end()) return;
    fail(Code::kInvalidArgument,
         fmt::format("--quantize mxfp4: \"{}\" would be as GPT-OSS has it, \"{}\" as "
                     "compressed-tensors does, and a model has one of both",
                     printable(experts->fqn), printable(others->fqn)),
         "--quantize-tensor GLOB names the weights that are quantized");
  }

  const Manifest& manifest_;
  const Roles& roles_;
  const Transformations& asked_;
  std::vector<bool> hits_;
  std::set<std::string, std::less<>> tied_;
  std::map<std::string, Shape> shapes_;
  std::vector<std::size_t> parameters_;  // entries
  std::size_t noted_ = 0;
  QuantizeChoice out_;
};

}  // namespace

QuantizeChoice choose_quantized(const Manifest& manifest, const Roles& roles,
                                const Transformations& asked, const std::vector<Alias>& tied) {
  return Chooser(manifest, roles, asked, tied).choose();
}

}  // namespace tessera

#include "lib/ops/edit/module_names.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/args.h"
#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera {
namespace {

using megatron_torch::Args;

constexpr std::string_view kStored = "torch_dist", kModules = "modules";
constexpr std::string_view kExperts = ".experts.experts.linear_fc";
/// What core's own layers keep in a module of its own, and torch_dist calls as if it were inside of the
/// linear layer behind it.
constexpr std::pair<std::string_view, std::string_view> kNorms[] = {
    {".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
    {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}};

bool has(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

bool is_inner_norm(std::string_view name) {
  return std::ranges::any_of(kNorms, [&](const auto& norm) { return has(name, norm.first); });
}

/// Experts of one tensor: all of them, in its first dim behind that of layers.
bool is_expert_stack(std::string_view name) { return has(name, kExperts); }

class ModuleNames {
 public:
  explicit ModuleNames(const Manifest& manifest)
      : shapes_(parameter_shapes(manifest)), args_(megatron_torch::args_of(manifest.state)) {}

  std::optional<RulesRequest> rules() const {
    const auto stacked = [](const auto& item) {
      return megatron_torch::is_layer_stack(item.first) || is_expert_stack(item.first);
    };
    if (std::ranges::none_of(shapes_, stacked)) return std::nullopt;
    const auto text = [](std::string_view word) { return Value::string(std::string(word)); };
    ValueList tensors;
    for (const auto& [fqn, shape] : shapes_) tensors.push_back(rule(fqn));
    RulesRequest request;
    request.name = "Megatron's names";
    request.side = std::string(kModules);
    request.text =
        dump_json(Value::dict({{text("schema"), text("tessera.rules/1")},
                               {text("name"), text(request.name)},
                               {text("sides"), Value::list({text(kStored), text(kModules)})},
                               {text("tensors"), Value::list(std::move(tensors))}}));
    return request;
  }

 private:
  /// A tensor's names on either side, as a file of rules has them.
  Value rule(const std::string& fqn) const {
    ValueList stacks;
    std::string name = fqn;
    if (is_inner_norm(fqn)) {
      if (layers() == Layers::kUnknown)
        refuse(fqn,
               "a norm that Transformer Engine's layers have inside of the linear layer behind "
               "it, and core's own beside it; args do not say which these are (transformer_impl)");
      if (layers() == Layers::kOwn)
        for (const auto& [inside, beside] : kNorms) replace(name, inside, beside);
    }
    if (const auto at = megatron_torch::layer_place(name)) {
      name.insert(*at, "{layer}.");
      stacks.push_back(Value::string("layer"));
    }
    if (is_expert_stack(name)) {
      name_expert(fqn, name);
      stacks.push_back(Value::string("expert"));
    }
    ValueDict stored{{Value::string("name"), Value::string(fqn)}};
    if (!stacks.empty())
      stored.emplace_back(Value::string("stack"), Value::list(std::move(stacks)));
    return Value::dict({{Value::string(std::string(kStored)), Value::dict(std::move(stored))},
                        {Value::string(std::string(kModules)), Value::string(std::move(name))}});
  }

  enum class Layers : std::uint8_t { kUnknown, kOwn, kEngine };
  Layers layers() const {
    const std::string stated = args_.text("transformer_impl");
    if (stated == "local") return Layers::kOwn;
    const bool engine = stated == "transformer_engine" || stated == "inference_optimized";
    return engine ? Layers::kEngine : Layers::kUnknown;
  }

  void name_expert(const std::string& fqn, std::string& name) const {
    const auto grouped = args_.boolean("moe_grouped_gemm");
    if (!grouped)
      refuse(fqn,
             "experts that are modules of their own or grouped in one, which args do not say "
             "(moe_grouped_gemm)");
    const bool packed = args_.boolean("moe_use_legacy_grouped_gemm").value_or(false);
    if (*grouped && (packed || layers() != Layers::kEngine))
      refuse(fqn, "experts that the run packs in two matrices for all of them (weight1, weight2)");
    const std::size_t at = name.find(kExperts);
    const std::string tail = name.substr(at + std::string_view(".experts.experts.").size());
    name.resize(at);
    name += *grouped ? fmt::format(".experts.{}{{expert}}", tail)
                     : fmt::format(".experts.local_experts.{{expert}}.{}", tail);
  }

  static void replace(std::string& name, std::string_view from, std::string_view to) {
    if (const std::size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  }

  bool any(std::string_view part) const {
    return std::ranges::any_of(shapes_, [&](const auto& item) { return has(item.first, part); });
  }

  /// The shipped rules whose side torch_dist the names are.
  std::string_view family() const {
    if (any(".softmax_offset")) return "gpt-oss";
    if (any(".linear_kv_down_proj.")) return "deepseek-v3";
    if (any(".shared_experts.")) return "glm4-moe";
    if (any(".experts.")) return any(".q_layernorm.") ? "qwen3-moe" : "mixtral";
    if (any(".linear_qkv.bias")) return any(".linear_proj.bias") ? "gpt-neox" : "qwen2";
    return "llama";
  }

  [[noreturn]] void refuse(const std::string& fqn, std::string_view why) const {
    const std::string command = fmt::format(
        "--rules {0}:megatron writes the names of Transformer Engine's modules{1}", family(),
        any(".experts.") ? fmt::format(", --rules {}:megatron-local those of core's own", family())
                         : "");
    fail(Code::kUnsupported,
         fmt::format(
             "\"{}\" {}: rank files have it layer by layer, by the names of modules, and it is {}",
             printable(fqn), shapes_.at(fqn).to_string(), why),
         command);
  }

  const std::map<std::string, Shape> shapes_;
  const Args args_;
};

}  // namespace

std::optional<RulesRequest> rules_to_modules(const Manifest& manifest) {
  return ModuleNames(manifest).rules();
}

namespace {

constexpr std::string_view kLayerModules[] = {"input_layernorm",
                                              "self_attention.core_attention",
                                              "self_attention.linear_proj",
                                              "self_attention.linear_q_proj",
                                              "self_attention.linear_q_down_proj",
                                              "self_attention.linear_q_up_proj",
                                              "self_attention.linear_kv_down_proj",
                                              "self_attention.linear_kv_up_proj",
                                              "self_attention.linear_qkv",
                                              "self_attention.q_layernorm",
                                              "self_attention.kv_layernorm",
                                              "self_attention.k_layernorm",
                                              "pre_mlp_layernorm",
                                              "mlp.router",
                                              "mlp.experts",
                                              "mlp.shared_experts",
                                              "mlp.linear_fc1",
                                              "mlp.linear_fc2"};
constexpr std::string_view kOuterModules[] = {"embedding.word_embeddings",
                                              "embedding.position_embeddings",
                                              "embedding.tokentype_embeddings",
                                              "decoder.layers",
                                              "decoder.final_layernorm",
                                              "mtp.layers",
                                              "output_layer"};
constexpr std::string_view kFurtherModules[] = {
    "enorm", "hnorm", "eh_proj", "transformer_layer", "mtp_model_layer", "final_layernorm"};
constexpr std::string_view kLeaves[] = {"layer_norm_weight", "layer_norm_bias", "gate_weight",
                                        "weight", "bias"};

/// Numbers that sort tensors as their modules are registered.
using ModuleOrder = std::vector<std::int64_t>;

class ModuleOrderer {
 public:
  ModuleOrder operator()(std::string_view name) {
    known_ = true;
    ModuleOrder order;
    std::string_view rest = name;
    const std::int64_t outer = take(rest, kOuterModules);
    order.push_back(outer);
    if (outer == kDecoder || outer == kFurther) order.push_back(take_number(rest));
    if (outer == kFurther) {
      const std::int64_t inner = take(rest, kFurtherModules);
      order.push_back(inner);
      if (inner != kOldLayer && inner != kNewLayer) return add_leaf(order, rest);
    }
    if (outer == kDecoder || outer == kFurther) {
      const std::int64_t module = take(rest, kLayerModules);
      order.push_back(module);
      if (module == kExperts) return add_expert(order, rest);
      if (module == kSharedExperts && !rest.starts_with("gate_weight"))
        order.push_back(1 + take(rest, kMatrices));
    }
    return add_leaf(order, rest);
  }
  bool known() const { return known_; }

 private:
  static constexpr std::int64_t kDecoder = 3, kFurther = 5, kOldLayer = 3, kNewLayer = 4,
                                kExperts = 14, kSharedExperts = 15;
  static constexpr std::string_view kMatrices[] = {"linear_fc1", "linear_fc2"};

  /// Which of the words the text begins with, a dot behind it; that many as there are: none.
  std::int64_t take(std::string_view& rest, std::span<const std::string_view> words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string_view word = words[i];
      if (!rest.starts_with(word) || (rest.size() > word.size() && rest[word.size()] != '.'))
        continue;
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
      return static_cast<std::int64_t>(i);
    }
    known_ = false;
    return static_cast<std::int64_t>(words.size());
  }

  std::int64_t take_number(std::string_view& rest) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc()) known_ = false;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (rest.starts_with('.')) rest.remove_prefix(1);
    return number;
  }

  ModuleOrder add_leaf(ModuleOrder order, std::string_view leaf) {
    std::string_view rest = leaf;
    // An attribute of the module itself (softmax_offset, expert_bias) has no place to look up.
    const bool known = known_;
    order.push_back(take(rest, kLeaves));
    known_ = known && (known_ || leaf.find('.') == leaf.npos);
    return order;
  }

  /// Modules of their own, one behind the other; grouped: all weights of a matrix, then all biases.
  ModuleOrder add_expert(ModuleOrder order, std::string_view rest) {
    if (rest.starts_with("local_experts.")) {
      rest.remove_prefix(std::string_view("local_experts.").size());
      order.push_back(take_number(rest));
      order.push_back(take(rest, kMatrices));
      return add_leaf(std::move(order), rest);
    }
    if (rest == "weight1" || rest == "weight2") {
      order.push_back(rest.back());
      return order;
    }
    order.push_back(take(rest, kMatrices));
    const bool bias = rest.starts_with("bias");
    if (!bias && !rest.starts_with("weight")) known_ = false;
    order.push_back(bias ? 1 : 0);
    rest.remove_prefix(std::min<std::size_t>(rest.size(), bias ? 4 : 6));
    if (!rest.empty()) order.push_back(take_number(rest));
    return order;
  }

  bool known_ = true;
};

}  // namespace

std::optional<Note> order_as_modules(Manifest& manifest) {
  std::vector<StateEntry>& entries = manifest.state.entries;
  const Roles roles = find_roles(manifest.state);
  struct Placed {
    ModuleOrder order;
    std::size_t entry = 0;
  };
  std::vector<Placed> placed;
  std::vector<std::size_t> slots;
  std::string unknown;
  ModuleOrderer orderer;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (roles.entries[i].role != Role::kModel) continue;
    const std::string& fqn = roles.entries[i].fqn;
    placed.push_back({orderer(fqn), i});
    slots.push_back(i);
    if (!orderer.known() && entries[i].value.is_tensor() && unknown.empty()) unknown = fqn;
  }
  std::ranges::stable_sort(placed, {}, &Placed::order);
  std::vector<StateEntry> sorted;
  for (const Placed& one : placed) sorted.push_back(std::move(entries[one.entry]));
  for (std::size_t i = 0; i < slots.size(); ++i) entries[slots[i]] = std::move(sorted[i]);
  const auto of_state = [](const EntryRole& role) { return role.role == Role::kOptimState; };
  if (unknown.empty() || std::ranges::none_of(roles.entries, of_state)) return std::nullopt;
  return Note{
      Finding::kRekey, Severity::kWarning,
      fmt::format(
          "\"{}\" is of no module whose place among the parameters is known: the optimizer's "
          "state is written in the order of the source's files there, which may be "
          "another than the model's",
          printable(unknown)),
      "", unknown};
}

}  // namespace tessera

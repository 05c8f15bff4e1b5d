#include "lib/format/megatron_torch/tp_rule.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace tessera::megatron_torch {
namespace {

constexpr std::array<std::string_view, 14> kColumn = {
    "linear_qkv",        "linear_fc1", "query_key_value", "dense_h_to_4h", "query",
    "key_value",         "linear_q",   "linear_kv",       "linear_q_proj", "linear_q_up_proj",
    "linear_kv_up_proj", "eh_proj",    "linear_k",        "linear_v"};
constexpr std::array<std::string_view, 3> kVocabulary = {"word_embeddings", "output_layer",
                                                         "word_embeddings_for_head"};
constexpr std::array<std::string_view, 4> kRow = {"linear_proj", "linear_fc2", "dense_4h_to_h",
                                                  "out_proj"};
constexpr std::array<std::string_view, 8> kReplicated = {
    "position_embeddings", "tokentype_embeddings", "router",
    "linear_q_down_proj",  "linear_kv_down_proj",  "pooler",
    "binary_head",         "rotary_pos_emb"};
/// State-space mixers cut these along their one dim.
constexpr std::array<std::string_view, 3> kMixerVectors = {"A_log", "D", "dt_bias"};
/// One for each attention head (GPT-OSS's sinks).
constexpr std::string_view kHeadVector = "softmax_offset";

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// "weight", or one expert's "weight7".
bool is_numbered(std::string_view leaf, std::string_view word) {
  return leaf.starts_with(word) &&
         (leaf.size() == word.size() || is_number(leaf.substr(word.size())));
}

bool is_norm(std::string_view word) {
  return word.find("norm") != std::string_view::npos;  // input_layernorm, q_layernorm, layer_norm
}

TpRule mixer_rule(std::string_view owner, std::string_view leaf) {
  if (has(kMixerVectors, leaf)) return {TpCut::kColumn, true, false};
  if (owner == "norm") return {TpCut::kColumn, true, false};
  if (owner == "out_proj" && leaf == "weight") return {TpCut::kRow, false, false};
  return {};
}

}  // namespace

bool is_number(std::string_view text) { return is_decimal(text) && text.size() <= 9; }

int TpRule::dim(int rank) const {
  const int from_end = cut == TpCut::kRow || bias ? 1 : 2;
  const bool is_cut =
      cut == TpCut::kColumn || cut == TpCut::kVocabulary || (cut == TpCut::kRow && !bias);
  return is_cut && rank >= from_end ? rank - from_end : -1;
}

TpRule tp_rule(std::string_view fqn) {
  const auto parts = split(fqn, '.');
  if (parts.size() < 2) return {};
  const std::string_view leaf = parts.back(), owner = parts[parts.size() - 2];
  const std::string_view outer = parts.size() > 2 ? parts[parts.size() - 3] : std::string_view();
  if (outer == "mixer" || owner == "mixer") return mixer_rule(owner, leaf);
  if (is_norm(owner) || is_norm(leaf)) return {TpCut::kReplicated, true, false};
  if (leaf == kHeadVector) return {TpCut::kColumn, true, false};
  if (owner == "experts" && leaf == "weight1") return {TpCut::kRow, false, false};
  if (owner == "experts" && leaf == "weight2") return {TpCut::kColumn, false, false};
  const bool bias = is_numbered(leaf, "bias");
  if (!bias && !is_numbered(leaf, "weight")) {
    return std::ranges::any_of(parts, [](auto part) { return has(kReplicated, part); })
               ? TpRule{TpCut::kReplicated, false, false}
               : TpRule{};
  }
  if (has(kColumn, owner))
    return {TpCut::kColumn, bias, owner == "linear_fc1" || owner == "dense_h_to_4h"};
  if (has(kVocabulary, owner) || (owner == "lm_head" && bias))
    return {TpCut::kVocabulary, bias, false};
  if (has(kRow, owner) || (owner == "dense" && outer.ends_with("attention")))
    return {TpCut::kRow, bias, false};
  const bool plain = owner == "dense" && outer == "lm_head";
  if (plain || std::ranges::any_of(parts, [](auto part) { return has(kReplicated, part); }))
    return {TpCut::kReplicated, bias, false};
  return {};
}

bool is_latent_projection(std::string_view fqn) {
  const auto parts = split(fqn, '.');
  if (parts.size() < 2 || (parts.back() != "weight" && parts.back() != "bias")) return false;
  const std::string_view owner = parts[parts.size() - 2];
  return owner == "linear_q_down_proj" || owner == "linear_kv_down_proj";
}

bool gated_by_shapes(const std::map<std::string, Shape>& weights) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"linear_fc1.weight", "linear_fc2.weight"}, {"dense_h_to_4h.weight", "dense_4h_to_h.weight"}};
  for (const auto& [name, shape] : weights) {
    for (const auto& [first, second] : kPairs) {
      const std::size_t at = name.rfind(first);
      if (at == std::string::npos || shape.rank() < 2) continue;
      const auto other = weights.find(std::string(name).replace(at, first.size(), second));
      if (other == weights.end() || other->second.rank() != shape.rank()) continue;
      const std::int64_t rows = shape[shape.rank() - 2];
      return rows % 2 == 0 && rows / 2 == other->second[shape.rank() - 1];
    }
  }
  return false;
}

std::string LayerName::with(std::int64_t number) const {
  return fmt::format("{}{}{}", before, number, after);
}

std::optional<LayerName> layer_name(std::string_view fqn) {
  constexpr std::string_view kWord = "layers.";
  for (std::size_t at = fqn.find(kWord); at != std::string_view::npos;
       at = fqn.find(kWord, at + 1)) {
    if (at > 0 && fqn[at - 1] != '.') continue;
    const std::size_t begin = at + kWord.size();
    const std::size_t end = std::min(fqn.find('.', begin), fqn.size());
    const std::string_view digits = fqn.substr(begin, end - begin);
    if (!is_number(digits)) continue;
    LayerName out{std::string(fqn.substr(0, begin)), 0, std::string(fqn.substr(end))};
    std::from_chars(digits.data(), digits.data() + digits.size(), out.layer);
    return out;
  }
  return std::nullopt;
}

bool is_layer_stack(std::string_view fqn) {
  const bool inside = fqn.find(".layers.") != std::string_view::npos || fqn.starts_with("layers.");
  return inside && !layer_name(fqn);
}

std::optional<std::size_t> layer_place(std::string_view fqn) {
  if (!is_layer_stack(fqn)) return std::nullopt;
  const std::size_t at = fqn.find(".layers.");
  return (at == fqn.npos ? 0 : at + 1) + std::string_view("layers.").size();
}

}  // namespace tessera::megatron_torch

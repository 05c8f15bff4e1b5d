#include "lib/format/megatron_torch/model_names.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>

#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_torch {
namespace {

std::int64_t parsed(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

/// The digits that begin at `at`, as far as they go.
std::string_view digits_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return text.substr(at, end - at);
}

std::optional<ExpertName> cut_at(std::string_view fqn, std::size_t at) {
  const std::string_view digits = digits_at(fqn, at);
  const std::size_t end = at + digits.size();
  if (!is_number(digits) || (end < fqn.size() && fqn[end] != '.')) return std::nullopt;
  return ExpertName{std::string(fqn.substr(0, at)), parsed(digits), std::string(fqn.substr(end))};
}

}  // namespace

LayerCounts count_layers(const std::vector<std::string>& names) {
  LayerCounts counts;
  for (const std::string& name : names) {
    const auto layer = layer_name(name);
    if (!layer) continue;
    std::int64_t& count = counts[layer->before];
    count = std::max(count, layer->layer + 1);
  }
  return counts;
}

std::string ExpertName::with(std::int64_t number) const {
  return fmt::format("{}{}{}", before, number, after);
}

bool is_expert(std::string_view fqn) {
  return fqn.find(".experts.") != std::string_view::npos || fqn.starts_with("experts.");
}

std::optional<ExpertName> expert_name(std::string_view fqn) {
  if (!is_expert(fqn)) return std::nullopt;
  constexpr std::string_view kLocal = "local_experts.";
  if (const std::size_t at = fqn.find(kLocal); at != std::string_view::npos)
    return cut_at(fqn, at + kLocal.size());
  for (const std::string_view word :
       {".linear_fc1.weight", ".linear_fc2.weight", ".linear_fc1.bias", ".linear_fc2.bias"})
    if (const std::size_t at = fqn.find(word); at != std::string_view::npos)
      return cut_at(fqn, at + word.size());
  return std::nullopt;
}

Path with_layer_offset(const Path& path, std::int64_t offset) {
  Path out = path;
  if (offset == 0) return out;
  for (PathItem& item : out) {
    if (item.kind != PathItem::Kind::kKey) continue;
    const auto layer = layer_name(item.key);
    if (!layer) continue;
    item.key = layer->with(layer->layer + offset);
    break;
  }
  return out;
}

Path with_expert_offset(const Path& path, std::int64_t offset) {
  Path out = path;
  if (offset == 0) return out;
  for (PathItem& item : out) {
    if (item.kind != PathItem::Kind::kKey) continue;
    const auto expert = expert_name(item.key);
    if (!expert) continue;
    item.key = expert->with(expert->expert + offset);
    break;
  }
  return out;
}

}  // namespace tessera::megatron_torch

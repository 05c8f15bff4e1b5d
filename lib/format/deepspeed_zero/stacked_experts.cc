#include "lib/format/deepspeed_zero/stacked_experts.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <array>
#include <charconv>

namespace tessera::deepspeed {
namespace {

constexpr std::array<std::string_view, 2> kLayerLists = {"ds_autoep_layers", "autoep_layers"};
constexpr std::string_view kExperts = ".experts.";
constexpr std::string_view kRouter = ".router.";

/// Rows go by the number of a rank: its share of the experts are those behind the shares before.
void check_placement(const Field& layer, std::int64_t experts, std::int64_t shares) {
  if (shares < 1 || experts < shares || experts % shares != 0)
    layer.corrupt(fmt::format("{} experts over {} ranks", experts, shares));
  const auto placement = layer.find_present("expert_placement");
  if (!placement) return;
  const std::int64_t each = experts / shares;
  std::int64_t next = 0;
  for (const Field& rank : placement->at("ranks").items()) {
    const auto held = rank.at("experts").counts();
    bool follow =
        rank.at("rank").count() * each == next && held.size() == static_cast<std::size_t>(each);
    for (const std::int64_t expert : held) follow &= expert == next++;
    if (!follow)
      fail(Code::kUnsupported,
           "experts (AutoEP) that are placed on ranks in another order than their own");
  }
}

}  // namespace

StackedExperts::StackedExperts(const Field& root) {
  for (const std::string_view list : kLayerLists) {
    const auto layers = root.find_present(list);
    if (!layers) continue;
    for (const Field& layer : layers->items()) {
      const std::int64_t experts = layer.at("num_experts").count();
      check_placement(layer, experts, layer.at("ep_size").count());
      const Field prefix = layer.at("expert_key_prefix");
      if (!prefix.text().ends_with(kExperts.substr(0, kExperts.size() - 1)))
        prefix.refuse("a name that ends in \".experts\"");
      layers_[prefix.text().substr(0, prefix.text().size() + 1 - kExperts.size())] = experts;
    }
    return;
  }
}

std::optional<std::int64_t> StackedExperts::count(std::string_view name) const {
  const std::size_t at = name.rfind(kExperts);
  if (at == name.npos) return std::nullopt;
  const auto layer = layers_.find(name.substr(0, at));
  const std::string_view matrix = name.substr(at + kExperts.size());
  if (layer == layers_.end() || matrix.find('.') != matrix.npos) return std::nullopt;
  return layer->second;
}

std::optional<std::pair<std::string, std::int64_t>> StackedExperts::row(
    std::string_view name) const {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return std::nullopt;
  const auto experts = count(name.substr(0, dot));
  const std::string_view number = name.substr(dot + 1);
  std::int64_t row = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), row);
  if (!experts || error != std::errc() || end != number.data() + number.size() || row < 0 ||
      row >= *experts)
    return std::nullopt;
  return std::pair(std::string(name.substr(0, dot)), row);
}

std::optional<std::string> StackedExperts::router(std::string_view name) const {
  for (const auto& [layer, experts] : layers_) {
    if (!name.starts_with(layer + '.')) continue;
    const std::size_t rest = name.find('.', layer.size() + 1);
    const std::string_view first = name.substr(layer.size(), rest - layer.size() + 1);
    if (rest == name.npos || first == kExperts || first == kRouter) continue;
    return fmt::format("{}{}{}", layer, kRouter, name.substr(rest + 1));
  }
  return std::nullopt;
}

}  // namespace tessera::deepspeed

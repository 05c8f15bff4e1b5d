#include "lib/format/hf_trainer/parameter_order.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "lib/format/hf_trainer/files.h"
#include "lib/format/hf_trainer/model_orders.h"

namespace tessera::hf_trainer {
namespace {

using Words = std::vector<std::string_view>;
using WordPlaces = std::vector<std::size_t>;  // of a name: where each word stands

/// Children that any module may have.
const std::array<Words, 2>& common_children() {
  static const std::array<Words, 2> all = {
      Words{"weight", "bias"},
      Words{"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"}};
  return all;
}

std::optional<std::size_t> number_of(std::string_view word) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

/// A row of the table: lists of children by module.
class Grammar {
 public:
  explicit Grammar(std::string_view children) {
    for (const std::string_view rule : split(children, '|')) {
      const std::size_t colon = rule.find(':');
      for (const std::string_view list : split(rule.substr(colon + 1), ','))
        lists_.emplace(rule.substr(0, colon), split(list, ' '));
    }
  }

  /// The places of `names`, each split in words; nullopt where a module is none of this model's.
  std::optional<std::vector<WordPlaces>> places(std::span<const Words> names) const {
    std::vector<WordPlaces> out(names.size());
    std::vector<std::size_t> all(names.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    return add_places(names, all, 0, "", out) ? std::optional(std::move(out)) : std::nullopt;
  }

 private:
  /// `of`: the names that share their first `depth` words, the last named one of which is `module`.
  bool add_places(std::span<const Words> names, std::span<const std::size_t> of, std::size_t depth,
                  std::string_view module, std::vector<WordPlaces>& out) const {
    std::map<std::string_view, std::vector<std::size_t>> children;
    for (const std::size_t i : of)
      if (names[i].size() > depth) children[names[i][depth]].push_back(i);
    if (children.empty()) return true;
    const auto order = order_of(module, children);
    if (order.empty()) return false;
    for (const auto& [word, members] : children) {
      for (const std::size_t i : members) out[i].push_back(order.at(word));
      const std::string_view inner = number_of(word) ? module : word;
      if (!add_places(names, members, depth + 1, inner, out)) return false;
    }
    return true;
  }

  /// Empty: not known.
  template <class Children>
  std::map<std::string_view, std::size_t> order_of(std::string_view module,
                                                   const Children& children) const {
    std::map<std::string_view, std::size_t> order;
    for (const auto& [word, members] : children)
      if (const auto number = number_of(word)) order[word] = *number;
    if (order.size() == children.size()) return order;
    if (!order.empty()) return {};
    const auto [begin, end] = lists_.equal_range(module);
    for (auto list = begin; list != end; ++list)
      if (take(list->second, children, order)) return order;
    for (const Words& list : common_children())
      if (take(list, children, order)) return order;
    return {};
  }
  template <class Children>
  static bool take(const Words& list, const Children& children,
                   std::map<std::string_view, std::size_t>& order) {
    order.clear();
    for (const auto& [word, members] : children) {
      const auto at = std::ranges::find(list, word);
      if (at == list.end()) {
        order.clear();
        return false;
      }
      order[word] = static_cast<std::size_t>(at - list.begin());
    }
    return true;
  }

  std::multimap<std::string_view, Words> lists_;
};

std::vector<std::size_t> sorted_by(const std::vector<WordPlaces>& places) {
  std::vector<std::size_t> order(places.size()), place(places.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return places[a] < places[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  return place;
}

}  // namespace

std::optional<std::vector<std::size_t>> order_of_model(std::span<const std::string_view> names,
                                                       std::string_view model_type) {
  constexpr std::size_t kMostWords = 64;
  std::vector<Words> split_names;
  for (std::string_view name : names) {
    if (name.starts_with(kAdapterPrefix)) name.remove_prefix(kAdapterPrefix.size());
    split_names.push_back(split(name, '.'));
    if (split_names.back().size() > kMostWords) return std::nullopt;
  }
  const auto is_of_type = [&](const ModelOrder& row) {
    const Words types = split(row.model_types, ' ');
    return std::ranges::find(types, model_type) != types.end();
  };
  const bool listed = std::ranges::any_of(kModelOrders, is_of_type);
  std::optional<std::vector<std::size_t>> found;
  for (const ModelOrder& row : kModelOrders) {
    if (listed && !is_of_type(row)) continue;
    const auto places = Grammar(row.children).places(split_names);
    if (!places) continue;
    std::vector<std::size_t> order = sorted_by(*places);
    if (found && *found != order) return std::nullopt;
    found = std::move(order);
  }
  return found;
}

}  // namespace tessera::hf_trainer

#include "tools/browse/list.h"

#include <fmt/format.h>
#include <tessera/ops/open.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tools/render/number_text.h"

namespace tessera::tools {
namespace {

std::vector<std::uint32_t> sorted_by_name(const std::vector<BrowseItem>& items) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](std::uint32_t i) { return items[i].name.view(); });
  return order;
}

bool differs(Difference difference) { return difference > Difference::kEqual; }

}  // namespace

std::string form_of(const TensorSpec& spec) {
  return fmt::format("{} {}", torch_name(spec.dtype), shape_text(spec.shape.extents()));
}

std::string_view difference_mark(Difference difference) {
  constexpr std::string_view kMarks[] = {" ", "=", "≠", "!", "-", "+"};
  return kMarks[static_cast<std::size_t>(difference)];
}

BrowseList::BrowseList(const Manifest& a, const Manifest* b) : two_(b != nullptr) {
  std::vector<std::string> forms;
  const auto add = [&](const Manifest& manifest, std::uint32_t tensor, std::size_t side) {
    const StoredTensor& stored = manifest.tensors[tensor];
    BrowseItem item;
    item.name = stored.name;
    item.tensor[side] = tensor;
    item.bytes = static_cast<std::uint64_t>(stored.spec.size_bytes());
    item.same_form = false;
    items_.push_back(std::move(item));
    forms.push_back(form_of(stored.spec));
  };
  for (const std::uint32_t tensor : listed_tensors(a)) add(a, tensor, 0);
  if (b != nullptr) {
    by_name_ = sorted_by_name(items_);
    for (const std::uint32_t tensor : listed_tensors(*b)) {
      const std::uint32_t same = find(b->tensors[tensor].name);
      if (same == BrowseItem::kAbsent || items_[same].tensor[1] != BrowseItem::kAbsent) {
        add(*b, tensor, 1);
        continue;
      }
      items_[same].tensor[1] = tensor;
      const std::string form = form_of(b->tensors[tensor].spec);
      items_[same].same_form = form == forms[same];
      if (!items_[same].same_form) forms[same] += " / " + form;
    }
  }
  by_name_ = sorted_by_name(items_);
  for (std::size_t i = 0; i < items_.size(); ++i)
    tree_.add(items_[i].name, forms[i], items_[i].bytes);
  tree_.finish();
  nodes_.resize(items_.size());
  for (std::uint32_t node = 0; node < tree_.size(); ++node)
    if (tree_[node].item != ModuleTree::kNone) nodes_[tree_[node].item] = node;
  differences_.resize(items_.size());
  if (!two_) return;
  counts_.resize(tree_.size());
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const BrowseItem& item = items_[i];
    if (item.tensor[1] == BrowseItem::kAbsent)
      set_difference(i, Difference::kOnlyA, 0);
    else if (item.tensor[0] == BrowseItem::kAbsent)
      set_difference(i, Difference::kOnlyB, 0);
    else if (!item.same_form)
      set_difference(i, Difference::kForm, 0);
  }
}

std::uint32_t BrowseList::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(by_name_, name, {},
                                           [&](std::uint32_t i) { return items_[i].name.view(); });
  return at != by_name_.end() && items_[*at].name.view() == name ? *at : BrowseItem::kAbsent;
}

void BrowseList::count(std::uint32_t item, int by) {
  const bool differ = differs(differences_[item]);
  if (!differ && differences_[item] != Difference::kEqual) return;
  for (std::uint32_t at = nodes_[item];; at = tree_[at].parent) {
    (differ ? counts_[at].differ : counts_[at].equal) += static_cast<std::uint32_t>(by);
    if (at == ModuleTree::kRoot) break;
  }
}

void BrowseList::set_difference(std::uint32_t item, Difference difference, double change) {
  count(item, -1);
  differences_[item] = difference;
  count(item, 1);
  if (!differs(difference)) return;
  if (difference != Difference::kValues) change = std::numeric_limits<double>::infinity();
  for (std::uint32_t at = nodes_[item];; at = tree_[at].parent) {
    counts_[at].change = std::max(counts_[at].change, change);
    if (at == ModuleTree::kRoot) break;
  }
}

Difference BrowseList::below(std::uint32_t node) const {
  if (!two_) return Difference::kUnknown;
  if (tree_[node].children.empty() && tree_[node].item != ModuleTree::kNone)
    return differences_[tree_[node].item];
  if (counts_[node].differ > 0) return Difference::kValues;
  return counts_[node].equal == tree_[node].tensors ? Difference::kEqual : Difference::kUnknown;
}

}  // namespace tessera::tools

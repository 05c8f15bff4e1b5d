#include "tools/browse/tree_view.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <tuple>

namespace tessera::tools {
namespace {

/// Lines that "open all" makes at most.
constexpr std::size_t kMostOpened = 100'000;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

}  // namespace

std::string_view order_name(TreeOrder order) {
  constexpr std::string_view kNames[] = {"name", "size", "tensors", "stored", "change"};
  return kNames[static_cast<std::size_t>(order)];
}

bool holds_pattern(std::string_view name, std::string_view pattern) {
  return !std::ranges::search(name, pattern, [](char a, char b) { return a == b || lower(a) == b; })
              .empty() ||
         pattern.empty();
}

TreeView::TreeView(BrowseList& list)
    : list_(list), open_(list.tree().size()), marked_(list.tree().size()) {
  rebuild();
  // One module around all says nothing by itself.
  if (rows_.size() == 1 && !is_leaf(node())) open();
}

std::uint32_t TreeView::item() const {
  const std::uint32_t at = node();
  return at == ModuleTree::kNone ? BrowseItem::kAbsent : tree()[at].item;
}

std::string TreeView::label(const Row& row) const {
  std::string label = tree().label(row.node);
  for (std::uint32_t at = row.node; at != row.top;) {
    at = tree()[at].parent;
    label.insert(0, tree().label(at) + ".");
  }
  return label;
}

bool TreeView::is_shown(std::uint32_t node) const {
  return !only_differing_ || list_.differing(node) > 0;
}

void TreeView::rebuild() {
  const std::uint32_t before = node();
  rows_.clear();
  std::vector<std::pair<std::uint32_t, int>> stack;  // (child, depth), the next one last
  const auto push = [&](std::uint32_t parent, int depth) {
    const std::vector<std::uint32_t>& children = tree()[parent].children;
    for (std::size_t i = children.size(); i-- > 0;)
      if (is_shown(children[i])) stack.emplace_back(children[i], depth);
  };
  push(root_, 0);
  while (!stack.empty()) {
    const auto [child, depth] = stack.back();
    stack.pop_back();
    rows_.push_back({child, tree().joined(child, false).node, depth});
    if (open_[rows_.back().node]) push(rows_.back().node, depth + 1);
  }
  // The cursor stays on its node, or on the nearest around it.
  for (std::uint32_t at = before; at != ModuleTree::kNone; at = tree()[at].parent) {
    const auto same = std::ranges::find(rows_, at, &Row::node);
    if (same == rows_.end()) continue;
    cursor_ = static_cast<std::size_t>(same - rows_.begin());
    return;
  }
  cursor_ = std::min(cursor_, rows_.empty() ? 0 : rows_.size() - 1);
}

void TreeView::move(std::int64_t by) {
  if (rows_.empty()) return;
  const auto last = static_cast<std::int64_t>(rows_.size()) - 1;
  const auto at = static_cast<std::int64_t>(cursor_);
  cursor_ = static_cast<std::size_t>(by > last - at ? last : by < -at ? 0 : at + by);
}

void TreeView::open() {
  if (rows_.empty() || is_leaf(node())) return;
  if (open_[node()]) return move(1);
  open_[node()] = true;
  rebuild();
}

void TreeView::close() {
  if (rows_.empty()) return;
  if (open_[node()] && !is_leaf(node())) {
    open_[node()] = false;
    return rebuild();
  }
  const int depth = rows_[cursor_].depth;
  if (depth == 0) return leave();
  while (cursor_ > 0 && rows_[cursor_].depth >= depth) --cursor_;
}

void TreeView::open_all() {
  if (rows_.empty()) return;
  const std::uint32_t top = node();
  std::size_t opened = rows_.size();
  for (std::uint32_t at = top; at != ModuleTree::kNone; at = tree().next(at, top)) {
    opened += tree()[at].children.size();
    if (opened > kMostOpened) break;
    if (!is_leaf(at)) open_[at] = true;
  }
  rebuild();
}

void TreeView::close_all() {
  open_.assign(open_.size(), false);
  rebuild();
}

void TreeView::enter() {
  if (rows_.empty() || is_leaf(node())) return;
  root_ = node();
  cursor_ = 0;
  rebuild();
  cursor_ = 0;
}

void TreeView::leave() {
  if (root_ == ModuleTree::kRoot) return;
  const std::uint32_t inner = root_;
  root_ = ModuleTree::kRoot;
  // To the nearest module around it that has lines of its own.
  for (std::uint32_t at = tree()[inner].parent; at != ModuleTree::kRoot; at = tree()[at].parent) {
    if (tree()[at].children.size() == 1) continue;
    root_ = at;
    break;
  }
  go_to(inner);
}

void TreeView::go_to(std::uint32_t node) {
  if (node == root_) return;
  // What is not below the module that is shown is shown from the top.
  std::uint32_t around = tree()[node].parent;
  while (around != root_ && around != ModuleTree::kRoot) around = tree()[around].parent;
  if (around != root_) root_ = ModuleTree::kRoot;
  for (std::uint32_t at = tree()[node].parent; at != root_; at = tree()[at].parent)
    open_[at] = true;
  const std::uint32_t end = tree().joined(node, false).node;
  rebuild();
  const auto row = std::ranges::find(rows_, end, &Row::node);
  if (row != rows_.end()) cursor_ = static_cast<std::size_t>(row - rows_.begin());
}

void TreeView::sort(TreeOrder order) {
  reversed_ = order == order_ && !reversed_;
  order_ = order;
  const auto stored = [this](std::uint32_t node) {
    const ModuleTree::Node& n = tree()[node];
    return n.alike == 0 ? node : *std::ranges::min_element(n.children);
  };
  const auto less = [&](std::uint32_t a, std::uint32_t b) {
    switch (order) {
      case TreeOrder::kSize:
        return tree()[a].bytes > tree()[b].bytes;
      case TreeOrder::kCount:
        return tree()[a].tensors > tree()[b].tensors;
      case TreeOrder::kStored:
        return stored(a) < stored(b);
      case TreeOrder::kChange:
        return list_.change(a) > list_.change(b);
      case TreeOrder::kName:
        break;
    }
    return natural_less(tree().label(a), tree().label(b));
  };
  list_.tree().order(
      [&](std::uint32_t a, std::uint32_t b) { return reversed_ ? less(b, a) : less(a, b); });
  rebuild();
}

void TreeView::show_differing(bool only) {
  only_differing_ = only;
  rebuild();
}

TreeView::Found TreeView::find(const std::function<bool(std::uint32_t)>& wanted, bool forward) {
  const std::uint32_t from = node();
  const std::uint32_t start = rows_.empty() ? root_ : forward ? from : rows_[cursor_].top;
  bool wrapped = false;
  std::uint32_t at = start;
  do {
    at = forward ? tree().next(at, root_) : tree().previous(at, root_);
    if (at == ModuleTree::kNone) {  // on from the other end
      if (wrapped) return Found::kNone;
      wrapped = true;
      at = root_;
      if (!forward)
        while (!tree()[at].children.empty()) at = tree()[at].children.back();
      if (forward) at = tree().next(at, root_);
      if (at == ModuleTree::kNone) return Found::kNone;
    }
    if (at == root_ || !is_shown(at) || !wanted(at)) continue;
    if (tree().joined(at, false).node == from) {  // on the line that the cursor is on
      if (wrapped) return Found::kWrapped;
      continue;
    }
    go_to(at);
    return wrapped ? Found::kWrapped : Found::kYes;
  } while (at != start || !wrapped);
  return Found::kNone;
}

TreeView::Found TreeView::search(std::string_view pattern, bool forward) {
  if (pattern.empty()) return Found::kNone;
  const bool dotted = pattern.find('.') != pattern.npos;
  return find(
      [&](std::uint32_t at) {
        if (tree()[at].alike > 0) return false;
        if (!dotted) return holds_pattern(tree()[at].name, pattern);
        // What its module's name holds already was found there.
        const std::string name = tree().full_name(at);
        const std::size_t own = tree()[at].name.size() + pattern.size() - 1;
        return holds_pattern(
            std::string_view(name).substr(name.size() - std::min(own, name.size())), pattern);
      },
      forward);
}

TreeView::Found TreeView::next_difference(bool forward) {
  return find(
      [&](std::uint32_t at) {
        return tree()[at].item != ModuleTree::kNone &&
               list_.difference(tree()[at].item) > Difference::kEqual;
      },
      forward);
}

TreeView::Found TreeView::next_mark() {
  return find([&](std::uint32_t at) { return marked_[at]; }, true);
}

void TreeView::toggle_mark() {
  if (rows_.empty()) return;
  marked_[node()] = !marked_[node()];
  move(1);
}

void TreeView::clear_marks() { marked_.assign(marked_.size(), false); }

template <class Visit>
void TreeView::each_marked(Visit&& visit) const {
  for (std::uint32_t node = 0; node < marked_.size(); ++node) {
    if (!marked_[node]) continue;
    std::uint32_t around = tree()[node].parent;
    while (around != ModuleTree::kNone && !marked_[around]) around = tree()[around].parent;
    if (around == ModuleTree::kNone) visit(node);
  }
}

TreeView::Marks TreeView::marks() const {
  Marks marks;
  each_marked([&](std::uint32_t node) {
    ++marks.lines;
    marks.tensors += tree()[node].tensors;
    marks.bytes += tree()[node].bytes;
  });
  return marks;
}

std::vector<std::uint32_t> TreeView::items_below(std::uint32_t node) const {
  std::vector<std::uint32_t> items;
  for (std::uint32_t at = node; at != ModuleTree::kNone; at = tree().next(at, node))
    if (tree()[at].item != ModuleTree::kNone) items.push_back(tree()[at].item);
  return items;
}

std::vector<std::string> TreeView::marked_names() const {
  std::vector<std::string> names;
  each_marked([&](std::uint32_t node) {
    for (const std::uint32_t item : items_below(node))
      names.emplace_back(list_.items()[item].name.view());
  });
  return names;
}

}  // namespace tessera::tools

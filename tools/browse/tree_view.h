#pragma once
// The tree as it is walked: which modules are open, in which order, where the cursor is, what is
// marked, what was searched for. Pure.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/browse/list.h"

namespace tessera::tools {

enum class TreeOrder : std::uint8_t { kName, kSize, kCount, kStored, kChange };
std::string_view order_name(TreeOrder order);

/// Whether `name` holds `pattern`: small letters stand for capitals, too.
bool holds_pattern(std::string_view name, std::string_view pattern);

class TreeView {
 public:
  /// A line: a chain of modules that hold one thing each is one.
  struct Row {
    std::uint32_t top = 0, node = 0;  // of the chain: its first and its last
    int depth = 0;
  };

  /// `list` is borrowed; its tree's order becomes this view's.
  explicit TreeView(BrowseList& list);

  const std::vector<Row>& rows() const { return rows_; }
  std::size_t cursor() const { return cursor_; }
  /// kNone where there are no rows.
  std::uint32_t node() const { return rows_.empty() ? ModuleTree::kNone : rows_[cursor_].node; }
  /// The tensor at the cursor, or kAbsent.
  std::uint32_t item() const;
  std::uint32_t root() const { return root_; }
  std::string label(const Row& row) const;
  bool is_open(std::uint32_t node) const { return open_[node]; }
  bool is_leaf(std::uint32_t node) const { return tree().operator[](node).children.empty(); }

  void move(std::int64_t by);
  void open();      // or to the first line inside
  void close();     // or to the line above it
  void open_all();  // all below the cursor, as far as lines are not too many
  void close_all();
  void enter();  // the module at the cursor is all that is shown
  void leave();  // back to what is around it

  /// By the same order again: reversed.
  void sort(TreeOrder order);
  TreeOrder order() const { return order_; }
  bool is_reversed() const { return reversed_; }
  /// Only lines with what differs in or below them.
  void show_differing(bool only);
  bool shows_differing() const { return only_differing_; }
  /// After differences became known.
  void refresh() { rebuild(); }

  enum class Found : std::uint8_t { kNone, kYes, kWrapped };
  Found search(std::string_view pattern, bool forward);
  Found next_difference(bool forward);
  Found next_mark();

  void toggle_mark();
  void clear_marks();
  bool is_marked(std::uint32_t node) const { return marked_[node]; }
  /// What is marked, what lies below a marked module counted once.
  struct Marks {
    std::uint64_t lines = 0, tensors = 0, bytes = 0;
  };
  Marks marks() const;
  std::vector<std::string> marked_names() const;
  /// Items at or below a node.
  std::vector<std::uint32_t> items_below(std::uint32_t node) const;
  /// Shows a node: what is around it is opened.
  void go_to(std::uint32_t node);

 private:
  const ModuleTree& tree() const { return list_.tree(); }
  bool is_shown(std::uint32_t node) const;
  void rebuild();
  Found find(const std::function<bool(std::uint32_t)>& wanted, bool forward);
  template <class Visit>
  void each_marked(Visit&& visit) const;

  BrowseList& list_;
  std::uint32_t root_ = ModuleTree::kRoot;
  std::vector<bool> open_, marked_;
  std::vector<Row> rows_;
  std::size_t cursor_ = 0;
  TreeOrder order_ = TreeOrder::kName;
  bool reversed_ = false, only_differing_ = false;
};

}  // namespace tessera::tools

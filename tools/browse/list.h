#pragma once
// What is browsed: the tensors of one checkpoint, or of two under common names, as a tree; and what
// is known of how the two differ.
#include <tessera/base/shared_text.h>
#include <tessera/state/manifest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/render/module_tree.h"

namespace tessera::tools {

struct BrowseItem {
  static constexpr std::uint32_t kAbsent = 0xffffffff;
  SharedText name;
  std::array<std::uint32_t, 2> tensor = {kAbsent, kAbsent};  // in each side's Manifest::tensors
  std::uint64_t bytes = 0;                                   // of A, or where B alone has it, of B
  bool same_form = true;                                     // both have it, in one type and shape
};

/// How an item of two checkpoints differs.
enum class Difference : std::uint8_t {
  kUnknown,  // type and shape are equal, elements were not compared
  kEqual,
  kValues,
  kForm,  // another type, shape or quantizer
  kOnlyA,
  kOnlyB,
};
/// "float32 [8, 3]"
std::string form_of(const TensorSpec& spec);
/// " ", "=", "≠", "!", "-", "+".
std::string_view difference_mark(Difference difference);

class BrowseList {
 public:
  /// `b` may be null.
  BrowseList(const Manifest& a, const Manifest* b);

  bool has_two() const { return two_; }
  ModuleTree& tree() { return tree_; }
  const ModuleTree& tree() const { return tree_; }
  const std::vector<BrowseItem>& items() const { return items_; }
  std::uint32_t node_of(std::uint32_t item) const { return nodes_[item]; }
  /// The item of that name; kAbsent: none.
  std::uint32_t find(std::string_view name) const;

  Difference difference(std::uint32_t item) const { return differences_[item]; }
  /// `change`: relative, of kValues.
  void set_difference(std::uint32_t item, Difference difference, double change);
  /// What is known of everything below a node: kEqual where all is, kValues where anything differs. A tensor's own.
  Difference below(std::uint32_t node) const;
  std::uint64_t differing(std::uint32_t node) const { return two_ ? counts_[node].differ : 0; }
  /// The largest below; infinite for what has no number.
  double change(std::uint32_t node) const { return two_ ? counts_[node].change : 0; }

 private:
  struct Counts {
    std::uint32_t differ = 0, equal = 0;
    double change = 0;
  };
  void count(std::uint32_t item, int by);

  bool two_;
  ModuleTree tree_;
  std::vector<BrowseItem> items_;
  std::vector<std::uint32_t> nodes_;    // by item
  std::vector<std::uint32_t> by_name_;  // items in the order of their names
  std::vector<Difference> differences_;
  std::vector<Counts> counts_;  // by node; of two alone
};

}  // namespace tessera::tools

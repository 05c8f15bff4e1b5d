#pragma once
// ModuleTree: dotted names cut into a tree of modules. Siblings whose names are numbers and that hold
// the same lie below one node, the fold, in their order:
//
//   layers.0.w, layers.1.w, layers.2.w      layers -> [0-2] -> 0 -> w
//                                                              1 -> w
//                                                              2 -> w
//
// Some hundred bytes a tensor; no recursion, however deep names are.
#include <tessera/base/shared_text.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::tools {

class ModuleTree {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::uint32_t kRoot = 0;

  struct Node {
    std::string_view name;  // one part of a dotted name; "" of a fold
    std::uint32_t parent = kNone;
    std::uint32_t item = kNone;  // the n-th name that was added; kNone: a module alone
    std::uint32_t form = 0;      // nodes of one form hold the same
    std::uint32_t alike = 0;     // > 0: a fold of so many
    std::uint64_t bytes = 0;     // with all below
    std::uint64_t tensors = 0;
    std::uint32_t place = 0;              // among its parent's children
    std::vector<std::uint32_t> children;  // in natural order of their labels, until order()
  };

  ModuleTree() : nodes_(1) {}
  /// `form`: type and shape as text; a name that was there is added to the same node again.
  void add(SharedText name, const std::string& form, std::uint64_t bytes);
  /// Sums, folds and orders. Nothing is added after it.
  void finish();

  const Node& operator[](std::uint32_t node) const { return nodes_[node]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(nodes_.size()); }
  /// The node's own part of the name; "[0-95]" or "[90 of 0-95]" of a fold.
  std::string label(std::uint32_t node) const;
  /// The dotted name; of a fold its module's and its label.
  std::string full_name(std::uint32_t node) const;
  /// As it was added, of an item's node.
  const std::string& form_text(std::uint32_t node) const { return forms_[nodes_[node].form]; }

  /// Sorts the children of every node; stable.
  void order(const std::function<bool(std::uint32_t a, std::uint32_t b)>& less);
  /// Depth first, a node before those below it; kNone after the last below `root`, and before it.
  std::uint32_t next(std::uint32_t node, std::uint32_t root) const;
  std::uint32_t previous(std::uint32_t node, std::uint32_t root) const;

  /// A module that holds one module or tensor alone is one line with it.
  struct Joined {
    std::string label;
    std::uint32_t node;
  };
  /// `through_folds`: a fold counts as the first of those that it stands for.
  Joined joined(std::uint32_t node, bool through_folds) const;

 private:
  std::uint32_t child(std::uint32_t parent, std::string_view part);
  std::uint32_t form_of(const std::string& text);
  void fold(std::uint32_t node);
  void sum(std::uint32_t node);
  void number_children(std::uint32_t node);

  struct Place {
    std::uint32_t parent;
    std::string_view part;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const {
      return std::hash<std::string_view>()(place.part) * 31 + place.parent;
    }
  };
  std::vector<Node> nodes_;
  std::vector<SharedText> names_;  // what the nodes' parts point into
  std::vector<std::string> forms_;
  std::unordered_map<std::uint32_t, std::string> fold_labels_;
  std::unordered_map<std::string, std::uint32_t> form_ids_;
  std::unordered_map<Place, std::uint32_t, PlaceHash> places_;
};

}  // namespace tessera::tools

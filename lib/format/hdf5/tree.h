#pragma once
// Which group and link each tensor and attribute of a state dict gets: a group per dict or list, a
// link per key, so that /model/layers.0.weight is state["model"]["layers.0.weight"]. What a link
// cannot be called ("", ".", with '/') is escaped; where a dataset stands in the way of a group,
// the rest of the path becomes one link joined by dots. Pure.
#include <tessera/state/value.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::h5 {

struct TreeNode {
  std::optional<std::uint32_t> leaf;              // a dataset: its number
  std::map<std::string, std::uint32_t> children;  // link -> index in NameTree::nodes; bytewise
  std::vector<std::pair<std::string, Value>> attributes;
};

/// Parents stand before their children; node 0 is the root group.
class NameTree {
 public:
  NameTree() : nodes_(1) {}
  const std::vector<TreeNode>& nodes() const { return nodes_; }
  TreeNode& node(std::uint32_t index) { return nodes_[index]; }

  /// The dataset's path, without the leading '/'. `path` must not be empty.
  std::string add_leaf(const Path& path, std::uint32_t leaf);
  /// The group of these items, made where it is absent; nullopt where a dataset is in the way.
  std::optional<std::uint32_t> group(std::span<const PathItem> path, std::string& text);

 private:
  std::uint32_t add_child(std::uint32_t parent, const std::string& link);

  std::vector<TreeNode> nodes_;
};

}  // namespace tessera::h5

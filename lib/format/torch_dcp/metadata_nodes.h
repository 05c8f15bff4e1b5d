#pragma once
// Typed access to the object graph of `.metadata`: what is not of the class or kind asked for is
// kCorrupt, naming it; what is copied out of shared nodes is bounded by the bytes present.
#include <tessera/encoding/pickle_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::dcp {

class MetadataNodes {
 public:
  using Node = PickleGraph::Node;

  /// Memoised nodes may be used any number of times by a few bytes each; what is copied out of them
  /// is bounded by a multiple of the bytes present. Real metadata stays far below both.
  MetadataNodes(const PickleGraph& graph, std::size_t bytes)
      : graph_(graph), numbers_left_(8 * bytes + 1024), text_left_(64 * bytes + 65536) {}

  /// Module and name of the class an object was made from.
  std::optional<std::pair<std::string_view, std::string_view>> class_of(Node node) const;
  /// "a module.Name", for messages.
  std::string describe(Node node) const;
  /// An attribute of an object, as BUILD set it.
  std::optional<Node> optional_field(Node object, std::string_view name) const;
  Node field(Node object, std::string_view name) const;

  void require_class(Node node, std::string_view name) const;
  void require_dict(Node node, std::string_view what) const;
  std::string_view string(Node node, std::string_view what) const;
  std::int64_t non_negative(Node node, std::string_view what) const;
  /// A str, or a pathlib path (pathlib._local on Python 3.13) made of parts; "" for anything else.
  std::string path_text(Node node) const;

  /// A text of its own, out of the budget.
  std::string copy(std::string_view text);
  /// Appends the numbers of a torch.Size (or a plain tuple or list) to `pool`, out of the budget;
  /// returns how many.
  std::size_t append_size(Node node, std::string_view what, std::vector<std::int64_t>& pool);

 protected:
  const PickleGraph& graph_;

 private:
  std::size_t numbers_left_;
  std::size_t text_left_;
};

}  // namespace tessera::dcp

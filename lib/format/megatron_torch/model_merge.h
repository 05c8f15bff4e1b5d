#pragma once
// The whole model from the model dicts of all ranks: `model`, or `model0`, `model1`, ... of an
// interleaved pipeline, as one subtree `model`.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/ranks.h"
#include "lib/format/megatron_torch/tensor_merge.h"

namespace tessera::megatron_torch {

/// A tensor of a rank's own model dict, in its order: the order in which optimizers number them.
struct LocalTensor {
  std::string fqn;  // in the whole model, without the root: "decoder.layers.4.mlp.x"
  std::uint32_t tensor = 0;
  bool tied_copy = false;          // of the embedding, in the last pipeline stage
  std::size_t chunk = 0;           // model chunk of an interleaved pipeline
  std::optional<Shape> view = {};  // packed experts: the shape its elements are to be seen in
};

/// "model", or "model0", "model1", ..., as the root of a rank file has them.
std::vector<std::string> model_keys(const Value& root);

class ModelMerge {
 public:
  explicit ModelMerge(Ranks& ranks);
  /// Adds the model's tensors and values. Throws as TensorMerge::add does, and kCorrupt where ranks
  /// hold different tensors.
  void run();
  /// One list per Ranks::files.
  const std::vector<std::vector<LocalTensor>>& local() const { return local_; }
  /// Names in the whole model, without the root, in its order: experts of later ranks stand behind
  /// those of earlier ones.
  std::vector<std::string> names() const;

 private:
  struct Leaf {
    Path path;
    std::string rule_name;
    std::vector<TpParts> replicas;  // of a tensor
    std::uint32_t file = 0;         // of a value
    Value value;
    std::size_t anchor = 0;  // where its experts begin, or its own place
  };
  using Offsets = LayerCounts;

  void keep_container();
  bool keep_extra_state();
  std::vector<const Leaf*> ordered() const;
  void find_offsets();
  void add_rank_set(std::size_t chunk, std::int64_t pp, std::int64_t ep);
  void add_leaf(std::size_t chunk, const RankFile& file, const StateEntry& entry,
                const Offsets& layers, const LayerCounts& experts, std::optional<Shape> view);
  std::optional<Shape> view_of(const RankFile& file, const StateDict& state,
                               const StateEntry& entry) const;
  Path whole_path(const RankFile& file, const Path& path, const Offsets& layers,
                  const LayerCounts& experts) const;
  bool is_tied_copy(const RankFile& file, const std::string& name) const;
  Leaf& leaf(const Path& path);
  void check_same_names(const RankFile& first, const RankFile& other, const StateDict& a,
                        const StateDict& b) const;

  Ranks& ranks_;
  std::vector<std::string> keys_;
  std::vector<std::vector<Offsets>> offsets_;  // [chunk][pp]
  std::vector<Leaf> leaves_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::size_t> anchors_;  // of families of experts
  std::vector<std::vector<LocalTensor>> local_;
  /// What ranks keep of a module besides tensors of the model: by name, file and value.
  std::map<std::string, std::vector<std::pair<std::uint32_t, Value>>> extra_;
  std::map<std::string, std::pair<std::uint32_t, std::size_t>> set_of_;  // leaf -> its last set
};

}  // namespace tessera::megatron_torch

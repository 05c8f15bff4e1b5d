#pragma once
// From a rank's own names to names in the whole model: layers are numbered per pipeline stage (and
// per model chunk of an interleaved pipeline), experts per expert-parallel rank, each from 0.
//
//   stage 1 of 2, 4 layers before it   decoder.layers.0.x                 decoder.layers.4.x
//   expert rank 1 of 2, 2 experts each ...experts.local_experts.0.x       ...local_experts.2.x
//                                      ...experts.linear_fc1.weight1      ...linear_fc1.weight3
#include <tessera/state/value.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::megatron_torch {

inline constexpr std::string_view kModel = "model";
inline constexpr std::string_view kEmbedding = "word_embeddings.weight";
inline constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 22;  // of one rank's model dict

/// Layers that a rank holds, by what stands before their number ("decoder.layers.").
using LayerCounts = std::map<std::string, std::int64_t>;
/// Highest layer number plus one of each prefix.
LayerCounts count_layers(const std::vector<std::string>& names);

/// Where "...experts...N..." has its number.
struct ExpertName {
  std::string before;
  std::int64_t expert = 0;
  std::string after;
  std::string with(std::int64_t number) const;
};
/// An expert's parameter with its number; nullopt: no expert's, or experts packed in one tensor.
std::optional<ExpertName> expert_name(std::string_view fqn);
/// Part of the experts (not of the router, nor of the shared expert).
bool is_expert(std::string_view fqn);

/// `path` with its layer number raised, in the item where it stands.
Path with_layer_offset(const Path& path, std::int64_t offset);
/// The same for the number of an expert.
Path with_expert_offset(const Path& path, std::int64_t offset);

}  // namespace tessera::megatron_torch

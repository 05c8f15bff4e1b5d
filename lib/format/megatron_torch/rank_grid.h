#pragma once
// Which rank wrote which folder: mp_rank_TT, mp_rank_TT_PPP, mp_rank_TT_PPP_EEE. With one number
// after TT it is a pipeline stage, or, in models without pipelines, an expert-parallel rank: args,
// or what lies in the first folder, decide.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::megatron_torch {

inline constexpr std::string_view kModelFile = "model_optim_rng.pt";
inline constexpr std::string_view kOptimizerFile = "distrib_optim.pt";

/// Files of a layer-wise optimizer in a rank's folder: layer_wise_optimizer_<data-parallel rank>.pt.
inline constexpr std::string_view kLayerWiseFile = "layer_wise_optimizer_";
/// Manifest::provenance: there are some.
inline constexpr std::string_view kLayerWiseProvenance = "megatron.layer_wise_optimizer";

/// One folder's name, cut in numbers.
struct RankFolder {
  std::string name;
  std::int64_t tp = 0;
  std::vector<std::int64_t> rest;  // none, one or two
};
std::optional<RankFolder> parse_rank_folder(std::string_view name);
/// Those of a checkpoint's folder, in numeric order.
std::vector<RankFolder> find_rank_folders(const Directory& directory);

/// "mp_rank_00_003_001"; a size of one leaves no number.
std::string rank_folder_name(std::int64_t tp, std::optional<std::int64_t> pp,
                             std::optional<std::int64_t> ep = std::nullopt);

struct GridRank {
  std::int64_t tp = 0, pp = 0, ep = 0;
  std::string folder;
  bool operator==(const GridRank&) const = default;
};

/// Top key of what the modules of single ranks keep besides tensors of the model, where that differs
/// from rank to rank: _extra_state.rank_<N>.model.<the rank's own name>.
inline constexpr std::string_view kRankExtraState = "_extra_state";
/// Manifest::provenance: the mesh of a checkpoint that has some.
inline constexpr std::string_view kGridProvenance = "megatron.mesh";
/// "tp=2,pp=1,ep=1".
std::string grid_text(std::int64_t tp, std::int64_t pp, std::int64_t ep);

struct RankGrid {
  std::int64_t tp = 1, pp = 1, ep = 1;
  std::vector<GridRank> present;  // by (pp, ep, tp)
  std::vector<GridRank> missing;
  std::int64_t size() const { return tp * pp * ep; }
};

/// Sizes that args state; what they do not is the highest number that occurs, plus one.
struct GridSizes {
  std::optional<std::int64_t> tp, pp, ep;
};
/// `single_is_expert`: a lone number after TT is an expert-parallel rank. Throws kCorrupt when two
/// folders are one rank, folders of different depth are mixed, or a number is beyond its size.
/// `hollow`: folders without a model's file. They are ranks that lost it, as far as nothing else
/// says how many there were; of another depth, they hold optimizers alone.
RankGrid make_grid(const std::vector<RankFolder>& folders, const GridSizes& sizes,
                   bool single_is_expert, const std::vector<RankFolder>& hollow = {});

}  // namespace tessera::megatron_torch

#pragma once
// SavePlan: which rank stores which chunk or value, decided as PyTorch's own save does it.
//
// A request that lists parts decides it alone; else:
//
//   1  every rank's part of every tensor by its layout (values and unsharded tensors: all ranks)
//   2  equal parts of several ranks are one item: in the order in which ranks 0, 1, ... name them,
//      the holder with the fewest planned bytes keeps it (a tensor counts its whole size, a value
//      1)
//
// Source: torch/distributed/checkpoint/_dedup_save_plans.py (2.3 and newer). Pure.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::dcp {

inline constexpr std::uint32_t kValueTensor = 0xffffffffu;

/// One item of the output, packed: there may be millions.
struct PlannedItem {
  static constexpr std::int32_t kWhole = -1;
  static constexpr std::int32_t kListed = -2;

  std::uint32_t entry = 0;              // in Manifest::state.entries
  std::uint32_t tensor = kValueTensor;  // in Manifest::tensors
  std::uint32_t rank = 0;               // who stores it
  /// Its part of the tensor: [begin, end) of this dim and all of the others; kWhole: all of it;
  /// kListed: the boxes' [begin]. For a value: unused.
  std::int32_t dim = kWhole;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
static_assert(sizeof(PlannedItem) == 32);

struct SavePlan {
  std::int64_t world_size = 1;
  std::vector<PlannedItem>
      items;                // by rank; values first, then tensors; each in the source's order
  PackedChunks made_boxes;  // each whole
  const PackedChunks* listed_boxes = nullptr;  // in their place: the request's, which outlives it

  /// The part of a tensor of this shape that the item holds, into `box`: its memory is used again,
  /// as there may be millions.
  void box_of(const PlannedItem& item, const Shape& shape, Box& box) const;
};

/// A format's own default for a tensor that no --placements glob matches.
using PlacementRule = std::function<std::vector<Placement>(
    const Mesh& mesh, const std::string& name, const Shape& shape)>;

/// `keep[i]`: entry i is written. `rule`: null for torch-dcp's default. Throws kInvalidArgument for
/// a layout that does not fit a tensor and kUnsupported for one whose parts are no boxes.
SavePlan plan_save(const Manifest& source, const TargetRequest& request,
                   const std::vector<bool>& keep, const PlacementRule& rule = nullptr);

/// The first matching glob's placements, nullopt: none matches. Throws kInvalidArgument when a
/// list's length is not the mesh's.
std::optional<std::vector<Placement>> asked_placements(const Mesh& mesh,
                                                       const TargetRequest& request,
                                                       const std::string& name);
/// What each mesh dim does to `name`: the first matching glob, else shard(0), but replicate on dims
/// named replicate or tp. Throws kInvalidArgument when a list's length is not the mesh's.
std::vector<Placement> placements_of(const Mesh& mesh, const TargetRequest& request,
                                     const std::string& name);

}  // namespace tessera::dcp

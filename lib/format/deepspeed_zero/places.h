#pragma once
// Where the elements of every trained parameter lie in the ranks' flat buffers.
//
//   parameter --> runs of (rank, flat buffer, offset), in order of its row-major ravel
//
// A flat buffer is one tensor of fp32_flat_groups or single_partition_of_fp32_groups; the state of
// the base optimizer under the same number is laid out alike. A rank that is not there (its file is
// missing, and that is reported elsewhere) leaves holes. Pure.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/deepspeed_zero/stacked_experts.h"
#include "lib/format/deepspeed_zero/values.h"
#include "lib/layout/flat_places.h"

namespace tessera::deepspeed {

struct TrainedParameter {
  std::string name;
  Shape shape;
  std::size_t flat = 0;       // the buffer it starts in
  std::vector<FlatRun> runs;  // none without elements
  std::string stored = {};    // what the ranks' files call it, where that is another name
};

/// One rank's buffers: elements of each.
using FlatSizes = std::vector<std::int64_t>;

/// Stages 1 and 2. `shapes`: per group, in buffer order. `alignment`: padding after each
/// parameter, per group; may be empty. Throws kCorrupt when the sizes do not fit the shapes.
std::vector<TrainedParameter> places_of_stage_2(
    const std::vector<std::vector<NamedShape>>& shapes,
    const std::vector<std::vector<std::int64_t>>& alignment,
    const std::vector<std::optional<FlatSizes>>& ranks);

/// Stages 1 and 2 with experts. `over`: the number of ranks that each group is cut over. Where
/// that is W / n, ranks e, e + n, ... hold the e-th share of the experts: rows of what is `stacked`
/// (`shapes` has those of a share, what is returned all), or experts of their own, whose numbers in
/// `shapes` count within the share; the names that are returned count all of them. Throws
/// kUnsupported for a name of such a group that is neither stacked nor has an expert's number.
std::vector<TrainedParameter> places_with_experts(
    const std::vector<std::vector<NamedShape>>& shapes,
    const std::vector<std::vector<std::int64_t>>& alignment, const std::vector<std::int64_t>& over,
    const StackedExperts& stacked, const std::vector<std::optional<FlatSizes>>& ranks);

/// Stage 3. `shapes`: per sub-group. `over`: as above, for each sub-group; empty: all ranks. Experts
/// are `stacked` there.
std::vector<TrainedParameter> places_of_stage_3(const std::vector<std::vector<NamedShape>>& shapes,
                                                const std::vector<std::optional<FlatSizes>>& ranks,
                                                const std::vector<std::int64_t>& over = {},
                                                const StackedExperts& stacked = {});

}  // namespace tessera::deepspeed

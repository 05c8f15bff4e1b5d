#pragma once
// What the ranks' files of one checkpoint must agree on before they are put together: `args` that
// say shapes and layout, the iteration, and whose file each is (args.rank rises with every rank's
// number).
#include <string_view>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/megatron_torch/rank_grid.h"

namespace tessera::megatron_torch {

/// A rank's file and its top object, a dict.
struct RankRoot {
  GridRank rank;
  const Value* root = nullptr;
};

/// Whether all ranks of one job state the same under this name: sizes, numbers of layers and heads,
/// kinds of layers. Not: a rank's own number, paths, what a run may count on its own.
bool must_agree(std::string_view argument);

/// Findings (CK066) for args or an iteration that differ from the first rank's. Of `rank` the
/// folder alone counts: sizes, which args state, need not be known yet.
void check_args(const std::vector<RankRoot>& ranks, Findings& findings);
/// A finding (CK067) for files that by args.rank lie in each other's folders.
void check_order(const std::vector<RankRoot>& ranks, Findings& findings);

}  // namespace tessera::megatron_torch

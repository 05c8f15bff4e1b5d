#pragma once
// --sort and --top: which rows of a report come first, and how many stay.
#include <tessera/ops/diff.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

/// A diff: by name in natural order, or the most changed first, and before these what is there on
/// one side alone or of another form. "": as it is.
void order(DiffReport& report, const std::string& sort);
void order(std::vector<LayerDiff>& layers, const std::string& sort);

/// The ranking of updates: by "ratio", "update", "weight", "v", "growth", "name". NaN comes first.
/// Throws kInvalidArgument for "growth" without a second checkpoint.
void order(OptimReport& report, const std::string& sort, std::optional<std::int64_t> top);

/// Statistics: "stored", "name", "abs-max", "std", "l2", "zeros", "nan" (with Inf). What has no
/// such number comes last.
void order(StatReport& report, const std::string& sort, std::optional<std::int64_t> top);

}  // namespace tessera::tools

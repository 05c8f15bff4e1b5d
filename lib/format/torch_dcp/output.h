#pragma once
// The writer of torch-dcp: a Manifest and a request to an OutputPlan. No I/O.
#include <tessera/format/format_driver.h>

#include <cstddef>
#include <functional>
#include <string_view>

#include "lib/format/torch_dcp/save_plan.h"

namespace tessera::dcp {

/// What formats built on DCP's files do otherwise. The defaults are torch-dcp itself.
struct OutputOptions {
  std::string_view format = "torch-dcp";
  /// Entries that such a format keeps outside of DCP's files; null: none.
  std::function<bool(std::size_t entry)> elsewhere;
  /// Containers of such entries.
  std::function<bool(const ContainerNote&)> container_elsewhere;
  /// What each mesh dim does to a tensor that no --placements name; null: placements_of().
  PlacementRule placements;
};

/// See FormatDriver::output_plan. Files: `__R_0.distcp` for every rank (empty for ranks without
/// items), then `.metadata`.
OutputPlan make_output_plan(const Manifest& source, const TargetRequest& request,
                            const OutputOptions& options = {});

}  // namespace tessera::dcp

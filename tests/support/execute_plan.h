#pragma once
// Executes an OutputPlan the slow, obvious way: every tensor is read whole through TensorReader,
// cut with copy_region, and every other segment is rendered. An oracle for writers, independent of
// the executor.
#include <tessera/base/bytes.h>
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>
#include <tessera/storage/file_system.h>

#include <map>
#include <string>

namespace tessera::testing {

/// Path -> content of every file. `source` must be located.
std::map<std::string, Bytes> execute_plan(const Manifest& source, const Directory& directory,
                                          const OutputPlan& plan);

}  // namespace tessera::testing

#pragma once
// Two output plans of one source as one: the files of the second come after those of the first.
#include <tessera/state/output_plan.h>

namespace tessera {

/// Both must be plans of folders, for the same source manifest. The result has the first's format.
OutputPlan join_plans(OutputPlan first, OutputPlan second);

}  // namespace tessera

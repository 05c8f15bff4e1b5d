#pragma once
// A state as FairScale's files for any world size. Pure; docs/formats/fairscale-fsdp.md.
#include <tessera/format/format_driver.h>

namespace tessera::fairscale {

OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::fairscale

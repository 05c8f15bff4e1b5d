#pragma once
// The writer of deepspeed-zero: any state -> the files an engine of W ranks loads. No I/O.
#include <tessera/format/format_driver.h>

namespace tessera::deepspeed {

/// Throws kUnsupported naming the first thing that DeepSpeed's files cannot hold.
OutputPlan plan_zero(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::deepspeed

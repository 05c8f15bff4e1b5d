#pragma once
// The reader of deepspeed-zero: files -> Manifest, no tensor byte read but the step counters of
// stage 3, which are values there.
#include <tessera/format/format_driver.h>

namespace tessera::deepspeed {

Manifest read_zero(const Place& place, const ReadOptions& options);

}  // namespace tessera::deepspeed

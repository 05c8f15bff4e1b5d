#pragma once
// Which kind of engine the written files are for: what was asked, else as the source was saved.
#include <tessera/format/format_driver.h>

#include "lib/format/deepspeed_zero/source_state.h"

namespace tessera::deepspeed {

/// 1, 2 or 3: the request's, the source's, or 2.
int target_stage(const Manifest& source, const TargetRequest& request);
/// Whether the engine runs in bf16, by the source's own files or its `ds_config`.
bool target_is_bf16(const Manifest& source, const SourceState& state);

}  // namespace tessera::deepspeed

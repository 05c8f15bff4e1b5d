#pragma once
// What optimizer files of both formats share: scalars, groups, fields.
#include "lib/format/deepspeed_zero/model_writer.h"

namespace tessera::deepspeed {

/// A step as DeepSpeed's optimizers keep it: a 0-dim tensor (a float value becomes float32), or an
/// integer.
Value scalar_value(ArchiveDraft& builder, const Value& value);

/// Options and `params`: ids of the buffers that hold the group.
Value param_groups(ArchiveDraft& builder, const SourceState& state, const Target& target);

/// loss_scaler and the rest of deepspeed.*, buffer_names left out.
void add_globals(ArchiveDraft& builder, const SourceState& state, ValueDict& out);

}  // namespace tessera::deepspeed

#pragma once
// What optimizer files of both formats share: scalars, groups, fields.
#include "lib/format/deepspeed_zero/model_writer.h"

namespace tessera::deepspeed {

/// A leaf that is no tensor of a parameter's elements: a 0-dim tensor or a number as it is, but a step that is a float becomes a 0-dim
/// float32 tensor, as DeepSpeed's optimizers keep it.
Value scalar_value(ArchiveDraft& builder, const GroupedLeaf& leaf);

/// Options and `params`: ids of the buffers that hold the group.
Value param_groups(ArchiveDraft& builder, const SourceState& state, const Target& target);

/// loss_scaler and the rest of deepspeed.*, buffer_names left out.
void add_globals(ArchiveDraft& builder, const SourceState& state, ValueDict& out);

}  // namespace tessera::deepspeed

#pragma once
// A pipeline as its engine loads it: for each stage a model file without weights and the optimizer
// files of its ranks, and a file for each layer. Stages and layers are the source's; how many
// data-parallel ranks a stage has is the caller's choice.
#include "lib/format/deepspeed_zero/model_writer.h"
#include "lib/format/deepspeed_zero/pipeline_layout.h"

namespace tessera::deepspeed {

/// One target for each stage. Throws kUnsupported where the state is no longer that of the layout:
/// parameters that it lacks, or more than it names; parameters that are dealt out.
std::vector<Target> stage_targets(const SourceState& state, const Target& whole,
                                  const PipelineLayout& layout);

std::vector<ArchiveFile> layer_files(const Manifest& source, const SourceState& state,
                                     const Target& target, const PipelineLayout& layout);

}  // namespace tessera::deepspeed

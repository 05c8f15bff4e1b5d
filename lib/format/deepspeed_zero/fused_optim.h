#pragma once
// The optimizer of an engine without ZeRO that is made for flat buffers (FusedAdam), under fp16 and
// bf16: one parameter per group, all of the group's end to end.
//
//   "optimizer": {"optimizer_state_dict": {"state": {0: {"exp_avg": flat, ...}}, "param_groups"},
//                 "fp32_groups_flat": [flat master of group 0, ...], "cur_scale", ...}
//   "module":    {name: tensor}   weights, views of a flat buffer of low precision per group
//
// No field names the parameters of a flat buffer, but torch.save stores views with the buffer they
// lie in: where a weight begins there, its master and its state begin in theirs.
//
// Source: deepspeed/runtime/fp16/fused_optimizer.py (0.19.8).
#include <tessera/encoding/torch_archive.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/deepspeed_zero/state_assembler.h"

namespace tessera::deepspeed {

struct FusedMember {
  std::string name;
  Shape shape;
  std::int64_t begin = 0;  // elements, in the group's flat buffers
};
struct FusedGroup {
  std::uint32_t master = 0;  // tensor of the archive
  std::vector<FusedMember> members;
};
struct FusedLayout {
  std::vector<FusedGroup> groups;
  std::string missing;  // why there are none: for people
};

/// nullopt: no flat masters. kCorrupt: groups and masters that contradict each other.
std::optional<FusedLayout> fused_layout(const TorchArchive& archive, const ModelFile& model,
                                        const Value& stored);
/// Adds state, masters, groups and the wrapper's own fields under the parameters' names.
void add_fused_optimizer(ArchiveManifestBuilder& builder, StateAssembler& state,
                         const ModelFile& model, const Value& stored, const FusedLayout& layout);

}  // namespace tessera::deepspeed

#pragma once
// Hugging Face's older shards: `pytorch_model-00001-of-00002.bin`, each a dict of tensors that
// torch.save wrote, with `pytorch_model.bin.index.json` that names the file of each tensor.
#include <tessera/format/format_driver.h>

#include <optional>

#include "lib/format/shard_index.h"

namespace tessera::torch_save {

inline constexpr ShardNaming kShardNaming = {".bin", ".bin.index.json"};

/// What makes the place a set of shards: its index, or the first numbered file of a folder; nullopt
/// when it is none. Throws kUnsupported for several indexes.
std::optional<std::string> sign_of_shards(const Place& place);

/// The shards' tensors as one flat state; ColossalAI's shards of an optimizer (`pytorch_optim-*.bin`) as the
/// state_dict() that they are pieces of. Findings as in lib/format/shard_index.h, and
///   CK042  a shard cannot be read: CK024 names what it held, where an index does
Manifest read_shards(const Place& place, const ReadOptions& options);

}  // namespace tessera::torch_save

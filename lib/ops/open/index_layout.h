#pragma once
// --as-index: the layout of a result taken from the index of a set of safetensors shards, that of
// the model a run began from, say: which file holds which tensor, and the tensors' types there.
#include <tessera/format/safetensors.h>
#include <tessera/ops/open.h>

#include <map>
#include <string>

namespace tessera {

struct IndexLayout {
  ShardNames names;
  std::map<std::string, DType> types;  // by tensor; only when asked for
};

/// `path`: an index, or a folder that has one; "": the source's own. `with_types`: the shards are
/// opened too, their headers alone. Throws kInvalidArgument where no index is.
IndexLayout read_index_layout(FileSystem& fs, const OpenedCheckpoint& source,
                              const std::string& path, bool with_types);

}  // namespace tessera

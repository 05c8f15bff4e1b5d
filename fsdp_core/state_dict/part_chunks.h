#pragma once
// How the parts that stand for a parameter are cut over the ranks of its unit: as the unit's
// extension says (Extension::chunk, chunk_as_dtensor), checked.
#include <tessera/fsdp/extension.h>

#include <string>
#include <vector>

#include "fsdp_core/state_dict/model_tensors.h"

namespace tessera::fsdp {

/// The extension of the unit that holds `tensor`. Precondition: it has one.
inline const Extension& extension_of(const ModelTensor& tensor) {
  return *tensor.unit->options().extension;
}

/// One of the tensors that stand for a parameter.
struct PartOf {
  StoredPart stored;  // as the extension names it
  std::string fqn;
};

/// On the mesh dim that the unit, which has a mesh, shards over.
Placement placement_of(const ModelTensor& tensor, const PartOf& part);

/// By part, what each rank of the unit's shard group holds; none: all of it, every rank. Throws
/// kInvalidArgument on every rank of the unit, naming the part, where their boxes do not hold every
/// element once, and what the extension throws. Collective over the unit's ranks.
std::vector<std::vector<Box>> chunks_of(const ModelTensor& tensor,
                                        const std::vector<PartOf>& parts);

}  // namespace tessera::fsdp

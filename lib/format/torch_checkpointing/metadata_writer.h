#pragma once
// metadata.pkl as torch_checkpointing writes it, in both versions: plain data, of which equal parts
// are one object, as its own pickles have them.
#include <string>
#include <vector>

#include "lib/format/torch_rank_files/rank_output.h"

namespace tessera::checkpointing {

struct MetadataForm {
  bool version_1 = false;           // else 2.0
  std::string device_type = "cpu";  // of the mesh
  bool named_dims = false;          // the mesh's dims have names
};

std::string metadata_text(const Mesh& mesh, std::span<const rank_files::ItemTensor> tensors,
                          const MetadataForm& form);

}  // namespace tessera::checkpointing

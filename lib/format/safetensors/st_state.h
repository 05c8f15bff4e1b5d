#pragma once
// The state dict behind a safetensors file of our own writing: values, paths and kinds of
// containers as JSON in __metadata__.
//
//   tessera.values  {"optim.param_groups.0.lr": 0.001, ...}    tagged JSON (encoding/tagged_json.h)
//   tessera.state   {"entries":     all leaves in order, with their paths
//                      [["model.w", ["model", "w"]], ...],
//                    "containers":  [[path, "dict" | "ordered_dict", attributes,
//                                     entries before it], ...]}
//
// An item of a path is "key", 3 (an index in a list) or {"int_key": 3}.
//
// HDF5 files of ours keep the same two documents (hdf5/h5_own_state.h).
// tessera.state is left out when it would say nothing: tensors only, each path the name itself.
#include <tessera/format/format_driver.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::st {

/// A tensor to be stored, and the name it gets in the file.
struct NamedTensor {
  std::string name;
  std::uint32_t tensor = 0;  // in the source Manifest::tensors
};

struct EncodedState {
  std::vector<NamedTensor> tensors;  // leaves in state order, then those embedded in values
  std::vector<std::pair<std::string, std::string>> metadata;  // what goes into __metadata__
  std::vector<Note> notes;                                    // what was dropped
};

/// Throws kUnsupported naming the first leaf that policies do not let go and the format cannot
/// hold. `format`: its id, for messages.
EncodedState encode_state(const Manifest& source, const TargetRequest& request,
                          std::string_view format = "safetensors");

/// Rebuilds the state over `tensors` (name -> index). Files of others have no metadata of ours: one
/// entry per tensor, in `order`. Sets `embedded[i]` for tensors that only values refer to.
StateDict decode_state(const std::vector<std::string>& order,
                       const std::map<std::string, std::string>& metadata,
                       std::vector<bool>& embedded);

}  // namespace tessera::st

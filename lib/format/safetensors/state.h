#pragma once
// The state dict behind a safetensors file of our own writing: values, paths and kinds of
// containers as JSON in __metadata__.
//
//   tessera.values  {"optim.param_groups.0.lr": 0.001, ...}    tagged JSON (encoding/tagged_json.h)
//   tessera.state   {"entries":     all leaves in order, with their paths
//                      [["model.w", ["model", "w"]], ...],
//                    "containers":  [[path, "dict" | "ordered_dict" | "default_dict" | "counter",
//                                     attributes, entries before it], ...]}
//
// An item of a path is "key", 3 (an index in a list) or {"int_key": 3}. The attributes of a
// default_dict are an empty one, with its factory.
//
// HDF5 files of ours keep the same two documents (hdf5/h5_own_state.h).
// tessera.state is left out when it would say nothing: tensors only, each path the name itself.
#include <tessera/format/format_driver.h>
#include <tessera/state/value.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::st {

inline constexpr std::array<std::pair<Value::Kind, std::string_view>, 4> kContainerWords = {
    {{Value::Kind::kDict, "dict"},
     {Value::Kind::kOrderedDict, "ordered_dict"},
     {Value::Kind::kDefaultDict, "default_dict"},
     {Value::Kind::kCounter, "counter"}}};

/// A tensor to be stored, and the name it gets in the file.
struct NamedTensor {
  std::string name;
  std::uint32_t tensor = 0;  // in the source Manifest::tensors
};

struct EncodedState {
  std::vector<NamedTensor> tensors;  // leaves in state order, then those embedded in values
  std::vector<std::pair<std::string, std::string>> metadata;  // what goes into __metadata__
  std::vector<Note> notes;                                    // what was dropped
  std::vector<LeftOut> left_out;                              // the same, for the account
};

/// Throws kUnsupported naming the first leaf that policies do not let go and the format cannot
/// hold. `format`: its id, for messages.
EncodedState encode_state(const Manifest& source, const TargetRequest& request,
                          std::string_view format = "safetensors");

/// Rebuilds the state over `tensors` (name -> index). Files of others have no metadata of ours: one
/// entry per tensor, in `order`. Sets `embedded[i]` for tensors that only values refer to.
StateDict decode_state(std::span<const SharedText> order,
                       const std::map<std::string, std::string>& metadata,
                       std::vector<bool>& embedded);

}  // namespace tessera::st

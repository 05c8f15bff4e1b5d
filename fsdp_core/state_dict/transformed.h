#pragma once
// Parameters that state dicts hold in another form (Extension::post_unflatten and pre_load):
// gathered one at a time when the state is made, cut as the extension says or whole, and made
// parameters again once a load has filled every part.
#include <tessera/state/live_state.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/bridge/spread.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/part_chunks.h"

namespace tessera::fsdp {

/// Whether the unit's extension transforms it. Throws kUnsupported, naming it, for a parameter that
/// is a part of a larger tensor or tied.
bool is_transformed(const ModelTensor& tensor);
/// Names, types and shapes of its parts; values are of no meaning. Not collective.
std::vector<PartOf> parts_like(const ModelTensor& tensor);

class TransformedParameters {
 public:
  struct Part {
    std::string fqn;
    std::optional<LiveTensor> live;  // nullopt: not here
  };
  /// Collective over the unit's ranks, which throw together what an extension throws on one, or
  /// answers apart. `named`: by FQN, the name in the state.
  std::vector<Part> add(const ModelTensor& tensor, Spread::Form form,
                        const std::function<std::string(const std::string& fqn)>& named);
  /// Makes this rank's shards of the parameters whose parts were loaded. Throws kInvalidArgument
  /// where only some parts of one were, or pre_load gives another shape. Collective, as add.
  void check(const std::unordered_set<std::string>& loaded);
  /// Takes over what check made.
  void write_back();

 private:
  struct HeldPart {
    std::string part;  // as the extension named it
    std::string name;  // in the state
    Shape whole;
    std::vector<Box> chunks;  // by shard rank; none: `copy` is whole
    at::Tensor copy;          // undefined: not here
  };
  struct Held {
    ModelTensor tensor;
    Spread spread;
    std::vector<HeldPart> parts;
    at::Tensor made;  // by check: the shard's new values
  };
  static std::optional<LiveTensor> keep(const Held& held, HeldPart& kept, const at::Tensor& whole);
  static std::vector<StoredPart> gathered_parts(const Held& held);
  static void check_gathered(const Held& held, const std::vector<StoredPart>& parts);
  static at::Tensor restored(const Held& held, const std::vector<StoredPart>& parts);
  std::vector<Held> held_;
};

}  // namespace tessera::fsdp

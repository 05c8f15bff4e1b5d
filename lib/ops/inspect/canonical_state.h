#pragma once
// A state by the names of today's rule, whatever rule its writer flattened it by: what two
// checkpoints are compared by.
#include <tessera/state/value.h>

namespace tessera {

/// Replaces `state` by the tree it stands for, flattened anew; puts the stored entries back at the
/// end. Empty dicts do not count: formats of leaves only cannot keep them, and a list that loses
/// one is flattened differently. Kinds of dicts (OrderedDict, ...) are kept. A state that stands
/// for no tree stays as it is.
class CanonicalState {
 public:
  explicit CanonicalState(StateDict& state);
  ~CanonicalState() { state_ = std::move(stored_); }
  CanonicalState(const CanonicalState&) = delete;
  CanonicalState& operator=(const CanonicalState&) = delete;

 private:
  StateDict& state_;
  StateDict stored_;
};

}  // namespace tessera

#include "lib/ops/inspect/canonical_state.h"

#include <tessera/base/error.h>

#include <utility>
#include <vector>

#include "lib/state/other_keys.h"

namespace tessera {
namespace {

constexpr std::uint64_t kMostValues = std::uint64_t{1} << 26;

StateDict flattened_anew(const StateDict& state) {
  ValueBudget budget(kMostValues);
  StateDict leaves = flatten(unflatten(state), budget);
  // A list without its empty dicts may be a leaf where it was none: the second pass sees to that,
  // and a third would change nothing.
  std::vector<ContainerNote> kinds = std::move(leaves.containers);
  std::erase_if(kinds, [](const ContainerNote& note) {
    return note.kind == Value::Kind::kDict && !is_of_other_keys(note);
  });
  leaves.containers.clear();
  StateDict settled = flatten(unflatten(leaves), budget);
  settled.containers = std::move(kinds);
  return settled;
}

}  // namespace

CanonicalState::CanonicalState(StateDict& state) : state_(state), stored_(state) {
  try {
    state_ = flattened_anew(stored_);
  } catch (const Error& error) {
    // Paths that fit no tree: of a damaged or foreign writer; its names still compare.
    if (error.code() != Code::kCorrupt) throw;
  }
}

}  // namespace tessera

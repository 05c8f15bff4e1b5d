#include "lib/state/edit/take_out.h"

namespace tessera {

void take_out(StateDict& state, const std::vector<bool>& taken) {
  std::vector<std::size_t> before(state.entries.size() + 1);
  for (std::size_t i = 0; i < state.entries.size(); ++i)
    before[i + 1] = before[i] + (i < taken.size() && taken[i] ? 0 : 1);
  for (ContainerNote& note : state.containers)
    if (note.entries_before < before.size()) note.entries_before = before[note.entries_before];
  std::size_t next = 0;
  std::erase_if(state.entries, [&](const StateEntry&) {
    const std::size_t i = next++;
    return i < taken.size() && taken[i];
  });
}

}  // namespace tessera

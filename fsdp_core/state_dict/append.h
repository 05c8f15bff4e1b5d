#pragma once
// Entries of a LiveState whose names are known to be new: LiveState's own calls look for each name
// among all that are there, which in a large model takes longer than everything else.
#include <tessera/state/live_state.h>

#include <utility>

namespace tessera::fsdp {

inline void append_value(LiveState& state, Path path, Value value) {
  std::string name = dotted(path);
  state.dict.entries.push_back({std::move(name), std::move(path), std::move(value)});
}

inline void append_tensor(LiveState& state, Path path, LiveTensor tensor) {
  const auto index = static_cast<std::uint32_t>(state.tensors.size());
  state.tensors.push_back(std::move(tensor));
  append_value(state, std::move(path), Value::tensor(index));
}

}  // namespace tessera::fsdp

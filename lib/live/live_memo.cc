#include "lib/live/live_memo.h"

#include <algorithm>

namespace tessera {

LiveMemo::Kind LiveMemo::kind_of(const LiveState& state, const StateEntry& entry) {
  if (entry.value.is_tensor()) return Kind::kTensor;
  return state.per_rank.contains(entry.name) ? Kind::kPerRank : Kind::kShared;
}

LiveMemo::LiveMemo(const LiveState& state) {
  entries_.reserve(state.dict.entries.size());
  for (const StateEntry& entry : state.dict.entries) {
    Entry& made = entries_.emplace_back();
    made.kind = kind_of(state, entry);
    made.name = entry.name;
    made.path = entry.path;
    if (made.kind != Kind::kTensor) continue;
    const LiveTensor& tensor = state.tensors[entry.value.tensor_index()];
    made.spec = tensor.spec;
    made.replicated = tensor.replicated;
    made.is_parameter = tensor.is_parameter;
    for (const LivePiece& piece : tensor.pieces)
      made.pieces.push_back({piece.chunk, piece.strides, piece.chunk.numel() > 0});
  }
}

bool LiveMemo::same(const Entry& entry, const LiveTensor& tensor) {
  return tensor.replicated == entry.replicated && tensor.is_parameter == entry.is_parameter &&
         tensor.spec == entry.spec &&
         std::ranges::equal(tensor.pieces, entry.pieces, [](const auto& now, const Piece& then) {
           return now.chunk == then.chunk && now.strides == then.strides &&
                  (now.data != nullptr || !then.has_data);
         });
}

bool LiveMemo::matches(const LiveState& state) const {
  return std::ranges::equal(
      state.dict.entries, entries_, [&](const StateEntry& now, const Entry& then) {
        if (now.name != then.name || kind_of(state, now) != then.kind || now.path != then.path)
          return false;
        return then.kind != Kind::kTensor || (now.value.tensor_index() < state.tensors.size() &&
                                              same(then, state.tensors[now.value.tensor_index()]));
      });
}

}  // namespace tessera

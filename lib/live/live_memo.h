#pragma once
// LiveMemo: what a state looked like when its save was planned: names, places, kinds, types, boxes
// and strides, but no memory and no values. The next save asks whether its state still looks so,
// which is far cheaper than describing it again.
#include <tessera/state/live_state.h>

#include <string>
#include <vector>

namespace tessera {

class LiveMemo {
 public:
  explicit LiveMemo(const LiveState& state);
  /// True: `state` passes check_live_tensors() and check_names() as the one before did, and every
  /// description of it would have the same structure.
  bool matches(const LiveState& state) const;

 private:
  enum class Kind : std::uint8_t { kTensor, kShared, kPerRank };
  struct Piece {
    Chunk chunk;
    std::vector<std::int64_t> strides;
    bool has_data = false;  // not empty: needs memory
  };
  struct Entry {
    Kind kind = Kind::kTensor;
    std::string name;
    Path path;
    TensorSpec spec;
    bool replicated = false, is_parameter = false;
    std::vector<Piece> pieces;
  };
  static Kind kind_of(const LiveState& state, const StateEntry& entry);
  static bool same(const Entry& entry, const LiveTensor& tensor);

  std::vector<Entry> entries_;
};

}  // namespace tessera

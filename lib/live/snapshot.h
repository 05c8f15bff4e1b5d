#pragma once
// The copy of a rank's pieces that a save in the background writes from.
//
//   Snapshot::plan   where every piece goes, in a buffer that is kept from save to save and touched
//                    once; the sources of the merged state point there
//   Snapshot::take   the bytes. By the caller and a second thread, since one thread does not fill
//                    the memory's bandwidth; or by one thread while training goes on
//
// Pieces that lie end to end in memory (the shards of one flat buffer) are copied as one. What only the
// state's callbacks change (LiveTensor::written_in_place) is not copied, but written from where it is.
#include <tessera/state/live_state.h>
#include <tessera/storage/aligned_buffer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/live/live_merge.h"

namespace tessera {

class Snapshot {
 public:
  /// Throws kResourceExhausted. Nobody may read the buffer of the plan before.
  void plan(const LiveState& state, MergedState& merged);
  /// The tensors that are to be copied at once, by up to `threads` threads where they are large.
  void take_early(int threads);
  /// All others. Needs the memory of the state alone, not the state.
  void take(int threads);
  /// Nothing of the state is needed any more but what is written from where it is.
  void release();
  /// Nor that.
  void written() { in_place_.clear(); }

 private:
  struct Run {
    const std::byte* from = nullptr;
    std::uint64_t to = 0;  // in buffer_
    std::uint64_t bytes = 0;
  };
  struct Strided {  // copied element by element
    const std::byte* from = nullptr;
    std::uint64_t to = 0;
    Shape shape;
    std::vector<std::int64_t> strides;
    int element_bytes = 0;
  };
  struct Copies {
    std::vector<Run> runs;
    std::vector<Strided> strided;
    std::uint64_t bytes = 0;
  };
  void reserve(std::uint64_t bytes);
  void copy(const Copies& copies, int threads);

  AlignedBuffer buffer_;
  Copies early_, copies_;
  std::vector<std::shared_ptr<const void>> owners_, in_place_;
};

}  // namespace tessera

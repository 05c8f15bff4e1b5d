#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/tensor/packed_chunks.h>

#include <algorithm>

namespace tessera {

bool operator==(const ChunkView& a, const ChunkView& b) {
  return std::ranges::equal(a.origin, b.origin) && std::ranges::equal(a.extents, b.extents) &&
         a.flat_begin == b.flat_begin && a.flat_end == b.flat_end;
}

bool ChunkView::has_box_in(const Shape& shape) const {
  if (rank() != shape.rank() || origin.size() != extents.size()) return false;
  for (int d = 0; d < rank(); ++d)
    if (begin(d) < 0 || extent(d) < 0 || extent(d) > shape[d] || begin(d) > shape[d] - extent(d))
      return false;
  return true;
}

void PackedChunks::push_back(const ChunkView& chunk) {
  const std::size_t rank = chunk.extents.size();
  TESSERA_CHECK(chunk.origin.size() == rank && rank <= kRankMask);
  const bool has_range = !chunk.is_whole_box();
  const bool at_zero = rank <= kZeros.size() &&
                       std::ranges::all_of(chunk.origin, [](std::int64_t n) { return n == 0; });
  const std::uint64_t place = numbers_.size();
  grow_large(places_, 1);
  grow_large(numbers_, (at_zero ? rank : 2 * rank) + (has_range ? 2 : 0));
  if (!at_zero) numbers_.insert(numbers_.end(), chunk.origin.begin(), chunk.origin.end());
  numbers_.insert(numbers_.end(), chunk.extents.begin(), chunk.extents.end());
  if (has_range) numbers_.insert(numbers_.end(), {chunk.flat_begin, chunk.flat_end});
  places_.push_back(place << kPlaceShift | rank << 1 | (at_zero ? kAtZero : 0) |
                    (has_range ? 1 : 0));
}

void PackedChunks::append(const PackedChunks& others) {
  const std::uint64_t shift = std::uint64_t{numbers_.size()} << kPlaceShift;
  grow_large(numbers_, others.numbers_.size());
  grow_large(places_, others.places_.size());
  numbers_.insert(numbers_.end(), others.numbers_.begin(), others.numbers_.end());
  for (const std::uint64_t place : others.places_) places_.push_back(place + shift);
}

void PackedChunks::reserve(std::size_t chunks, std::size_t numbers) {
  reserve_large(places_, chunks);
  reserve_large(numbers_, numbers);
}

std::size_t PackedChunks::memory_bytes() const {
  return numbers_.capacity() * sizeof(std::int64_t) + places_.capacity() * sizeof(std::uint64_t);
}

}  // namespace tessera

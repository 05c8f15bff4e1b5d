#pragma once
// PackedChunks: many chunks in two arrays. Some checkpoints have millions of chunks, and a Chunk
// holds two vectors. ChunkView: one chunk in place, without a copy.
//
//   numbers   the origin (unless it is zero), extents and, of what is no whole box, flat_begin and
//             flat_end; chunk by chunk
//   places    a word per chunk: where its numbers begin, its rank, whether its origin is zero,
//             whether it has a range
//
// A view is valid as long as the numbers it refers to stay unchanged.
#include <tessera/tensor/chunk.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct ChunkView {
  std::span<const std::int64_t> origin;   // as Box::origin
  std::span<const std::int64_t> extents;  // as Box::shape; as many
  std::int64_t flat_begin = 0;            // as Chunk's
  std::int64_t flat_end = 0;

  ChunkView() = default;
  ChunkView(const Chunk& chunk)  // NOLINT: what takes a view takes a chunk
      : origin(chunk.box.origin),
        extents(chunk.box.shape.extents()),
        flat_begin(chunk.flat_begin),
        flat_end(chunk.flat_end) {}
  /// A whole box.
  ChunkView(std::span<const std::int64_t> box_origin, std::span<const std::int64_t> box_extents)
      : origin(box_origin), extents(box_extents), flat_end(box_numel()) {}

  int rank() const { return static_cast<int>(extents.size()); }
  std::int64_t begin(int dim) const { return origin[static_cast<std::size_t>(dim)]; }
  std::int64_t extent(int dim) const { return extents[static_cast<std::size_t>(dim)]; }
  std::int64_t end(int dim) const { return begin(dim) + extent(dim); }
  std::int64_t box_numel() const {
    std::int64_t numel = 1;
    for (const std::int64_t n : extents) numel *= n;
    return numel;
  }
  std::int64_t numel() const { return flat_end - flat_begin; }
  bool is_whole_box() const { return flat_begin == 0 && flat_end == box_numel(); }
  /// Whether the box lies in a tensor of `shape`. Safe for any numbers.
  bool has_box_in(const Shape& shape) const;
  /// Whether the range lies in the box. Precondition: has_box_in().
  bool has_range_in_box() const {
    return 0 <= flat_begin && flat_begin <= flat_end && flat_end <= box_numel();
  }
  /// Both. Safe for any numbers.
  bool lies_in(const Shape& shape) const { return has_box_in(shape) && has_range_in_box(); }
  Box box() const { return {{origin.begin(), origin.end()}, Shape(extents)}; }
  Chunk chunk() const { return {box(), flat_begin, flat_end}; }
  std::string to_string() const { return chunk().to_string(); }
};

/// By value: origin, extents, range.
bool operator==(const ChunkView& a, const ChunkView& b);

class PackedChunks {
 public:
  PackedChunks() = default;
  PackedChunks(std::initializer_list<Chunk> chunks) {
    for (const Chunk& chunk : chunks) push_back(chunk);
  }

  std::size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }
  ChunkView operator[](std::size_t i) const {
    const std::uint64_t place = places_[i];
    const std::int64_t* at = numbers_.data() + (place >> kPlaceShift);
    const std::size_t rank = place >> 1 & kRankMask;
    const bool at_zero = (place & kAtZero) != 0;
    const std::int64_t* extents = at_zero ? at : at + rank;
    ChunkView view({at_zero ? kZeros.data() : at, rank}, {extents, rank});
    if (place & 1) {
      view.flat_begin = extents[rank];
      view.flat_end = extents[rank + 1];
    }
    return view;
  }
  /// `chunk` must not refer to this object.
  void push_back(const ChunkView& chunk);
  void append(const PackedChunks& others);
  /// `numbers`: of all chunks; two per dim.
  void reserve(std::size_t chunks, std::size_t numbers);
  std::size_t memory_bytes() const;
  bool operator==(const PackedChunks&) const = default;

 private:
  static constexpr int kPlaceShift = 17;  // above the rank and the marks
  static constexpr std::size_t kRankMask = 0x7fff;
  static constexpr std::uint64_t kAtZero = std::uint64_t{1} << 16;
  static constexpr std::array<std::int64_t, kMaxRank> kZeros = {};

  std::vector<std::int64_t> numbers_;
  std::vector<std::uint64_t> places_;
};

/// Chunks [first, first + count) of `all`, which outlives it.
class ChunkSlice {
 public:
  ChunkSlice(const PackedChunks& all, std::size_t first, std::size_t count)
      : all_(&all), first_(first), count_(count) {}
  ChunkSlice(const PackedChunks& all)  // NOLINT: what takes some takes all
      : ChunkSlice(all, 0, all.size()) {}
  std::size_t size() const { return count_; }
  ChunkView operator[](std::size_t i) const { return (*all_)[first_ + i]; }

 private:
  const PackedChunks* all_;
  std::size_t first_;
  std::size_t count_;
};

}  // namespace tessera

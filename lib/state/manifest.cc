#include <tessera/base/error.h>
#include <tessera/state/manifest.h>

#include <algorithm>

namespace tessera {
namespace {

/// Grows by a quarter: tables of millions of chunks must not carry a half-empty doubling.
template <class T>
void grow(std::vector<T>& items, std::size_t more) {
  const std::size_t needed = items.size() + more;
  if (needed <= items.capacity()) return;
  items.reserve(std::max({needed, items.capacity() + items.capacity() / 4, std::size_t{8}}));
}

template <class T>
std::size_t bytes_of(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

}  // namespace

void ChunkTable::add(const Chunk& chunk, const Source& source) {
  const int rank = chunk.box.rank();
  TESSERA_CHECK(chunk.box.origin.size() == static_cast<std::size_t>(rank));
  if (runs_.empty() || runs_.back().rank != static_cast<std::uint32_t>(rank))
    runs_.push_back({sources_.size(), coordinates_.size(), static_cast<std::uint32_t>(rank)});
  grow(coordinates_, 2 * static_cast<std::size_t>(rank));
  coordinates_.insert(coordinates_.end(), chunk.box.origin.begin(), chunk.box.origin.end());
  const auto extents = chunk.box.shape.extents();
  coordinates_.insert(coordinates_.end(), extents.begin(), extents.end());
  if (!chunk.is_whole_box()) {
    grow(flat_ranges_, 1);
    flat_ranges_.push_back({sources_.size(), chunk.flat_begin, chunk.flat_end});
  }
  grow(sources_, 1);
  sources_.push_back(source);
}

Chunk ChunkTable::chunk(std::size_t index, int rank) const {
  TESSERA_CHECK(index < sources_.size());
  const auto after = std::ranges::upper_bound(runs_, index, {}, &Run::first_chunk);
  const Run& run = *std::prev(after);
  TESSERA_CHECK(run.rank == static_cast<std::uint32_t>(rank));
  const std::size_t at = run.first_coordinate + (index - run.first_chunk) * 2 * run.rank;
  const auto origin = coordinates_.begin() + static_cast<std::ptrdiff_t>(at);
  const auto extents = std::span(coordinates_).subspan(at + run.rank, run.rank);
  Box box{std::vector<std::int64_t>(origin, origin + rank), Shape(extents)};
  const auto range = std::ranges::lower_bound(flat_ranges_, index, {}, &FlatRange::chunk);
  if (range != flat_ranges_.end() && range->chunk == index)
    return {std::move(box), range->begin, range->end};
  return Chunk::whole_of(std::move(box));
}

void ChunkTable::reserve(std::size_t chunks, std::size_t coordinates) {
  sources_.reserve(chunks);
  coordinates_.reserve(coordinates);
}

std::size_t ChunkTable::memory_bytes() const {
  return bytes_of(coordinates_) + bytes_of(runs_) + bytes_of(sources_) + bytes_of(flat_ranges_);
}

std::string_view kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kParam:
      return "param";
    case TensorKind::kBuffer:
      return "buffer";
    case TensorKind::kOptim:
      return "optim";
    case TensorKind::kMaster:
      return "master";
    case TensorKind::kOther:
      return "other";
  }
  TESSERA_CHECK(!"a tensor kind");
  return {};
}

const StoredTensor* Manifest::find(std::string_view name) const {
  const auto found = std::ranges::find_if(
      tensors, [name](const StoredTensor& t) { return !t.embedded && t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace tessera

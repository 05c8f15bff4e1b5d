#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/state/manifest.h>

#include <algorithm>

namespace tessera {
void ChunkTable::add(const ChunkView& chunk, const Source& source) {
  chunks_.push_back(chunk);
  grow_large(sources_, 1);
  sources_.push_back(source);
}

Chunk ChunkTable::chunk(std::size_t index, int rank) const {
  TESSERA_CHECK(index < sources_.size());
  const ChunkView view = chunks_[index];
  TESSERA_CHECK(view.rank() == rank);
  return view.chunk();
}

void ChunkTable::reserve(std::size_t chunks, std::size_t coordinates) {
  chunks_.reserve(chunks, coordinates);
  reserve_large(sources_, chunks);
}

std::size_t ChunkTable::memory_bytes() const {
  return chunks_.memory_bytes() + sources_.capacity() * sizeof(Source);
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

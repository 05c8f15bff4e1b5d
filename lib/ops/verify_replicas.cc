#include "lib/ops/verify_replicas.h"

#include <fmt/format.h>
#include <tessera/ops/hash.h>

#include <map>
#include <string>

namespace tessera {
namespace {

/// The copy alone, hashed as a tensor of its own.
std::string copy_digest(const OpenedCheckpoint& checkpoint, const StoredTensor& tensor,
                        std::uint32_t c, const TransferOptions& transfer) {
  const Manifest& manifest = checkpoint.manifest;
  Manifest one;
  one.format = manifest.format;
  one.files = manifest.files;
  one.records = manifest.records;
  one.strides = manifest.strides;
  one.codecs = manifest.codecs;
  one.inline_bytes = manifest.inline_bytes;
  const Chunk chunk = manifest.chunk(tensor, c);
  StoredTensor alone;
  alone.name = tensor.name;
  alone.spec = {tensor.spec.dtype, chunk.is_whole_box() ? chunk.box.shape : Shape{chunk.numel()}};
  alone.chunk_count = 1;
  one.tensors.push_back(alone);
  one.chunks.add(Chunk::whole_of(Box::whole(alone.spec.shape)), manifest.source(tensor, c));
  return hash_tensors(one, *checkpoint.directory, {0}, transfer).front();
}

std::string file_of(const Manifest& manifest, const Source& source) {
  const bool in_file = source.kind != Source::Kind::kInline && source.kind != Source::Kind::kFill;
  return in_file ? manifest.files[source.file].path : "";
}

}  // namespace

std::vector<Note> differing_copies(const OpenedCheckpoint& checkpoint, const StoredTensor& tensor,
                                   const TransferOptions& transfer) {
  const Manifest& manifest = checkpoint.manifest;
  std::map<std::string, std::vector<std::uint32_t>> copies;  // by place in the tensor
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
    copies[manifest.chunk(tensor, c).to_string()].push_back(c);
  std::vector<Note> findings;
  for (const auto& [place, chunks] : copies) {
    if (chunks.size() < 2) continue;
    const std::string first = copy_digest(checkpoint, tensor, chunks[0], transfer);
    for (std::size_t i = 1; i < chunks.size(); ++i) {
      if (copy_digest(checkpoint, tensor, chunks[i], transfer) == first) continue;
      findings.push_back({"CK046", "error", fmt::format("two copies of chunk {} differ", place),
                          file_of(manifest, manifest.source(tensor, chunks[i])), tensor.name});
    }
  }
  return findings;
}

}  // namespace tessera

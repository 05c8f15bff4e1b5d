#include "tests/support/execute_plan.h"

#include <tessera/base/error.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <cstring>

namespace tessera::testing {
namespace {

Bytes whole_tensor(const TensorReader& reader, const Manifest& source, std::uint32_t index) {
  const TensorSpec& spec = source.tensors[index].spec;
  Bytes bytes(static_cast<std::size_t>(spec.size_bytes()));
  if (!bytes.empty()) reader.read(index, 0, spec.shape.numel(), bytes);
  return bytes;
}

Bytes cut(const Bytes& tensor, const TensorSpec& spec, const Chunk& chunk) {
  const int element = element_bytes(spec.dtype);
  Bytes out;
  for (const ChunkPiece& piece : decompose(chunk)) {
    const auto strides = spec.shape.strides();
    std::int64_t start = 0;
    for (int d = 0; d < spec.shape.rank(); ++d)
      start += piece.box.begin(d) * strides[static_cast<std::size_t>(d)];
    Bytes part(static_cast<std::size_t>(piece.box.numel() * element));
    copy_region(piece.box.shape, element, tensor.data() + start * element, strides, part.data(),
                piece.box.shape.strides());
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace

std::map<std::string, Bytes> execute_plan(const Manifest& source, const Directory& directory,
                                          const OutputPlan& plan) {
  plan.check(source);
  const TensorReader reader(source, directory, TransferOptions{});
  std::map<std::string, Bytes> files;
  std::map<std::size_t, std::uint32_t> sums;
  for (const OutputFile& file : plan.files) {
    Bytes content(file.size_bytes);
    const std::size_t end = file.first_segment + file.segment_count;
    for (std::size_t s = file.first_segment; s < end; ++s) {
      const Segment& segment = plan.segments[s];
      if (segment.kind != Segment::Kind::kTensor) continue;
      const Bytes part =
          cut(whole_tensor(reader, source, segment.tensor), source.tensors[segment.tensor].spec,
              plan.chunks[segment.payload].chunk());
      TESSERA_CHECK(part.size() == segment.length);
      sums[s] = crc32(0, part);
      if (!part.empty()) std::memcpy(content.data() + segment.offset, part.data(), part.size());
    }
    for (std::size_t s = file.first_segment; s < end; ++s) {
      const Segment& segment = plan.segments[s];
      if (segment.kind == Segment::Kind::kTensor) continue;
      const Bytes part =
          plan.renderer->render(plan, s, [&](std::size_t asked) { return sums.at(asked); });
      TESSERA_CHECK(part.size() == segment.length);
      if (!part.empty()) std::memcpy(content.data() + segment.offset, part.data(), part.size());
    }
    TESSERA_CHECK(files.emplace(file.path, std::move(content)).second);
  }
  return files;
}

}  // namespace tessera::testing

#include "lib/format/torch_files/flat_tensors.h"

#include <fmt/format.h>
#include <tessera/state/roles.h>
#include <tessera/tensor/cast.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr std::int64_t kBlock = 8192;  // elements

StoragePiece zeros(std::int64_t numel, DType dtype) {
  StoragePiece piece;
  piece.zero_bytes =
      static_cast<std::uint64_t>(numel) * static_cast<std::uint64_t>(element_bytes(dtype));
  return piece;
}

bool is_zero(ByteView bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

/// Elements of a block that are neither zero nor `filler`.
std::int64_t used_in(DType dtype, ByteView block, const std::optional<double>& filler) {
  if (is_zero(block)) return 0;
  const auto item = static_cast<std::size_t>(element_bytes(dtype));
  const std::size_t numel = block.size() / item;
  std::int64_t used = 0;
  if (filler && is_castable(dtype)) {
    std::vector<double> values(numel);
    to_double(dtype, block, values);
    return std::ranges::count_if(values, [&](double v) { return v != 0 && v != *filler; });
  }
  for (std::size_t i = 0; i < numel; ++i) used += !is_zero(block.subspan(i * item, item));
  return used;
}

}  // namespace

std::vector<ArchivePiece> pieces_of(const std::vector<FlatRun>& runs, const Shape& shape,
                                    const TensorOfRun& tensor) {
  std::vector<ArchivePiece> pieces;
  for (const FlatRun& run : runs)
    if (const auto from = tensor(run))
      pieces.push_back(
          {Chunk{Box::whole(shape), run.begin, run.end}, from->file, from->tensor, run.offset});
  return pieces;
}

std::vector<StoragePiece> flat_storage(const Manifest& source, const std::vector<FlatPiece>& pieces,
                                       std::int64_t numel, DType dtype,
                                       const std::function<std::uint32_t(std::size_t)>& tensor) {
  std::vector<StoragePiece> out;
  std::int64_t at = 0;
  for (const FlatPiece& piece : pieces) {
    const std::uint32_t index = tensor(piece.parameter);
    if (index == kNoTensor) continue;
    if (at < piece.offset) out.push_back(zeros(piece.offset - at, dtype));
    StoragePiece& part = out.emplace_back();
    part.tensor = index;
    part.chunk = {Box::whole(source.tensors.at(index).spec.shape), piece.begin, piece.end};
    at = piece.offset + piece.numel();
  }
  if (at < numel) out.push_back(zeros(numel - at, dtype));
  return out;
}

void note_used_padding(ArchiveBytes& bytes, Findings& findings, const std::string& file,
                       const PaddedBuffer& buffer) {
  if (!bytes.is_readable(buffer.ref)) return;
  const ArchiveTensor& tensor = bytes.tensor(buffer.ref);
  std::int64_t used = 0;
  for (const FlatRange& range : padding_of(buffer.content, tensor.shape.numel()))
    for (std::int64_t at = range.begin; at < range.end; at += kBlock) {
      const std::int64_t numel = std::min(kBlock, range.end - at);
      used += used_in(tensor.dtype, bytes.read(buffer.ref, at, numel), buffer.filler);
    }
  if (used == 0) return;
  std::string message =
      buffer.filler ? fmt::format(
                          "{} elements of padding are neither 0 nor {}, which FSDP writes "
                          "there: the flat layout may be another model's",
                          used, *buffer.filler)
                    : fmt::format("{} elements of padding are not zero; no reader uses them", used);
  findings.note(Finding::kUsedPadding, buffer.severity, std::move(message), file, buffer.name);
}

}  // namespace tessera

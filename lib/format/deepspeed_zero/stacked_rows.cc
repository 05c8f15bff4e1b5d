#include "lib/format/deepspeed_zero/stacked_rows.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/format/deepspeed_zero/state_assembler.h"

namespace tessera::deepspeed {

bool StackedRows::take(const ZeroCheckpoint& checkpoint, std::uint32_t file,
                       const NamedTensor& item) {
  const auto row = checkpoint.model.stacked.row(item.name);
  if (!row) return false;
  const ArchiveTensor& stored = checkpoint.tensor(file, item.tensor);
  std::vector<std::int64_t> whole{*checkpoint.model.stacked.count(row->first)};
  std::vector<std::int64_t> begin{row->second}, sizes{1};
  for (const std::int64_t extent : stored.shape.extents()) {
    whole.push_back(extent);
    begin.push_back(0);
    sizes.push_back(extent);
  }
  const TensorSpec spec{stored.dtype, Shape::checked(whole)};
  Stack& stack = stacks_.try_emplace(row->first, Stack{spec, {}}).first->second;
  if (stack.spec.dtype != spec.dtype || stack.spec.shape != spec.shape)
    fail(Code::kCorrupt,
         fmt::format("experts of \"{}\" differ in type or shape", printable(row->first)));
  ArchivePiece piece = whole_piece_of(stored, file, item.tensor);
  piece.chunk = Chunk::whole_of({begin, Shape(sizes)});
  stack.pieces.push_back(piece);
  return true;
}

void StackedRows::each(ZeroCheckpoint& checkpoint, const Visit& visit) const {
  for (const auto& [name, stack] : stacks_) {
    const auto there = static_cast<std::int64_t>(stack.pieces.size());
    if (there != stack.spec.shape[0])
      checkpoint.findings.error(
          Finding::kMissingFile,
          fmt::format("{} files of experts for {} experts", there, stack.spec.shape[0]),
          checkpoint.path(stack.pieces.front().file), name);
    visit(name, stack.spec, stack.pieces);
  }
}

}  // namespace tessera::deepspeed

#include "lib/format/deepspeed_zero/whole_leaves.h"

#include <algorithm>

namespace tessera::deepspeed {

const Value* leaf_on(const OptimFile& rank, std::size_t flat, const std::string& leaf) {
  const auto state = rank.states.find(static_cast<std::int64_t>(flat));
  if (state == rank.states.end()) return nullptr;
  for (const auto& [key, value] : state->second)
    if (key.is_string() && key.as_string() == leaf) return &value;
  return nullptr;
}

WholeLeaves::WholeLeaves(const ZeroCheckpoint& checkpoint) : c_(checkpoint) {
  for (const TrainedParameter& parameter : c_.parameters)
    for (const FlatRun& run : parameter.runs) {
      Touched& touched = touched_[{run.rank, run.buffer}];
      if (touched.empty() || touched.back() != &parameter) touched.push_back(&parameter);
    }
}

bool WholeLeaves::holds(std::size_t flat, const std::string& leaf) {
  const auto [known, is_new] = known_.try_emplace({flat, leaf}, false);
  if (!is_new) return known->second;
  if (c_.stage == 3) return false;
  bool all = true, any = false, said = false, apart = false;
  for (std::size_t r = 0; r < c_.ranks.size(); ++r) {
    if (!c_.ranks[r] || flat >= c_.ranks[r]->fp32.size()) continue;
    const OptimFile& rank = *c_.ranks[r];
    const Value* value = leaf_on(rank, flat, leaf);
    if (!value || !value->is_tensor()) continue;
    const Shape& shape = c_.tensor(rank.file, value->tensor_index()).shape;
    if (shape.rank() != 1) return false;
    std::int64_t whole = 0;
    for (const TrainedParameter* parameter : touched_[{r, flat}]) whole += parameter->shape.numel();
    const std::int64_t part = c_.tensor(rank.file, rank.fp32[flat]).shape.numel();
    const std::int64_t padding = flat < rank.paddings.size() ? rank.paddings[flat] : 0;
    any = true;
    all = all && shape.numel() == whole;
    apart = apart || shape.numel() < part || shape.numel() - part > padding;
    if (flat < rank.groups.size() && leaf == kMomentum)
      said = said || flag_in(rank.groups[flat], kUseMuon).value_or(false);
  }
  return known_[{flat, leaf}] = any && all && (said || apart);
}

std::optional<ArchivePiece> WholeLeaves::piece_of(const TrainedParameter& parameter,
                                                  const std::string& leaf) {
  for (const FlatRun& run : parameter.runs) {
    const OptimFile* rank = c_.ranks[run.rank] ? &*c_.ranks[run.rank] : nullptr;
    const Value* value = rank ? leaf_on(*rank, run.buffer, leaf) : nullptr;
    if (!value || !value->is_tensor()) continue;
    std::int64_t before = 0;
    for (const TrainedParameter* other : touched_[{run.rank, run.buffer}]) {
      if (other == &parameter) break;
      before += other->shape.numel();
    }
    return ArchivePiece{Chunk::whole_of(Box::whole(parameter.shape)), rank->file,
                        value->tensor_index(), before};
  }
  return std::nullopt;
}

}  // namespace tessera::deepspeed

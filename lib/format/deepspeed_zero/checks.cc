// What the ranks' files hold besides the parameters' elements, held against what it should be:
// padding, and their own word on which rank they are.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>

#include "lib/format/deepspeed_zero/checkpoint.h"
#include "lib/format/deepspeed_zero/whole_leaves.h"
#include "lib/format/torch_files/flat_tensors.h"
#include "lib/state/fields.h"

namespace tessera::deepspeed {
namespace {

/// Which rank and buffer: the parts of parameters there.
using Buffers = std::map<std::pair<std::size_t, std::size_t>, std::vector<FlatRange>>;

Buffers content_of(const ZeroCheckpoint& checkpoint) {
  Buffers out;
  for (std::size_t r = 0; r < checkpoint.ranks.size(); ++r)
    if (checkpoint.ranks[r])
      for (std::size_t flat = 0; flat < checkpoint.ranks[r]->fp32.size(); ++flat) out[{r, flat}];
  for (const TrainedParameter& parameter : checkpoint.parameters)
    for (const FlatRun& run : parameter.runs)
      out[{run.rank, run.buffer}].push_back({run.offset, run.offset + run.numel()});
  return out;
}

/// The runs of one rank in one buffer, by parameter.
using Slices = std::map<std::string, FlatRun>;

using RankSlices = std::map<std::pair<std::size_t, std::size_t>, Slices>;

RankSlices by_rank(const std::vector<TrainedParameter>& parameters) {
  RankSlices out;
  for (const TrainedParameter& parameter : parameters)
    for (const FlatRun& run : parameter.runs)
      out[{run.rank, run.buffer}].emplace(
          parameter.stored.empty() ? parameter.name : parameter.stored, run);
  return out;
}

const Slices& at(const RankSlices& slices, const std::pair<std::size_t, std::size_t>& place) {
  static const Slices kNone;
  const auto found = slices.find(place);
  return found == slices.end() ? kNone : found->second;
}

/// Where parameters would lie in the order the engine was given them. Under round_robin_gradients
/// DeepSpeed's param_slice_mappings say these places, though the buffers (and param_shapes) go by
/// the order dealt out.
std::vector<TrainedParameter> engine_places(const ZeroCheckpoint& checkpoint) {
  std::vector<std::vector<NamedShape>> shapes;
  for (const std::vector<NamedShape>& group : checkpoint.model.param_shapes) {
    std::map<std::string, Shape> by_name;
    for (const NamedShape& item : group) by_name.emplace(item.name, item.shape);
    shapes.emplace_back();
    for (const std::string& name : group_order(group, true, checkpoint.world_size()))
      shapes.back().push_back({name, by_name.at(name)});
  }
  std::vector<std::optional<FlatSizes>> sizes;
  for (const auto& rank : checkpoint.ranks) {
    sizes.emplace_back();
    if (!rank) continue;
    sizes.back().emplace();
    for (const std::uint32_t tensor : rank->fp32)
      sizes.back()->push_back(checkpoint.tensor(rank->file, tensor).shape.numel());
  }
  return places_of_stage_2(shapes, checkpoint.first_rank().alignment, sizes);
}

/// The first name for which the file's own slices are not those of its rank, "" if there is none.
std::string misplaced(const Value& stored, const Slices& slices) {
  for (const auto& [key, address] : stored.as_dict()) {
    const auto numel = integer_in(address, "numel"), start = integer_in(address, "start");
    if (!key.is_string() || !numel || !start || *numel == 0) continue;
    const auto mine = slices.find(key.as_string());
    if (mine == slices.end() || mine->second.offset != *start || mine->second.numel() != *numel)
      return key.as_string();
  }
  for (const auto& [name, run] : slices)
    if (!stored.find(name)) return name;
  return "";
}

}  // namespace

void check_pads(ZeroCheckpoint& checkpoint) {
  // Stage 3 leaves what memory held behind the last slice of a weight.
  const Severity severity = checkpoint.stage == 3 ? Severity::kInfo : Severity::kWarning;
  WholeLeaves whole(checkpoint);
  for (const auto& [buffer, content] : content_of(checkpoint)) {
    const std::size_t flat = buffer.second;
    const OptimFile& rank = *checkpoint.ranks[buffer.first];
    const std::vector<FlatRange>& parts = content;
    const auto look = [&](std::uint32_t tensor, const std::string& what) {
      if (checkpoint.tensor(rank.file, tensor).shape.rank() != 1) return;
      note_used_padding(checkpoint.bytes, checkpoint.findings, checkpoint.path(rank.file),
                        {.ref = {rank.file, tensor},
                         .content = parts,
                         .name = fmt::format("group {} {}", flat, what),
                         .severity = severity});
    };
    in_file(checkpoint.path(rank.file), [&] {
      look(rank.fp32.at(flat), "fp32");
      if (const auto state = rank.states.find(static_cast<std::int64_t>(flat));
          state != rank.states.end())
        for (const auto& [key, value] : state->second)
          if (key.is_string() && value.is_tensor() && !whole.holds(flat, key.as_string()))
            look(value.tensor_index(), key.as_string());
    });
  }
}

void check_slices(ZeroCheckpoint& checkpoint) {
  if (checkpoint.stage == 3) return;
  const RankSlices slices = by_rank(checkpoint.parameters);
  const bool dealt = is_round_robin(checkpoint.model.root);
  const RankSlices undealt = dealt ? by_rank(engine_places(checkpoint)) : RankSlices();
  for (const auto& rank : checkpoint.ranks) {
    const Value* groups = rank ? rank->optimizer.find(kSliceMappings) : nullptr;
    if (!groups || groups->kind() != Value::Kind::kList) continue;
    for (std::size_t g = 0; g < groups->as_list().size(); ++g) {
      const Value& stored = groups->as_list()[g];
      if (!stored.is_dict() || stored.as_dict().empty()) continue;
      const std::pair place(static_cast<std::size_t>(rank->rank), g);
      const std::string name = misplaced(stored, at(slices, place));
      if (name.empty() || (dealt && misplaced(stored, at(undealt, place)).empty())) continue;
      checkpoint.findings.error(
          Finding::kOtherRanksFile,
          fmt::format("the file is named as rank {}'s, but it says itself that it holds another "
                      "slice of \"{}\": it was renamed, or copied from another rank",
                      rank->rank, printable(name)),
          checkpoint.path(rank->file), name);
      break;
    }
  }
}

}  // namespace tessera::deepspeed

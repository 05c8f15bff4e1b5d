#include "lib/format/fairscale_fsdp/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/state/roles.h>

#include <algorithm>

#include "lib/format/fairscale_fsdp/wrappers.h"
#include "lib/format/torch_files/archive_names.h"
#include "lib/format/torch_files/flat_tensors.h"
#include "lib/state/edit/tensor_remapper.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

/// Padding is zero: FairScale appends zeros, and no gradient reaches them. Read only by verbs that
/// report damage.
void check_padding(Checkpoint& checkpoint) {
  for (const BackingPlace& place : checkpoint.places)
    if (!place.plan.whole) note_used_padding(checkpoint, place, place.tensors, place.key);
}

/// The keys of the parts where they are plain: what the user's code reads.
void describe_keys(Checkpoint& checkpoint) {
  const RankParts& parts = checkpoint.ranks[checkpoint.first_rank].parts;
  ValueList keys;
  for (const Part* part : {&parts.weights, &parts.metadata, &parts.optimizer}) {
    const bool plain = *part && part->path.size() == 1 && part->file == parts.weights.file;
    keys.push_back(plain ? Value::string(part->path[0].text()) : Value());
  }
  checkpoint.builder.manifest().provenance[std::string(kPartKeys)] =
      dump_json(Value::list(std::move(keys)));
}

void add_source_maps(Checkpoint& checkpoint) {
  const WriterMarks& marks = checkpoint.description->marks;
  if (!marks.maps.is_dict()) return;
  const Path root = root_path(marks.optim_root);
  for (const auto& [key, value] : marks.maps.as_dict()) {
    if (!key.is_string() || value.holds_tensors()) continue;
    checkpoint.builder.add_state(0, value, below(root, key.as_string()));
  }
}

/// Adds the state of what FairScale's own optimizers have no state for.
void add_buffer_state(Checkpoint& checkpoint) {
  const WriterMarks& marks = checkpoint.description->marks;
  if (!marks.state.is_dict()) return;
  const Path root = below(root_path(marks.optim_root), "state");
  for (const auto& [name, leaves] : marks.state.as_dict()) {
    if (!name.is_string() || !leaves.is_dict()) continue;
    for (const auto& [leaf, value] : leaves.as_dict())
      if (leaf.is_string())
        checkpoint.builder.add_state(checkpoint.description_file, value,
                                     below(below(root, name.as_string()), leaf.as_string()));
  }
}

void describe(Checkpoint& checkpoint) {
  describe_keys(checkpoint);
  Manifest& manifest = checkpoint.builder.manifest();
  const ChosenFiles& chosen = checkpoint.chosen;
  manifest.world_size = static_cast<std::int64_t>(checkpoint.ranks.size());
  manifest.world_size_source =
      fmt::format("{} rank file{}, cross-checked with the padding", checkpoint.ranks.size(),
                  checkpoint.ranks.size() == 1 ? "" : "s");
  manifest.provenance[std::string(kWrappersKey)] =
      encode_wrappers(wrappers_of(*checkpoint.description));
  if (!chosen.family.members.empty())
    manifest.provenance[std::string(kNamingKey)] =
        chosen.family.prefix + "*" + chosen.family.suffix;
}

bool holds_rank_optimizers(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.ranks,
                             [](const RankState& rank) { return bool(rank.parts.optimizer); });
}

std::string dialect_of(const Checkpoint& checkpoint) {
  const bool flat = std::ranges::all_of(
      checkpoint.places, [&](const BackingPlace& place) { return checkpoint.backing(place).flat; });
  return fmt::format("FairScale FSDP, {} wrapper{}, flatten_parameters={}",
                     checkpoint.description->wrappers.size(),
                     checkpoint.description->wrappers.size() == 1 ? "" : "s",
                     flat ? "True" : "False");
}

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  Status unreadable;
  std::optional<ChosenFiles> chosen = choose_files(
      {place.directory, place.file, place.display, options.pickle_limit_bytes}, &unreadable);
  if (!chosen && unreadable.code != Code::kOk) throw Error(std::move(unreadable));
  if (!chosen)
    fail(Code::kUnsupported, "no file here holds the metadata of FairScale's shards",
         "save local_metadata_dict() beside local_state_dict() on every rank");
  Checkpoint checkpoint(*place.directory, options);
  checkpoint.chosen = std::move(*chosen);
  open_ranks(checkpoint);
  read_model(checkpoint);
  if (holds_rank_optimizers(checkpoint))
    read_rank_optimizers(checkpoint);
  else if (checkpoint.consolidated)
    read_gathered_optimizer(checkpoint);
  add_source_maps(checkpoint);
  add_buffer_state(checkpoint);
  read_extras(checkpoint);
  report_renamed(checkpoint.builder, checkpoint.findings);
  if (options.tolerate_damage) check_padding(checkpoint);
  describe(checkpoint);
  return checkpoint.builder.finish("fairscale-fsdp", dialect_of(checkpoint));
}

std::vector<PlacedParameter> placed_parameters(const Checkpoint& checkpoint,
                                               const BackingPlace& place) {
  std::vector<PlacedParameter> out;
  std::int64_t at = 0;
  for (const Parameter& parameter : checkpoint.backing(place).parameters) {
    const std::int64_t end = at + parameter.shape.numel();
    out.push_back(
        {joined(checkpoint.wrapper(place).path, parameter.name), parameter.shape, at, end});
    at = end;
  }
  return out;
}

std::vector<ArchivePiece> pieces_of(const BackingPlace& place, const PlacedParameter& parameter,
                                    const std::vector<std::optional<TensorRef>>& tensors) {
  return tessera::pieces_of(place.plan.places.cut(parameter.begin, parameter.end), parameter.shape,
                            [&](const FlatRun& run) { return tensors[run.rank]; });
}

void note_used_padding(Checkpoint& checkpoint, const BackingPlace& place,
                       const std::vector<std::optional<TensorRef>>& tensors,
                       const std::string& what) {
  for (const FlatRun& run : place.plan.places.runs())
    if (const std::optional<TensorRef>& ref = tensors[run.rank])
      note_used_padding(checkpoint.bytes, checkpoint.findings, checkpoint.path_of(ref->file),
                        {.ref = *ref, .content = {{0, run.numel()}}, .name = what});
}

Value embed(Checkpoint& checkpoint, const std::string& name, TensorRef ref) {
  const ArchiveTensor& stored = checkpoint.bytes.tensor(ref);
  const ArchivePiece piece{Chunk::whole_of(Box::whole(stored.shape)), ref.file, ref.tensor, 0};
  const std::uint32_t index =
      checkpoint.builder.add_tensor(root_path(name), {stored.dtype, stored.shape}, {&piece, 1});
  checkpoint.builder.manifest().state.entries.pop_back();
  checkpoint.builder.tensor(index).embedded = true;
  return Value::tensor(index);
}

Value embed_all(Checkpoint& checkpoint, const std::string& name, std::uint32_t file,
                const Value& value) {
  TensorRemapper remap([&](std::uint32_t index) {
    return embed(checkpoint, name, {file, index}).tensor_index();
  });
  return remap(value);
}

bool is_copy(Checkpoint& checkpoint, const BackingPlace& place,
             const std::vector<std::optional<TensorRef>>& tensors, std::size_t rank) {
  return std::ranges::any_of(place.plan.places.runs(), [&](const FlatRun& run) {
    return tensors[run.rank] && checkpoint.bytes.same(*tensors[run.rank], *tensors[rank]) ==
                                    ArchiveBytes::Answer::kEqual;
  });
}

std::string own_state_name(std::size_t rank) {
  return fmt::format("{}.rank_{}", kOwnStateKey, rank);
}

}  // namespace tessera::fairscale

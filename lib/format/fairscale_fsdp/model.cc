#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

class ModelReader {
 public:
  explicit ModelReader(Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        root_(root_path(checkpoint.description->marks.model_root)),
        rank0_(checkpoint.ranks[checkpoint.first_rank]) {}

  /// In the order of the state dict, which is the order of parameters(): an optimizer counts by it.
  void run() {
    add_container();
    for (const Wrapper& wrapper : checkpoint_.description->wrappers)
      for (const auto& [source, destination] : wrapper.shared)
        shared_.insert(joined(wrapper.path, destination));
    for (const BackingPlace& place : checkpoint_.places) index(place);
    for (const WeightEntry& entry : rank0_.weights) take(entry);
    for (const BackingPlace& place : checkpoint_.places)
      if (!done_.contains(&place)) add_backing(place);
    add_shared();
    for (const auto& [source, destination] : tied_) alias(source, destination);
  }

 private:
  Manifest& manifest() { return checkpoint_.builder.manifest(); }

  /// The weights are an OrderedDict; its attributes hold the versions of modules.
  void add_container() {
    const Value& weights = *rank0_.parts.weights.value;
    if (weights.kind() != Value::Kind::kOrderedDict) return;
    ContainerNote note;
    note.path = root_;
    note.kind = Value::Kind::kOrderedDict;
    if (!weights.attributes().holds_tensors()) note.attributes = weights.attributes();
    note.entries_before = 0;
    manifest().state.containers.push_back(std::move(note));
  }
  void index(const BackingPlace& place) {
    if (place.unwrapped)
      for (const PlacedParameter& p : placed_parameters(checkpoint_, place))
        by_key_.emplace(p.fqn, &place);
    by_key_.emplace(place.key, &place);
    const std::string_view older = other_spelling(checkpoint_.backing(place).name);
    if (!older.empty()) by_key_.emplace(joined(checkpoint_.wrapper(place).path, older), &place);
  }
  void take(const WeightEntry& entry) {
    if (const auto place = by_key_.find(entry.key); place != by_key_.end()) {
      if (!done_.contains(place->second)) add_backing(*place->second);
    } else if (!shared_.contains(entry.key)) {
      add_rest(entry);
    }
  }

  void add_backing(const BackingPlace& place) {
    done_.insert(&place);
    if (place.unwrapped) {
      for (const PlacedParameter& p : placed_parameters(checkpoint_, place)) add_whole(p);
      return;
    }
    const auto spec_tensor =
        std::ranges::find_if(place.tensors, [](const auto& t) { return t.has_value(); });
    if (spec_tensor == place.tensors.end()) return;  // reported
    const DType dtype = checkpoint_.bytes.tensor(**spec_tensor).dtype;
    for (const PlacedParameter& parameter : placed_parameters(checkpoint_, place)) {
      const auto pieces = pieces_of(place, parameter, place.tensors);
      add_parameter(parameter, {dtype, parameter.shape}, pieces);
      by_fqn_[parameter.fqn] = {dtype, &place, parameter};
    }
    add_own_copies(place);
  }
  void add_parameter(const PlacedParameter& parameter, const TensorSpec& spec,
                     std::span<const ArchivePiece> pieces) {
    if (!names_.insert(parameter.fqn).second) return;
    const std::uint32_t index =
        checkpoint_.builder.add_tensor(below(root_, parameter.fqn), spec, pieces);
    StoredTensor& tensor = checkpoint_.builder.tensor(index);
    tensor.kind = TensorKind::kParam;
    tensor.always_sharded = checkpoint_.ranks.size() > 1 && spec.shape.rank() > 0;
  }
  /// A full state dict: the parameter stands under its own name.
  void add_whole(const PlacedParameter& parameter) {
    const TensorRef ref{rank0_.parts.weights.file, rank0_.find(parameter.fqn)->tensor_index()};
    const ArchiveTensor& tensor = checkpoint_.bytes.tensor(ref);
    const ArchivePiece piece{Chunk::whole_of(Box::whole(parameter.shape)), ref.file, ref.tensor, 0};
    add_parameter(parameter, {tensor.dtype, parameter.shape}, {&piece, 1});
  }

  /// Ranks outside the group that was taken hold copies, or parameters of their own (experts).
  void add_own_copies(const BackingPlace& place) {
    for (const std::size_t r : place.plan.outside)
      if (place.tensors[r] && !is_copy(checkpoint_, place, place.tensors, r))
        checkpoint_.own[r].weights.emplace_back(
            Value::string(place.key), embed(checkpoint_, own_state_name(r), *place.tensors[r]));
  }

  /// Each wrapper's own pairs, with its path before both names.
  void add_shared() {
    for (const Wrapper& wrapper : checkpoint_.description->wrappers)
      for (const auto& [source, destination] : wrapper.shared)
        alias(joined(wrapper.path, source), joined(wrapper.path, destination));
  }
  void alias(const std::string& source, const std::string& destination) {
    if (names_.contains(destination)) return;
    const auto found = by_fqn_.find(source);
    if (found == by_fqn_.end()) {
      if (!names_.contains(source))
        fail(Code::kCorrupt, fmt::format("\"{}\" is said to share \"{}\", which is not there",
                                         printable(destination), printable(source)));
      return;
    }
    PlacedParameter copy = found->second.parameter;
    const auto pieces = pieces_of(*found->second.place, copy, found->second.place->tensors);
    copy.fqn = destination;
    add_parameter(copy, {found->second.dtype, copy.shape}, pieces);
  }

  /// Buffers, and what else a state dict holds. Rank 0's, as FairScale takes them.
  void add_rest(const WeightEntry& entry) {
    const std::uint32_t file = rank0_.parts.weights.file;
    if (!entry.value->is_tensor()) {
      checkpoint_.builder.add_state(file, *entry.value, below(root_, entry.key));
      return;
    }
    const TensorRef ref{file, entry.value->tensor_index()};
    if (const BackingPlace* tied = same_storage(ref)) {
      tied_.emplace_back(placed_parameters(checkpoint_, *tied)[0].fqn, entry.key);
      return;
    }
    const ArchiveTensor& stored = checkpoint_.bytes.tensor(ref);
    const ArchivePiece piece{Chunk::whole_of(Box::whole(stored.shape)), ref.file, ref.tensor, 0};
    const std::uint32_t index = checkpoint_.builder.add_tensor(
        below(root_, entry.key), {stored.dtype, stored.shape}, {&piece, 1});
    const bool is_buffer = std::ranges::find(checkpoint_.description->buffers, entry.key) !=
                           checkpoint_.description->buffers.end();
    if (is_buffer) checkpoint_.builder.tensor(index).kind = TensorKind::kBuffer;
    note_differences(entry.key, ref);
  }
  /// flatten_parameters=False: a tied weight stands under both names and is sharded once.
  const BackingPlace* same_storage(TensorRef ref) {
    if (by_storage_.empty())
      for (const BackingPlace& place : checkpoint_.places)
        if (const auto& tensor = place.tensors[checkpoint_.first_rank];
            tensor && !checkpoint_.backing(place).flat)
          by_storage_.emplace(storage_of(*tensor), &place);
    const auto found = by_storage_.find(storage_of(ref));
    return found == by_storage_.end() || checkpoint_.bytes.tensor(ref).shape.numel() == 0
               ? nullptr
               : found->second;
  }
  using Storage = std::tuple<std::uint32_t, std::int64_t, std::int64_t>;
  Storage storage_of(TensorRef ref) const {
    const ArchiveTensor& tensor = checkpoint_.bytes.tensor(ref);
    return {tensor.storage, tensor.storage_offset, tensor.shape.numel()};
  }
  void note_differences(const std::string& key, TensorRef ref) {
    for (std::size_t r = 0; r < checkpoint_.ranks.size(); ++r) {
      const Value* other = checkpoint_.ranks[r].find(key);
      if (!other || !other->is_tensor()) continue;
      if (checkpoint_.bytes.same(
              ref, TensorRef{checkpoint_.ranks[r].parts.weights.file, other->tensor_index()}) !=
          ArchiveBytes::Answer::kDifferent)
        continue;
      checkpoint_.findings.note(
          Finding::kDifferentValues, Severity::kWarning,
          fmt::format("ranks {} and {} stored different values; the first is used",
                      checkpoint_.first_rank, r),
          "", key);
      return;
    }
  }

  struct Known {
    DType dtype = DType::kFloat32;
    const BackingPlace* place = nullptr;
    PlacedParameter parameter;
  };

  Checkpoint& checkpoint_;
  Path root_;
  const RankState& rank0_;
  std::map<std::string, const BackingPlace*> by_key_;
  std::set<const BackingPlace*> done_;
  std::set<std::string> shared_;  // destinations: not stored
  std::vector<std::pair<std::string, std::string>> tied_;
  std::set<std::string> names_;  // parameters that are added
  std::map<std::string, Known> by_fqn_;
  std::map<Storage, const BackingPlace*> by_storage_;
};

}  // namespace

void read_model(Checkpoint& checkpoint) { ModelReader(checkpoint).run(); }

}  // namespace tessera::fairscale

#include "lib/format/fairscale_fsdp/rank_ids.h"

#include <tessera/state/optim_state.h>

#include <map>
#include <set>
#include <string>
#include <tuple>

namespace tessera::fairscale {
namespace {

class IdReader {
 public:
  IdReader(Checkpoint& checkpoint, std::size_t rank, const RankOptimizer& optimizer)
      : checkpoint_(checkpoint), rank_(rank), optimizer_(optimizer) {}

  std::optional<std::vector<std::pair<std::int64_t, const BackingPlace*>>> run() const {
    std::vector<std::int64_t> ids;
    std::vector<std::optional<Shape>> shapes;
    std::vector<std::size_t> sizes;
    for (const Value& group : optimizer_.value->find("param_groups")->as_list()) {
      const Value* params = group.find("params");
      if (!params || params->kind() != Value::Kind::kList) return std::nullopt;
      sizes.push_back(params->as_list().size());
      for (const Value& id : params->as_list()) {
        if (!id.is_int()) return std::nullopt;
        ids.push_back(id.as_int());
        shapes.push_back(state_shape(id.as_int()));
      }
    }
    const std::vector<const BackingPlace*> places = candidates();
    std::vector<Shape> stored;
    for (const BackingPlace* place : places)
      stored.push_back(checkpoint_.bytes.tensor(*place->tensors[rank_]).shape);
    const IdMapping mapping = map_ids(shapes, sizes, stored);
    if (!mapping.complete) return std::nullopt;
    std::vector<std::pair<std::int64_t, const BackingPlace*>> out;
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!seen.insert(ids[i]).second) return std::nullopt;
      out.emplace_back(ids[i], places[static_cast<std::size_t>(mapping.candidate[i])]);
    }
    if (!mapping.certain && ids.size() != places.size())
      checkpoint_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                                "which parameter an optimizer id means is inferred by order; "
                                "shapes allow another answer",
                                checkpoint_.path_of(optimizer_.file));
    return out;
  }

 private:
  /// Backing parameters as parameters() lists them, which is the order of the state dict; what
  /// several wrappers share is there once.
  std::vector<const BackingPlace*> candidates() const {
    std::map<std::string, const BackingPlace*> by_key;
    for (const BackingPlace& place : checkpoint_.places) {
      if (place.unwrapped || !place.tensors[rank_]) continue;
      by_key.emplace(place.key, &place);
      const std::string_view older = other_spelling(checkpoint_.backing(place).name);
      if (!older.empty()) by_key.emplace(joined(checkpoint_.wrapper(place).path, older), &place);
    }
    std::vector<const BackingPlace*> out;
    std::set<std::tuple<std::uint32_t, std::int64_t>> storages;
    for (const WeightEntry& entry : checkpoint_.ranks[rank_].weights) {
      const auto found = by_key.find(entry.key);
      if (found == by_key.end()) continue;
      const ArchiveTensor& tensor = checkpoint_.bytes.tensor(*found->second->tensors[rank_]);
      if (tensor.shape.numel() > 0 &&
          !storages.emplace(tensor.storage, tensor.storage_offset).second)
        continue;
      out.push_back(found->second);
    }
    return out;
  }

  /// The shape of the first of its leaves that has dims.
  std::optional<Shape> state_shape(std::int64_t id) const {
    const auto found = optimizer_.state.find(id);
    if (found == optimizer_.state.end()) return std::nullopt;
    for (const auto& [key, leaf] : found->second->as_dict()) {
      if (!leaf.is_tensor()) continue;
      const Shape& shape = checkpoint_.bytes.tensor({optimizer_.file, leaf.tensor_index()}).shape;
      if (shape.rank() > 0) return shape;
    }
    return std::nullopt;
  }

  Checkpoint& checkpoint_;
  std::size_t rank_;
  const RankOptimizer& optimizer_;
};

}  // namespace

std::optional<std::vector<std::pair<std::int64_t, const BackingPlace*>>> parameters_by_id(
    Checkpoint& checkpoint, std::size_t rank, const RankOptimizer& optimizer) {
  return IdReader(checkpoint, rank, optimizer).run();
}

}  // namespace tessera::fairscale

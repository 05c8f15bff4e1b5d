// The consolidated optimizer of gather_full_optim_state_dict(): whole tensors under an id for each
// original parameter, in the order of the metadata.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <set>

#include "lib/format/fairscale_fsdp/optim_sink.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

class GatheredReader {
 public:
  explicit GatheredReader(Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        file_(checkpoint.consolidated.file),
        optimizer_(*checkpoint.consolidated.value),
        sink_(checkpoint, false) {
    if (const std::string& name = checkpoint.description->marks.step_dtype; !name.empty())
      if (const auto known = dtype_from_torch_name(name); known && is_castable(*known))
        step_dtype_ = *known;
  }

  void run() {
    number_parameters();
    collect_state();
    spread_lists();
    for (std::size_t g = 0; g < parameters_.size(); ++g)
      if (state_.contains(static_cast<std::int64_t>(g))) add_state(g);
    add_groups();
    add_maps();
    checkpoint_.builder.manifest().provenance[std::string(kOptimizerKey)] = kGatheredOptimizer;
  }

 private:
  struct Numbered {
    PlacedParameter parameter;
    std::size_t place = 0;
  };

  void number_parameters() {
    for (std::size_t p = 0; p < checkpoint_.places.size(); ++p)
      for (PlacedParameter& parameter : placed_parameters(checkpoint_, checkpoint_.places[p]))
        parameters_.push_back({std::move(parameter), p});
    const std::size_t mapped = Field(optimizer_).at("param_id_map").dict().size();
    if (mapped != parameters_.size())
      fail(Code::kCorrupt,
           fmt::format("the optimizer was gathered from {} parameters; the shards hold {}", mapped,
                       parameters_.size()),
           "keep the optimizer of the same save with the shards, or take it out");
  }
  const Numbered& parameter(std::int64_t id) const {
    if (id < 0 || id >= static_cast<std::int64_t>(parameters_.size()))
      fail(Code::kCorrupt, fmt::format("optimizer id {} of {} parameters", id, parameters_.size()));
    return parameters_[static_cast<std::size_t>(id)];
  }

  void collect_state() {
    for (const auto& [key, leaves] : Field(optimizer_).at("state").entries()) {
      parameter(key.integer());
      leaves.dict();
      state_.emplace(key.integer(), &leaves.value());
    }
  }
  /// Ranks' scalars stand as a list on the last id of a wrapper alone.
  void spread_lists() {
    for (const auto& [id, state] : state_)
      for (const auto& [key, value] : state->as_dict())
        if (key.is_string() && value.kind() == Value::Kind::kList)
          lists_[parameter(id).place].emplace(key.as_string(), &value);
  }

  void add_state(std::size_t g) {
    const Numbered& of = parameters_[g];
    const Value& state = *state_.at(static_cast<std::int64_t>(g));
    sink_.begin(of.parameter.fqn);
    std::set<std::string> seen;
    for (const auto& [key, value] : state.as_dict()) {
      seen.insert(Field(key, {}, "state").text());
      add_leaf(of.parameter, key.as_string(), value);
    }
    if (const auto shared = lists_.find(of.place); shared != lists_.end())
      for (const auto& [leaf, value] : shared->second)
        if (!seen.contains(leaf)) add_leaf(of.parameter, leaf, *value);
    sink_.end();
  }
  void add_leaf(const PlacedParameter& of, const std::string& leaf, const Value& value) {
    if (value.is_tensor()) return add_tensor(of, leaf, {file_, value.tensor_index()});
    if (leaf == "step" && value.is_number() && step_dtype_)
      return sink_.scalar(leaf, *step_dtype_, value.as_real());
    const std::vector<TensorRef> scalars = scalar_list(value);
    if (scalars.empty()) return sink_.value(leaf, file_, value);
    const bool one = std::ranges::all_of(scalars, [&](TensorRef ref) {
      return checkpoint_.bytes.same(scalars[0], ref) == ArchiveBytes::Answer::kEqual;
    });
    one ? sink_.whole(leaf, scalars[0]) : sink_.list(leaf, scalars);
  }
  void add_tensor(const PlacedParameter& of, const std::string& leaf, TensorRef ref) {
    const ArchiveTensor& stored = checkpoint_.bytes.tensor(ref);
    // Parameters that are not flattened lose their shape when FairScale gathers their state.
    const bool ravelled = stored.shape.rank() == 1 && stored.shape.numel() == of.shape.numel();
    if (stored.shape != of.shape && !ravelled) return sink_.whole(leaf, ref);
    const ArchivePiece piece{Chunk::whole_of(Box::whole(of.shape)), ref.file, ref.tensor, 0};
    sink_.tensor(leaf, {stored.dtype, of.shape}, {&piece, 1}, checkpoint_.ranks.size() > 1);
  }
  std::vector<TensorRef> scalar_list(const Value& value) const {
    std::vector<TensorRef> out;
    if (value.kind() != Value::Kind::kList) return out;
    for (const Value& item : value.as_list()) {
      if (!item.is_tensor()) return {};
      out.push_back({file_, item.tensor_index()});
    }
    return out;
  }

  void add_groups() {
    std::int64_t index = 0;
    for (const Value& group : optimizer_.find("param_groups")->as_list()) {
      const Value* params = group.find("params");
      if (!params || params->kind() != Value::Kind::kList)
        fail(Code::kCorrupt, fmt::format("optimizer group {} lists no params", index));
      std::vector<std::string> members;
      for (const Value& id : params->as_list()) {
        if (!id.is_int()) fail(Code::kCorrupt, "a member of an optimizer group is no integer");
        members.push_back(parameter(id.as_int()).parameter.fqn);
      }
      sink_.group(index++, file_, group, members);
    }
  }
  void add_maps() {
    for (const auto& [key, value] : optimizer_.as_dict()) {
      if (!key.is_string() || key.as_string() == "state" || key.as_string() == "param_groups")
        continue;
      const std::string& name = key.as_string();
      const bool derived = name == "param_id_map" || name == "uncollected_local_ids";
      if (derived && checkpoint_.description->marks.ids_implied) continue;
      const Path path = below(sink_.root(), name);
      if (!derived) {
        checkpoint_.builder.add_state(file_, value, path);
      } else if (!value.is_dict()) {
        sink_.entry(path, value);
      } else {
        ValueDict map;
        for (const auto& [id, local] : value.as_dict())
          map.emplace_back(Value::string(id.is_int() ? std::to_string(id.as_int()) : "?"), local);
        sink_.entry(path, Value::dict(std::move(map)));
      }
    }
  }

  Checkpoint& checkpoint_;
  std::uint32_t file_;
  const Value& optimizer_;
  OptimSink sink_;
  std::optional<DType> step_dtype_;   // set: steps were tensors
  std::vector<Numbered> parameters_;  // by global id
  std::map<std::int64_t, const Value*> state_;
  std::map<std::size_t, std::map<std::string, const Value*>> lists_;  // by place, then leaf
};

}  // namespace

void read_gathered_optimizer(Checkpoint& checkpoint) {
  in_file(checkpoint.path_of(checkpoint.consolidated.file),
          [&] { GatheredReader(checkpoint).run(); });
}

}  // namespace tessera::fairscale

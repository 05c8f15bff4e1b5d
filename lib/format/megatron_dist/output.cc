// A Manifest -> a torch_dist folder: DCP's files, common.pt, and metadata.json as the last.
#include "lib/format/torch_dcp/output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/joined_plan.h"
#include "lib/format/megatron_dist/bucket_space.h"
#include "lib/format/megatron_dist/config.h"
#include "lib/format/megatron_dist/parts.h"
#include "lib/format/megatron_torch/args.h"
#include "lib/format/megatron_torch/bucket_names.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/format/torch_files/archive_draft.h"
#include "lib/format/value_policy.h"
#include "lib/state/sharded_object.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::string_view kFormat = "megatron-dist";
constexpr std::string_view kConfigText =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";

/// The dim that counts experts of one tensor for all of them ("experts.linear_fc1.weight", layers
/// stacked or not); -1: none, or an expert with a number of its own.
int expert_dim(const std::string& name, const Shape& shape) {
  if (!megatron_torch::is_expert(name) || megatron_torch::expert_name(name)) return -1;
  const int dim = megatron_torch::is_layer_stack(name) ? 1 : 0;
  return shape.rank() - dim >= 3 ? dim : -1;
}

/// What each mesh dim does: tp by Megatron's names, pp the layers of a stack, ep stacked experts,
/// all others nothing: data-parallel ranks hold whole parts, which the plan spreads over them.
std::vector<Placement> placements(const Mesh& mesh, const std::string& name, const Shape& shape) {
  std::vector<Placement> made;
  for (const MeshDim& dim : mesh.dims()) {
    int cut = -1;
    if (dim.name == "tp") cut = megatron_torch::tp_rule(name).dim(shape.rank());
    if (dim.name == "pp" && megatron_torch::is_layer_stack(name)) cut = 0;
    if (dim.name == "ep") cut = expert_dim(name, shape);
    made.push_back(cut >= 0 ? Placement::shard(cut) : Placement::replicate());
  }
  return made;
}

/// Model chunks of an interleaved pipeline are no ranks, and nothing here is cut by them.
TargetRequest without_chunks(const TargetRequest& request) {
  TargetRequest out = request;
  if (!request.mesh) return out;
  std::vector<MeshDim> dims = request.mesh->dims();
  const auto chunks = std::ranges::find(dims, "vpp", &MeshDim::name);
  if (chunks == dims.end()) return out;
  const auto at = chunks - dims.begin();
  dims.erase(chunks);
  out.mesh = Mesh(std::move(dims));
  for (auto& [glob, placements] : out.placements)
    if (placements.size() == request.mesh->dims().size()) placements.erase(placements.begin() + at);
  return out;
}

bool is_below(const Path& path, const Path& root) {
  return path.size() >= root.size() && std::equal(root.begin(), root.end(), path.begin());
}

class Writer {
 public:
  Writer(const Manifest& source, const TargetRequest& request)
      : source_(source), request_(without_chunks(request)), roles_(find_roles(source.state)) {}

  OutputPlan plan() {
    if (request_.world_size && !request_.mesh) {
      fail(Code::kInvalidArgument, "--world-size does not say how Megatron's ranks cut tensors",
           "use --mesh, for example --mesh tp=2,dp=2");
    }
    check_buckets();
    choose_common();
    dcp::OutputOptions options;
    options.format = kFormat;
    options.elsewhere = [this](std::size_t entry) { return common_[entry]; };
    options.container_elsewhere = [this](const ContainerNote& note) { return in_common(note); };
    find_parameters();
    options.placements = [this](const Mesh& mesh, const std::string& name, const Shape& shape) {
      const auto parameter = parameter_of_.find(name);
      return placements(mesh, parameter == parameter_of_.end() ? name : parameter->second, shape);
    };
    OutputPlan sharded = dcp::make_output_plan(source_, request_, options);
    note_flattened(sharded);
    return join_plans(std::move(sharded), common_plan());
  }

 private:
  /// Releases up to 0.15 look for the places of flattened parts (`mcore_data`) when they load an
  /// optimizer; 0.16 refuses those.
  void note_flattened(OutputPlan& plan) const {
    if (!source_.provenance.contains("megatron.flattened_ranges")) return;
    plan.notes.push_back(
        {Finding::kLeftOut, Severity::kWarning,
         "the source has the optimizer's state in flattened ranges (mcore_data of .metadata), as "
         "megatron-core up to 0.15 saves and loads it; this result has whole tensors, from which "
         "0.16 and newer load it, and 0.12 to 0.15 load the model alone",
         "", ""});
  }

  /// Buckets are parts of model-parallel ranks: right for the same sizes only, which args say; four
  /// ranks of tp=4 are not those of tp=2, pp=2.
  void check_buckets() const {
    std::int64_t tp = 1, pp = 1;
    if (request_.mesh)
      for (const MeshDim& dim : request_.mesh->dims()) {
        if (dim.name == "tp") tp = dim.size;
        if (dim.name == "pp") pp = dim.size;
      }
    const megatron_torch::Args args = megatron_torch::args_of(source_.state);
    const bool same_sizes = args.integer("tensor_model_parallel_size").value_or(tp) == tp &&
                            args.integer("pipeline_model_parallel_size").value_or(pp) == pp;
    megatron_torch::check_undecoded(source_, megatron_torch::TargetRanks{tp, pp, same_sizes});
  }

  /// State of a parameter's shape, masters included, is cut as the parameter is, however the
  /// optimizer names it: by FQN, by leaf, by id.
  void find_parameters() {
    for (const OptimState& optim : canonical_optim_states(source_, roles_)) {
      for (const OptimParameter& parameter : optim.parameters) {
        if (parameter.weight == kNoTensor) continue;
        const StoredTensor& weight = source_.tensors[parameter.weight];
        for (const OptimLeaf& leaf : parameter.leaves)
          if (leaf.tensor != kNoTensor &&
              source_.tensors[leaf.tensor].spec.shape == weight.spec.shape)
            parameter_of_.emplace(source_.tensors[leaf.tensor].name, weight.name);
      }
    }
  }

  void choose_common() {
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      const bool group = roles_.entries[i].role == Role::kOptimGroup;
      common_.push_back(entry.value.is_tensor() ? group : !parse_sharded_object(entry.name));
      if (entry.value.is_tensor() && !group) add_lists(entry.path);
    }
    // A list cannot lie half in one file and half in the others.
    for (std::size_t i = 0; i < common_.size(); ++i)
      if (common_[i] && is_in_list(source_.state.entries[i].path)) common_[i] = false;
  }
  void add_lists(const Path& path) {
    for (std::size_t d = 1; d < path.size(); ++d)
      if (path[d].kind == PathItem::Kind::kIndex)
        lists_.insert(dotted(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(d))));
  }
  bool is_in_list(const Path& path) const {
    if (lists_.empty()) return false;
    for (std::size_t d = 1; d < path.size(); ++d)
      if (path[d].kind == PathItem::Kind::kIndex &&
          lists_.contains(
              dotted(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(d)))))
        return true;
    return false;
  }

  /// A container goes along unless sharded tensors lie in it: their files keep leaves only.
  bool in_common(const ContainerNote& note) const {
    for (std::size_t i = 0; i < common_.size(); ++i)
      if (!common_[i] && is_below(source_.state.entries[i].path, note.path)) return false;
    return true;
  }

  OutputPlan common_plan() {
    ArchivePlanBuilder builder(source_);
    ArchiveDraft draft(source_, {.format = kFormat});
    Value root = common_root(draft, builder);
    builder.add(draft.finish(std::string(kCommonFile), std::move(root)));
    builder.add_literal(std::string(kConfigFile), std::string(kConfigText));
    return builder.finish(std::string(kFormat));
  }

  Value common_root(ArchiveDraft& draft, ArchivePlanBuilder& builder) {
    ValuePolicy policy(request_, {.opaque = true, .bytes_io = false}, kFormat, builder.notes(),
                       builder.left_out());
    StateDict kept;
    std::vector<std::size_t> kept_before;
    for (std::size_t i = 0; i < common_.size(); ++i) {
      kept_before.push_back(kept.entries.size());
      const StateEntry& entry = source_.state.entries[i];
      if (!common_[i] || (!entry.value.is_tensor() && !policy.keeps(entry))) continue;
      kept.entries.push_back(
          {entry.name, entry.path, in_tensor(entry.name, [&] { return draft.take(entry.value); })});
    }
    for (const ContainerNote& note : source_.state.containers) {
      if (!in_common(note)) continue;
      ContainerNote copy = note;
      copy.attributes = policy.keeps_attributes(note) ? draft.take(note.attributes) : Value();
      if (note.entries_before < kept_before.size())
        copy.entries_before = kept_before[note.entries_before];
      kept.containers.push_back(std::move(copy));
    }
    return kept.entries.empty() && kept.containers.empty() ? Value::dict({}) : unflatten(kept);
  }

  const Manifest& source_;
  const TargetRequest request_;
  const Roles roles_;
  std::map<std::string, std::string> parameter_of_;  // state tensor -> weight
  std::vector<bool> common_;                         // entry i stands in common.pt
  std::set<std::string> lists_;                      // lists that sharded tensors lie in
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return Writer(source, request).plan();
}

}  // namespace tessera::megatron_dist

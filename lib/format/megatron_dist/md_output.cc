// A Manifest -> a torch_dist folder: DCP's files, common.pt, and metadata.json as the last.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/joined_plan.h"
#include "lib/format/megatron_dist/md_config.h"
#include "lib/format/megatron_dist/md_parts.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/format/torch_dcp/dcp_output.h"
#include "lib/format/torch_files/archive_plan.h"
#include "lib/format/value_policy.h"
#include "lib/state/tensor_remapper.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::string_view kFormat = "megatron-dist";
constexpr std::string_view kConfigText =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";

bool is_counters(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// "rng_state/shard_0.1_2.2": an object of one rank, which DCP's files hold.
bool is_sharded_object(std::string_view name) {
  constexpr std::string_view kMark = "/shard_";
  const std::size_t at = name.rfind(kMark);
  if (at == std::string_view::npos || at == 0) return false;
  const std::string_view rest = name.substr(at + kMark.size());
  const std::size_t bar = rest.find('_');
  return bar != std::string_view::npos && is_counters(rest.substr(0, bar)) &&
         is_counters(rest.substr(bar + 1));
}

/// What each mesh dim does: tp by Megatron's names, pp the layers of a stack, all others nothing:
/// data-parallel ranks hold whole parts, which the plan spreads over them.
std::vector<Placement> placements(const Mesh& mesh, const std::string& name, const Shape& shape) {
  std::vector<Placement> made;
  for (const MeshDim& dim : mesh.dims()) {
    int cut = -1;
    if (dim.name == "tp") cut = megatron_torch::tp_rule(name).dim(shape.rank());
    if (dim.name == "pp" && megatron_torch::is_layer_stack(name)) cut = 0;
    made.push_back(cut >= 0 ? Placement::shard(cut) : Placement::replicate());
  }
  return made;
}

bool is_below(const Path& path, const Path& root) {
  return path.size() >= root.size() && std::equal(root.begin(), root.end(), path.begin());
}

class Writer {
 public:
  Writer(const Manifest& source, const TargetRequest& request)
      : source_(source), request_(request) {}

  OutputPlan plan() {
    if (request_.world_size && !request_.mesh) {
      fail(Code::kInvalidArgument, "--world-size does not say how Megatron's ranks cut tensors",
           "use --mesh, for example --mesh tp=2,dp=2");
    }
    choose_common();
    dcp::OutputOptions options;
    options.format = kFormat;
    options.elsewhere = [this](std::size_t entry) { return common_[entry]; };
    options.container_elsewhere = [this](const ContainerNote& note) { return in_common(note); };
    options.placements = placements;
    OutputPlan sharded = dcp::make_output_plan(source_, request_, options);
    return join_plans(std::move(sharded), common_plan());
  }

 private:
  void choose_common() {
    const Roles roles = find_roles(source_.state);
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      const bool group = roles.entries[i].role == Role::kOptimGroup;
      common_.push_back(entry.value.is_tensor() ? group : !is_sharded_object(entry.name));
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
    ArchiveFile file;
    file.path = kCommonFile;
    file.prefix = "common";
    file.root = common_root(file, builder.notes());
    builder.add(std::move(file));
    builder.add_literal(std::string(kConfigFile), std::string(kConfigText));
    return builder.finish(std::string(kFormat));
  }

  Value common_root(ArchiveFile& file, std::vector<Note>& notes) {
    ValuePolicy policy(request_, {.opaque = true, .bytes_io = false}, kFormat, notes);
    TensorRemapper remap([&](std::uint32_t index) { return take(file, index); });
    StateDict kept;
    std::vector<std::size_t> kept_before;
    for (std::size_t i = 0; i < common_.size(); ++i) {
      kept_before.push_back(kept.entries.size());
      const StateEntry& entry = source_.state.entries[i];
      if (!common_[i] || (!entry.value.is_tensor() && !policy.keeps(entry))) continue;
      kept.entries.push_back(
          {entry.name, entry.path, in_tensor(entry.name, [&] { return remap(entry.value); })});
    }
    for (const ContainerNote& note : source_.state.containers) {
      if (!in_common(note)) continue;
      ContainerNote copy = note;
      copy.attributes = policy.keeps_attributes(note) ? remap(note.attributes) : Value();
      if (note.entries_before < kept_before.size())
        copy.entries_before = kept_before[note.entries_before];
      kept.containers.push_back(std::move(copy));
    }
    return kept.entries.empty() && kept.containers.empty() ? Value::dict({}) : unflatten(kept);
  }

  /// A tensor inside the common state, in a storage of its own.
  std::uint32_t take(ArchiveFile& file, std::uint32_t index) const {
    const StoredTensor& tensor = source_.tensors[index];
    if (is_sub_byte(tensor.spec.dtype) || tensor.quant >= 0)
      fail(Code::kUnsupported,
           fmt::format("common.pt cannot hold a tensor of {}", torch_name(tensor.spec.dtype)));
    const auto number = static_cast<std::uint32_t>(file.tensors.size());
    file.tensors.push_back(
        {tensor.spec, number, tensor.is_parameter, tensor.requires_grad, nullptr});
    StoragePiece piece;
    piece.tensor = index;
    piece.chunk = Chunk::whole_of(Box::whole(tensor.spec.shape));
    file.storages.push_back({std::move(piece)});
    return number;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  std::vector<bool> common_;     // entry i stands in common.pt
  std::set<std::string> lists_;  // lists that sharded tensors lie in
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return Writer(source, request).plan();
}

}  // namespace tessera::megatron_dist

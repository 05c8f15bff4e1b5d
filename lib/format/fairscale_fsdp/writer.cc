#include "lib/format/fairscale_fsdp/writer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "lib/format/data_parallel.h"
#include "lib/format/fairscale_fsdp/files.h"
#include "lib/format/fairscale_fsdp/optim_writer.h"
#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/format/fairscale_fsdp/rest.h"
#include "lib/format/fairscale_fsdp/target_optim.h"
#include "lib/format/torch_files/archive_draft.h"
#include "lib/format/torch_files/flat_tensors.h"
#include "lib/format/value_policy.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

/// What FairScale's files keep of tensors: their elements.
constexpr DraftRules kRules{
    .format = "fairscale-fsdp", .quantized = false, .parameters = false, .ties = false};

class Writer {
 public:
  Writer(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, "fairscale-fsdp", builder_.notes(),
                builder_.left_out()) {}

  OutputPlan run() {
    world_ = data_parallel_ranks(request_, "fairscale-fsdp");
    roles_ = find_roles(source_.state);
    if (!roles_.model_roots.empty()) model_root_ = roles_.model_roots[0];
    choose_kept();
    const std::vector<OptimState> optimizers = canonical_optim_states(source_, roles_);
    for (const OptimState& optim : optimizers)
      require_names(source_, optim, std::string(kKeepIdsHint));
    target_ = group_parameters(source_, roles_, model_root_, trained(optimizers), builder_.notes());
    if (target_.keys.empty())
      fail(Code::kUnsupported, "fairscale-fsdp holds a model's weights; there are none here",
           "take the model along, or write torch-dcp or torch-save, which hold any part");
    if (request_.values != KeepPolicy::kDrop)
      refuse_split_lists(source_.state, roles_, "fairscale-fsdp");
    optimizer_ = target_optimizer(source_, roles_, optimizers, target_, kept_, request_.steps);
    refuse_lookalikes(source_, target_, optimizer_, world_);
    choose_optimizer_form();
    rest_ = RestOfState(source_, roles_, model_root_, optimizer_, kept_, world_);
    name_parts();
    describe_backings();
    marks_ = writer_marks();
    for (std::int64_t rank = 0; rank < world_; ++rank) add_rank(rank);
    if (optimizer_.present && !per_rank_) add_gathered();
    return builder_.finish("fairscale-fsdp");
  }

 private:
  void choose_kept() {
    kept_.assign(source_.state.entries.size(), true);
    for (std::size_t i = 0; i < kept_.size(); ++i)
      if (!source_.state.entries[i].value.is_tensor())
        kept_[i] = policy_.keeps(source_.state.entries[i]);
  }

  std::set<std::string> trained(const std::vector<OptimState>& optimizers) const {
    std::set<std::string> out;
    const std::set<std::string> integers = integer_tensors();
    for (const OptimState& optimizer : optimizers) {
      for (const OptimGroup& group : optimizer.groups)
        out.insert(group.members.begin(), group.members.end());
      for (const OptimParameter& one : optimizer.parameters) {
        // DeepSpeed keeps an fp32 of every tensor of the model.
        const bool master_alone = one.leaves.size() == 1 && is_master_leaf(one.leaves[0].name);
        if (!master_alone || !integers.contains(one.fqn)) out.insert(one.fqn);
      }
    }
    return out;
  }
  std::set<std::string> integer_tensors() const {
    std::set<std::string> out;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const Value& value = source_.state.entries[i].value;
      if (roles_.entries[i].role == Role::kModel && value.is_tensor() &&
          !is_floating(source_.tensors[value.tensor_index()].spec.dtype))
        out.insert(roles_.entries[i].fqn);
    }
    return out;
  }

  /// As the source had it; what the per-rank form cannot hold goes to the gathered one.
  void choose_optimizer_form() {
    const auto form = source_.provenance.find(std::string(kOptimizerKey));
    per_rank_ = form != source_.provenance.end() && form->second == kRankOptimizers;
    if (!per_rank_ || !optimizer_.present) return;
    const std::string why_not = unite_backings(target_, optimizer_);
    if (why_not.empty()) return;
    per_rank_ = false;
    builder_.notes().push_back({Finding::kLeftOut, Severity::kInfo,
                                "the optimizer is gathered in one file: " + why_not, "", ""});
  }

  // Names that users chose.

  void name_parts() {
    const auto naming = source_.provenance.find(std::string(kNamingKey));
    if (naming != source_.provenance.end() && usable_pattern(naming->second))
      pattern_ = naming->second;
    std::vector<std::string> names = {"weights", "meta", "optim"};
    if (const auto known = source_.provenance.find(std::string(kPartKeys));
        known != source_.provenance.end())
      take_names(known->second, names);
    for (std::string& name : names)
      while (rest_.has_key(name)) name = "fairscale_" + name;
    weights_key_ = names[0];
    metadata_key_ = names[1];
    optimizer_key_ = names[2];
  }
  /// "rank_*.pt", but not "rank_*_of_4.pt": that number would be wrong now.
  bool usable_pattern(const std::string& pattern) const {
    if (!source_.world_size || std::ranges::count(pattern, '*') != 1 ||
        pattern.find('/') != std::string::npos || pattern == "*")
      return false;
    return pattern.find(std::to_string(*source_.world_size)) == std::string::npos;
  }
  static void take_names(const std::string& json, std::vector<std::string>& names) {
    const Value known = parse_json(as_bytes(json));
    if (known.kind() != Value::Kind::kList || known.as_list().size() != names.size()) return;
    std::vector<std::string> mine = names;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (known.as_list()[i].is_string()) mine[i] = known.as_list()[i].as_string();
    if (std::set<std::string>(mine.begin(), mine.end()).size() == mine.size()) names = mine;
  }
  std::string rank_file(std::int64_t rank) const {
    const std::size_t star = pattern_.find('*');
    return pattern_.substr(0, star) + std::to_string(rank) + pattern_.substr(star + 1);
  }

  // Weights and metadata.

  struct Described {
    FlatLayout layout;
    std::vector<std::uint32_t> tensors;
    Value names, shapes, numels;
  };
  void describe_backings() {
    for (const TargetBacking& backing : target_.backings) {
      Described described{layout_of(target_, backing, world_), {}, {}, {}, {}};
      ValueList names, shapes, numels;
      for (std::size_t i = 0; i < backing.count; ++i) {
        const TargetParameter& one = target_.parameters[backing.first + i];
        described.tensors.push_back(one.tensor);
        names.push_back(Value::string(one.name));
        shapes.push_back(Value::size({one.shape.extents().begin(), one.shape.extents().end()}));
        numels.push_back(Value::integer(one.shape.numel()));
      }
      described.names = Value::list(std::move(names));
      described.shapes = Value::list(std::move(shapes));
      described.numels = Value::list(std::move(numels));
      described_.push_back(std::move(described));
    }
  }
  /// Unsharded ranks keep a parameter's own shape.
  Shape stored_shape(std::size_t backing) const {
    const TargetBacking& of = target_.backings[backing];
    const FlatLayout& layout = described_[backing].layout;
    if (layout.shards() == 1 && !of.flat) return target_.parameters[of.first].shape;
    return Shape{layout.shard_numel()};
  }
  static std::int64_t shard_of(const FlatLayout& layout, std::int64_t rank) {
    return layout.shards() == 1 ? 0 : rank;
  }

  Value shard(ArchiveDraft& draft, std::size_t backing, std::int64_t rank) const {
    return shard(draft, backing, rank, described_[backing].tensors,
                 target_.backings[backing].dtype);
  }
  /// `tensors`: weights, or a leaf of the optimizer, by parameter.
  Value shard(ArchiveDraft& draft, std::size_t backing, std::int64_t rank,
              const std::vector<std::uint32_t>& tensors, DType dtype) const {
    const FlatLayout& layout = described_[backing].layout;
    return draft.add(
        {dtype, stored_shape(backing)},
        flat_storage(source_, layout.pieces_of(shard_of(layout, rank)), layout.shard_numel(), dtype,
                     [&](std::size_t p) { return tensors[p]; }));
  }

  Value weights(ArchiveDraft& draft, std::int64_t rank) const {
    ValueDict out;
    for (const TargetKey& key : target_.keys) {
      if (key.backing == TargetKey::kNone) {
        if (kept_[key.entry])
          out.emplace_back(text(key.key), draft.take(source_.state.entries[key.entry].value));
        continue;
      }
      const Value* own = rest_.own_weight(rank, target_.backings[key.backing].stored_key);
      out.emplace_back(text(key.key), own ? draft.take(*own) : shard(draft, key.backing, rank));
    }
    return Value::ordered_dict(std::move(out), attributes());
  }
  /// Versions of modules, where the source has them.
  Value attributes() const {
    const Path root = root_path(model_root_);
    for (const ContainerNote& note : source_.state.containers) {
      if (note.kind != Value::Kind::kOrderedDict || note.path != root) continue;
      if (!note.attributes.holds_tensors()) return note.attributes;
    }
    return Value();
  }

  Value metadata(ArchiveDraft& draft, std::int64_t rank) const {
    ValueList wrappers;
    for (const TargetWrapper& wrapper : target_.wrappers) {
      ValueDict params;
      for (const std::size_t b : wrapper.backings) {
        const Described& described = described_[b];
        ValueDict info;
        info.emplace_back(text("names"), described.names);
        info.emplace_back(text("shapes"), described.shapes);
        info.emplace_back(text("numels"), described.numels);
        info.emplace_back(
            text("padding"),
            Value::integer(described.layout.num_padded(shard_of(described.layout, rank))));
        params.emplace_back(text(target_.backings[b].name), Value::dict(std::move(info)));
      }
      ValueList shared;
      for (const auto& [from, to] : wrapper.shared)
        shared.push_back(Value::list({text(from), text(to)}, Value::Kind::kTuple));
      ValueDict out;
      out.emplace_back(text("fsdp_path"), text(wrapper.path));
      out.emplace_back(text("params"), Value::dict(std::move(params)));
      out.emplace_back(text("no_broadcast_optim_state"), Value::boolean(wrapper.no_broadcast));
      out.emplace_back(text("shared_param_info"), Value::list(std::move(shared)));
      wrappers.push_back(Value::dict(std::move(out)));
    }
    ValueList buffers;
    for (const std::string& name : target_.buffers) buffers.push_back(text(name));
    ValueDict out;
    out.emplace_back(text(kMetadataKey), Value::list(std::move(wrappers)));
    out.emplace_back(text("buffer_names"), Value::list(std::move(buffers)));
    Value marks = rank == 0 ? with_buffer_state(draft) : marks_;
    if (marks.is_dict()) out.emplace_back(text(kMarksKey), std::move(marks));
    return Value::dict(std::move(out));
  }
  /// Only what a reader could not know: nothing where the source was FairScale's own.
  Value writer_marks() const {
    const WriterMarks usual;
    ValueDict marks;
    if (model_root_ != usual.model_root) marks.emplace_back(text("model_root"), text(model_root_));
    if (optimizer_.present && optimizer_.root != usual.optim_root)
      marks.emplace_back(text("optim_root"), text(optimizer_.root));
    const bool lists_maps = !per_rank_ || target_.backings.empty() || target_.backings[0].flat;
    if (optimizer_.present && optimizer_.maps.empty() && lists_maps)
      marks.emplace_back(text("ids_implied"), Value::boolean(true));
    if (!optimizer_.maps.empty() && !keeps_maps()) marks.emplace_back(text("maps"), source_maps());
    if (optimizer_.present && !per_rank_)
      if (const auto dtype = optim_writer().step_dtype())
        marks.emplace_back(text("step_dtype"), text(torch_name(*dtype)));
    return marks.empty() ? Value() : Value::dict(std::move(marks));
  }

  /// FairScale keeps state of parameters alone.
  Value with_buffer_state(ArchiveDraft& draft) const {
    if (optimizer_.of_buffers.empty()) return marks_;
    ValueDict state;
    for (const BufferLeaf& leaf : optimizer_.of_buffers) {
      const Value key = text(leaf.fqn);
      if (state.empty() || !(state.back().first == key)) state.emplace_back(key, Value::dict({}));
      ValueDict leaves = state.back().second.as_dict();
      leaves.emplace_back(text(leaf.name), draft.take(source_.state.entries[leaf.entry].value));
      state.back().second = Value::dict(std::move(leaves));
    }
    ValueDict marks = marks_.is_dict() ? marks_.as_dict() : ValueDict();
    marks.emplace_back(text("state"), Value::dict(std::move(state)));
    return Value::dict(std::move(marks));
  }

  /// A reader makes the maps of the source again: it has the same wrappers and parameters.
  bool keeps_maps() const {
    if (!source_.provenance.contains(std::string(kWrappersKey))) return false;
    for (const std::size_t i : optimizer_.maps)
      if (const Value& map = source_.state.entries[i].value; map.is_dict())
        return map.as_dict().size() == target_.parameters.size();
    return false;
  }
  Value source_maps() const {
    StateDict maps;
    const std::size_t skip = root_path(optimizer_.root).size();
    for (const std::size_t i : optimizer_.maps) {
      const StateEntry& entry = source_.state.entries[i];
      Path path = entry.path.empty() ? root_path(entry.name) : entry.path;
      path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(skip));
      maps.entries.push_back({dotted(path), path, entry.value});
    }
    return unflatten(maps);
  }

  void add_rank(std::int64_t rank) {
    ArchiveDraft draft(source_, kRules);
    ValueDict root;
    root.emplace_back(text(weights_key_), weights(draft, rank));
    root.emplace_back(text(metadata_key_), metadata(draft, rank));
    if (optimizer_.present && per_rank_)
      root.emplace_back(text(optimizer_key_), rank_optimizer(draft, rank));
    for (const auto& [key, value] : rest_.of_rank(rank)) root.emplace_back(key, draft.take(value));
    builder_.add(draft.finish(rank_file(rank), Value::dict(std::move(root))));
  }

  // The optimizer.

  OptimWriter optim_writer() const { return {source_, target_, optimizer_, rest_}; }
  Value rank_optimizer(ArchiveDraft& draft, std::int64_t rank) const {
    return optim_writer().of_rank(
        draft, rank, [&](std::size_t backing, const std::vector<std::uint32_t>& tensors) {
          return shard(draft, backing, rank, tensors, source_.tensors[tensors[0]].spec.dtype);
        });
  }
  void add_gathered() {
    if (rest_.has_own_state())
      fail(Code::kUnsupported,
           "ranks hold optimizer state of their own (no_broadcast), which one file cannot hold",
           "--rank-state rank0 keeps the first rank's");
    std::string name(kGatheredFile);
    for (std::int64_t rank = 0; rank < world_; ++rank)
      if (rank_file(rank) == name) name = kOtherGatheredFile;
    ArchiveDraft draft(source_, kRules);
    OptimWriter writer = optim_writer();
    Value root = writer.gathered(draft);
    builder_.add(draft.finish(name, std::move(root)));
    for (Note& note : writer.notes) builder_.notes().push_back(std::move(note));
  }

  const Manifest& source_;
  const TargetRequest& request_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  std::int64_t world_ = 1;
  Roles roles_;
  std::string model_root_ = "model";
  std::vector<bool> kept_;
  Target target_;
  TargetOptimizer optimizer_;
  RestOfState rest_;
  bool per_rank_ = false;
  Value marks_;
  std::string pattern_ = "rank_*.pt";
  std::string weights_key_, metadata_key_, optimizer_key_;
  std::vector<Described> described_;
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return Writer(source, request).run();
}

}  // namespace tessera::fairscale

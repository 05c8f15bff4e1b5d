#include "lib/format/megatron_torch/optim_output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <utility>

#include "lib/format/megatron_torch/buffer_output.h"
#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/format/megatron_torch/optim_parts.h"
#include "lib/format/torch_files/grouped_optim.h"

namespace tessera::megatron_torch {
namespace {

Path joined(Path path, const Path& more) {
  path.insert(path.end(), more.begin(), more.end());
  return path;
}

/// What a path has behind the first `param_groups` and the number behind it.
Path below_group(const Path& path) {
  const auto at =
      std::ranges::find_if(path, [](const PathItem& item) { return is_key(item, "param_groups"); });
  if (path.end() - at < 2) return {};
  return Path(at + 2, path.end());
}

}  // namespace

const OptimLeaf* master_of(const OptimParameter& parameter) {
  const OptimLeaf* found = parameter.find(kMasterLeaf);
  if (!found) found = parameter.find("param");
  return found && found->tensor != kNoTensor ? found : nullptr;
}

OptimizerOutput::OptimizerOutput(const Manifest& source, const Roles& roles, const Args& args,
                                 std::int64_t ranks, bool splits_experts)
    : source_(source),
      args_(args),
      splits_experts_(splits_experts),
      owned_(source.state.entries.size()) {
  choose(roles, ranks);
  if (!optim_) return;
  bool any_master = false, any_state = false;
  for (const OptimParameter& parameter : optim_->parameters) {
    by_fqn_.emplace(parameter.fqn, &parameter);
    any_master |= master_of(parameter) != nullptr;
    any_state |= !parameter.leaves.empty();
    const bool vector =
        parameter.weight != kNoTensor && source.tensors[parameter.weight].spec.shape.rank() <= 1;
    expert_vectors_ |= vector && is_expert(parameter.fqn);
  }
  distributed_ = any_state && std::ranges::none_of(groups_, &Group::lists_members);
  wrapped_ = any_master || distributed_ || !others_.empty();
}

/// One optimizer, whose state parameters can be found for.
void OptimizerOutput::choose(const Roles& roles, std::int64_t ranks) {
  std::vector<OptimState> all = canonical_optim_states(source_, roles);
  const auto named = std::ranges::find(all, kOptimizer, &OptimState::root);
  const std::size_t mine = named != all.end() ? static_cast<std::size_t>(named - all.begin()) : 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool certain = std::ranges::all_of(all[i].parameters, [&](const OptimParameter& p) {
      return all[i].dialect != OptimDialect::kById || (p.inferred && p.certain);
    });
    if (i == mine && certain) {
      optim_ = std::move(all[i]);
      own(roles, static_cast<std::int32_t>(i));
      continue;
    }
    if (ranks == 1) continue;  // copied as it stands
    const std::string root = printable(all[i].root);
    if (i == mine)
      fail(Code::kUnsupported,
           fmt::format("optimizer \"{}\" over {} ranks: its ids cannot be matched with the model's "
                       "parameters beyond doubt",
                       root, ranks),
           fmt::format("leave it out: --exclude {}",
                       root.empty() ? "'state.*'" : "'" + root + ".*'"));
    refuse_second_optimizer(all[mine].root, all[i].root,
                            fmt::format("megatron-torch over {} ranks", ranks));
  }
}

bool OptimizerOutput::stands_in_place() const {
  return root() == kOptimizer || root() == "optimizer.optimizer";
}

void OptimizerOutput::add_option(std::int64_t group, Option option) {
  auto known = std::ranges::find(groups_, group, &Group::index);
  if (known == groups_.end()) {
    groups_.push_back({.index = group});
    known = std::prev(groups_.end());
  }
  if (!option.path.empty()) known->options.push_back(std::move(option));
}

/// State, groups and what stands beside them under `optimizer` become this object's to write.
void OptimizerOutput::own(const Roles& roles, std::int32_t root) {
  const bool ours = stands_in_place();
  for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
    const StateEntry& entry = source_.state.entries[i];
    const EntryRole& role = roles.entries[i];
    const bool mine = role.root == root;
    if (mine && role.role == Role::kOptimState) {
      owned_[i] = true;
    } else if (mine && role.role == Role::kOptimGroup) {
      owned_[i] = true;
      const bool params = role.leaf == "params";
      if (role.group >= 0)
        add_option(role.group, {i, params ? Path() : below_group(entry.path), entry.value});
      if (role.group >= 0 || entry.value.kind() != Value::Kind::kList) continue;
      for (const OptimGroup& group : optim_->groups)
        for (const auto& [key, value] : group.options)
          add_option(group.index, {i, {key_item(key.as_string())}, value});
    } else if (ours && role.role == Role::kOther && entry.path.size() > 1 &&
               is_key(entry.path[0], kOptimizer)) {
      owned_[i] = true;
      others_.push_back({i, Path(entry.path.begin() + 1, entry.path.end()), entry.value});
    }
  }
  for (const OptimGroup& group : optim_->groups) {
    add_option(group.index, {});
    Group& known = *std::ranges::find(groups_, group.index, &Group::index);
    known.lists_members = !group.stored_members.empty() || lists_params(roles, root, group.index);
    known.listed = group.members;
    known.members.insert(group.members.begin(), group.members.end());
  }
}

/// A group that lists no parameter lists them all the same: `params` is there, and empty.
bool OptimizerOutput::lists_params(const Roles& roles, std::int32_t root,
                                   std::int64_t group) const {
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    if (role.root == root && role.role == Role::kOptimGroup && role.group == group &&
        role.leaf == "params")
      return true;
  }
  return false;
}

void OptimizerOutput::check_complete(const std::set<std::string>& model) const {
  if (!optim_) return;
  for (const OptimParameter& parameter : optim_->parameters) {
    for (const OptimLeaf& leaf : parameter.leaves) {
      const bool buffered = master_of(parameter) == &leaf ||
                            std::ranges::find(kBuffers, leaf.name, [](const auto& b) {
                              return b.second;
                            }) != kBuffers.end();
      if (!distributed_ || buffered) continue;
      in_tensor(parameter.fqn, [&] {
        fail(Code::kUnsupported,
             fmt::format("the distributed optimizer has no place for {} of a parameter",
                         printable(leaf.name)),
             "groups that list their parameters make it an ordinary optimizer");
      });
    }
    if (parameter.leaves.empty()) continue;
    const bool listed = distributed_ || parameter.group >= 0;
    if (!model.contains(parameter.fqn)) refuse_unknown_parameter(parameter.fqn);
    if (!listed) refuse_unlisted_parameter(parameter.fqn);
  }
}

/// Without expert-parallel ranks one optimizer has all groups; with them experts have their own.
bool OptimizerOutput::belongs(const Group& group, bool experts) const {
  if (group.lists_members) {
    const bool any = std::ranges::any_of(
        group.members, [&](const auto& fqn) { return is_expert(fqn) == experts; });
    return any || (!experts && group.members.empty());
  }
  const auto flagged = [](const Group& g) {
    return std::ranges::any_of(g.options, [](const Option& option) {
      return option.path.size() == 1 && is_key(option.path[0], kExpertFlag) &&
             option.value == Value::boolean(true);
    });
  };
  if (!experts) return !flagged(group);
  if (std::ranges::any_of(groups_, flagged)) return flagged(group);
  return expert_vectors_ || has_decay(options_of(group));
}

/// Those that stand in the group itself.
Value OptimizerOutput::options_of(const Group& group) {
  ValueDict options;
  for (const Option& option : group.options)
    if (option.path.size() == 1)
      options.emplace_back(Value::string(option.path[0].text()), option.value);
  return Value::dict(std::move(options));
}

std::vector<OptimizerOutput::Share> OptimizerOutput::shares(
    const std::vector<WrittenTensor>& tensors) const {
  std::vector<Share> out(splits_experts_ ? 2 : 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].base = {key_item(kOptimizer)};
    if (splits_experts_) {
      out[i].base.push_back(index_item(i));
      out[i].experts = i == 1;
    }
    for (const Group& group : groups_)
      if (!splits_experts_ || belongs(group, i == 1)) out[i].groups.push_back(&group);
  }
  for (const WrittenTensor& tensor : tensors)
    out[splits_experts_ && is_expert(tensor.fqn) ? 1 : 0].tensors.push_back(&tensor);
  return out;
}

Path OptimizerOutput::inner(const Share& share) const {
  return wrapped_ ? below(share.base, kOptimizer) : share.base;
}

RankPart OptimizerOutput::part_of(const TargetCut& cut, std::int64_t rank, const WrittenTensor& of,
                                  std::uint32_t tensor) const {
  const Shape& shape = source_.tensors[tensor].spec.shape;
  if (shape == source_.tensors[of.tensor].spec.shape) return cut.part(tensor, of.fqn, rank);
  if (shape.rank() == 0 || cut.tp() == 1) return cut.whole(tensor);
  return in_tensor(source_.tensors[tensor].name, [&]() -> RankPart {
    fail(Code::kUnsupported,
         "state of another shape than its parameter's, over tensor-parallel ranks");
  });
}

void OptimizerOutput::write(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                            const std::vector<WrittenTensor>& tensors,
                            const std::function<bool(std::size_t)>& keeps) const {
  if (!optim_) return;
  for (const Share& share : shares(tensors)) {
    const Numbered groups = write_groups(out, share, keeps);
    if (!distributed_) write_state(out, cut, rank, share, groups);
    if (!distributed_) write_masters(out, cut, rank, share, groups);
    for (const Option& other : others_)
      if (keeps(other.entry)) out.add(joined(share.base, other.path), out.value(other.value));
  }
}

void OptimizerOutput::add_container(RankWriter& out, const ContainerNote& note) const {
  if (note.path.size() < 2) return;
  for (const std::string_view word : {"state", "param_groups", "optimizer"})
    if (is_key(note.path[1], word)) return;
  for (const Share& share : shares({})) {
    ContainerNote copy = note;
    copy.attributes = Value();
    copy.entries_before = static_cast<std::size_t>(-1);
    copy.path = joined(share.base, Path(note.path.begin() + 1, note.path.end()));
    out.state().containers.push_back(std::move(copy));
  }
}

/// The rank's own parameters of each group, in the order of its model.
OptimizerOutput::Numbered OptimizerOutput::number(const Share& share) {
  Numbered groups;
  for (const Group* group : share.groups) {
    groups.emplace_back();
    for (const WrittenTensor* tensor : share.tensors)
      if (group->members.contains(tensor->fqn)) groups.back().push_back(tensor);
  }
  return groups;
}

/// The groups with the ids of the rank's own parameters.
OptimizerOutput::Numbered OptimizerOutput::write_groups(
    RankWriter& out, const Share& share, const std::function<bool(std::size_t)>& keeps) const {
  Numbered groups = number(share);
  std::int64_t id = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Group& group = *share.groups[g];
    const Path path = below(inner(share), {key_item("param_groups"), index_item(g)});
    ValueList ids;
    for (std::size_t i = 0; i < groups[g].size(); ++i) ids.push_back(Value::integer(id++));
    if (group.lists_members) out.add(below(path, "params"), Value::list(std::move(ids)));
    if (group.lists_members && records_) out.add(below(path, kMembers), names_value(group.listed));
    for (const Option& option : group.options)
      if (keeps(option.entry))
        out.add(joined(path, option.path), written_option(out, share, group, option, groups[g]));
  }
  return groups;
}

/// `tensors`: the rank's own of the group.
Value OptimizerOutput::written_option(RankWriter& out, const Share& share, const Group& group,
                                      const Option& option,
                                      const std::vector<const WrittenTensor*>& tensors) const {
  const bool own = option.path.size() == 1;
  if (own && is_key(option.path[0], kExpertFlag) && share.experts)
    return Value::boolean(*share.experts);
  const bool names = own && records_ && is_key(option.path[0], kParamNames);
  if (!names || !(option.value == names_value(group.listed))) return out.value(option.value);
  std::vector<std::string> mine;
  for (const WrittenTensor* tensor : tensors) mine.push_back(tensor->fqn);
  return names_value(mine);
}

void OptimizerOutput::write_state(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                                  const Share& share, const Numbered& groups) const {
  const Path state = below(inner(share), "state");
  std::int64_t id = -1;
  bool any = false;
  for (const auto& group : groups) {
    for (const WrittenTensor* tensor : group) {
      ++id;
      const auto parameter = by_fqn_.find(tensor->fqn);
      if (parameter == by_fqn_.end()) continue;
      for (const OptimLeaf& leaf : parameter->second->leaves) {
        if (master_of(*parameter->second) == &leaf) continue;
        const Value& value = source_.state.entries[leaf.entry].value;
        out.add(below(state, {int_key_item(id), key_item(leaf.name)}),
                leaf.tensor == kNoTensor
                    ? out.value(value)
                    : out.tensor(leaf.tensor, part_of(cut, rank, *tensor, leaf.tensor)));
        any = true;
      }
    }
  }
  if (!any && !groups.empty()) out.add(state, Value::dict({}));
}

void OptimizerOutput::write_masters(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                                    const Share& share, const Numbered& groups) const {
  const bool any = std::ranges::any_of(
      optim_->parameters, [](const OptimParameter& p) { return master_of(p) != nullptr; });
  if (!any) return;
  ValueList lists;
  for (const auto& group : groups) {
    ValueList masters;
    for (const WrittenTensor* tensor : group) {
      const auto parameter = by_fqn_.find(tensor->fqn);
      const OptimLeaf* master =
          parameter == by_fqn_.end() ? nullptr : master_of(*parameter->second);
      const bool half = is_half(source_.tensors[tensor->tensor].spec.dtype);
      if (half != (master != nullptr))
        in_tensor(tensor->fqn, [&] {
          fail(Code::kUnsupported, half ? "a 16-bit parameter without an fp32 master among others "
                                          "that have one"
                                        : "an fp32 master of a parameter that is not 16-bit");
        });
      if (master)
        masters.push_back(out.tensor(master->tensor, part_of(cut, rank, *tensor, master->tensor)));
    }
    lists.push_back(Value::list(std::move(masters)));
  }
  out.add(below(share.base, kMasters), Value::list(std::move(lists)));
}

std::optional<ArchiveFile> OptimizerOutput::buckets(const TargetCut& cut, std::int64_t rank,
                                                    const std::vector<WrittenTensor>& tensors,
                                                    const std::string& path) const {
  if (!optim_ || !distributed_) return std::nullopt;
  const BufferOutput output(source_, args_, by_fqn_);
  RankWriter out(source_);
  ValueList optimizers;
  for (const Share& share : shares(tensors))
    optimizers.push_back(output.buffers(out, cut, rank, share.tensors));
  ArchiveFile file = out.finish(path, "distrib_optim");
  file.root = optimizers.size() == 1 ? optimizers[0] : Value::list(std::move(optimizers));
  return file;
}

}  // namespace tessera::megatron_torch

#include "lib/format/fairscale_fsdp/target_optim.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <numeric>

namespace tessera::fairscale {
namespace {

class Collector {
 public:
  Collector(const Manifest& source, const Roles& roles, const std::vector<OptimState>& optimizers,
            const Target& target, const std::vector<bool>& kept, GroupedOptimizer::Steps steps)
      : source_(source),
        roles_(roles),
        optimizers_(optimizers),
        target_(target),
        kept_(kept),
        all_kept_(std::ranges::find(kept, false) == kept.end()) {
    out_.grouped = GroupedOptimizer(source, steps);
    for (const TargetParameter& parameter : target.parameters)
      out_.grouped.add_parameter(parameter.fqn, parameter.shape);
  }

  TargetOptimizer run() {
    if (roles_.optimizers.empty()) return out_;
    if (roles_.optimizers.size() > 1)
      refuse_second_optimizer(roles_.optimizers[0].name, roles_.optimizers[1].name,
                              "fairscale-fsdp");
    const OptimState& optim = optimizers_[0];
    out_.present = true;
    out_.root = optim.root;
    for (const OptimParameter& parameter : optim.parameters) add_state(parameter);
    for (const OptimGroup& group : optim.groups) add_group(group);
    find_extra();
    return std::move(out_);
  }

 private:
  std::size_t index_of(const std::string& fqn, const std::string& stored) const {
    const auto found = target_.by_fqn.find(fqn);
    if (found == target_.by_fqn.end()) refuse_unknown_parameter(stored);
    return found->second;
  }

  void add_state(const OptimParameter& parameter) {
    if (parameter.leaves.empty()) return;
    if (is_buffer(parameter)) {
      for (const OptimLeaf& leaf : parameter.leaves)
        if (kept_[leaf.entry]) out_.of_buffers.push_back({parameter.fqn, leaf.name, leaf.entry});
      return;
    }
    const std::size_t index = index_of(parameter.fqn, parameter.stored_key);
    for (const OptimLeaf& leaf : parameter.leaves) {
      if (!kept_[leaf.entry]) continue;
      const StateEntry& entry = source_.state.entries[leaf.entry];
      const bool indexed = !entry.path.empty() && entry.path.back().kind == PathItem::Kind::kIndex;
      if (leaf.name.empty() && entry.value.is_dict())
        for (const auto& [key, value] : entry.value.as_dict())
          out_.grouped.add_leaf(index, key.is_string() ? key.as_string() : "?", value);
      else if (indexed && leaf.name.find('.') != std::string::npos)
        out_.grouped.add_item(index, leaf.name.substr(0, leaf.name.rfind('.')), entry.value);
      else
        out_.grouped.add_leaf(index, leaf.name, entry.value);
    }
  }
  bool is_buffer(const OptimParameter& parameter) const {
    const bool plain = std::ranges::all_of(parameter.leaves, [](const OptimLeaf& leaf) {
      return !leaf.name.empty() && leaf.name.find('.') == std::string::npos;
    });
    return plain && std::ranges::find(target_.buffers, parameter.fqn) != target_.buffers.end();
  }

  void add_group(const OptimGroup& group) {
    OptimizerGroup made;
    for (const auto& option : group.options)
      if (keeps_option(group.index, option.first)) made.options.push_back(option);
    for (std::size_t i = 0; i < group.members.size(); ++i)
      made.members.push_back(index_of(group.members[i], group.stored_members[i]));
    out_.grouped.add_group(std::move(made));
  }
  bool keeps_option(std::int64_t group, const Value& option) const {
    if (all_kept_) return true;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.role == Role::kOptimGroup && role.group == group && option.is_string() &&
          role.leaf == option.as_string())
        return kept_[i];
    }
    return true;
  }

  /// loss_scale and the like: below the optimizer, and neither state nor groups.
  void find_extra() {
    if (out_.root.empty()) return;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const std::string& name = source_.state.entries[i].name;
      if (roles_.entries[i].role != Role::kOther || !name.starts_with(out_.root + ".")) continue;
      const std::string key = name.substr(out_.root.size() + 1);
      const bool derived = key == "param_id_map" || key.starts_with("param_id_map.") ||
                           key == "uncollected_local_ids";
      if (kept_[i]) (derived ? out_.maps : out_.extra).push_back(i);
    }
  }

  const Manifest& source_;
  const Roles& roles_;
  const std::vector<OptimState>& optimizers_;
  const Target& target_;
  const std::vector<bool>& kept_;
  bool all_kept_;
  TargetOptimizer out_;
};

}  // namespace

void refuse_lookalikes(const Manifest& source, const Target& target,
                       const TargetOptimizer& optimizer, std::int64_t world_size) {
  for (std::size_t p = 0; p < optimizer.grouped.size(); ++p)
    for (const GroupedLeaf& leaf : optimizer.grouped.state(p)) {
      if (leaf.form != GroupedLeaf::Form::kTensor) continue;
      const StoredTensor& tensor = source.tensors[leaf.tensors[0]];
      if (tensor.spec.shape.rank() != 1) continue;
      const std::int64_t numel = tensor.spec.shape.numel();
      const TargetBacking& backing = target.backings[target.backing_of(p)];
      if (numel != target.parameters[p].shape.numel() &&
          numel != layout_of(target, backing, world_size).shard_numel())
        continue;
      in_tensor(tensor.name, [&] {
        fail(Code::kUnsupported,
             fmt::format("state of {} elements and a shape of its own, as many as a shard of its "
                         "parameter or all of it have: FairScale's files do not distinguish them",
                         numel),
             "leave it out (--exclude), or write another format, as --to torch-dcp");
      });
    }
}

TargetOptimizer target_optimizer(const Manifest& source, const Roles& roles,
                                 const std::vector<OptimState>& optimizers, const Target& target,
                                 const std::vector<bool>& kept, GroupedOptimizer::Steps steps) {
  return Collector(source, roles, optimizers, target, kept, steps).run();
}

std::string unite_backings(const Target& target, TargetOptimizer& optimizer) {
  for (const TargetBacking& backing : target.backings) {
    if (!optimizer.grouped.state(backing.first).empty() &&
        optimizer.grouped.group_of(backing.first) < 0)
      return fmt::format("no group lists \"{}\"", printable(target.parameters[backing.first].fqn));
    std::vector<std::size_t> members(backing.count);
    std::iota(members.begin(), members.end(), backing.first);
    if (auto apart = optimizer.grouped.unite(members)) return std::move(apart->why);
  }
  return "";
}

}  // namespace tessera::fairscale

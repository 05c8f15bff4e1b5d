#include "lib/format/fairscale_fsdp/target_optim.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>

namespace tessera::fairscale {
namespace {

/// Numbers that optimizers keep as tensors without dims whatever their parameter's shape.
constexpr std::array<std::string_view, 4> kCounters = {"step", "mu_product", "eta", "mu"};

class Collector {
 public:
  Collector(const Manifest& source, const Roles& roles, const std::vector<OptimState>& optimizers,
            const Target& target, const std::vector<bool>& kept)
      : source_(source),
        roles_(roles),
        optimizers_(optimizers),
        target_(target),
        kept_(kept),
        all_kept_(std::ranges::find(kept, false) == kept.end()) {}

  TargetOptimizer run() {
    if (roles_.optimizers.empty()) return out_;
    if (roles_.optimizers.size() > 1)
      fail(Code::kUnsupported,
           fmt::format("there are {} optimizers (\"{}\", \"{}\"); fairscale-fsdp holds one",
                       roles_.optimizers.size(), printable(roles_.optimizers[0].name),
                       printable(roles_.optimizers[1].name)),
           "leave one out with --exclude");
    const OptimState& optim = optimizers_[0];
    out_.present = true;
    out_.root = optim.root;
    out_.state.resize(target_.parameters.size());
    out_.group.assign(target_.parameters.size(), -1);
    for (const OptimParameter& parameter : optim.parameters) add_state(parameter);
    for (const OptimGroup& group : optim.groups) add_group(group);
    find_extra();
    return std::move(out_);
  }

 private:
  std::size_t index_of(const std::string& fqn, const std::string& stored) const {
    const auto found = target_.by_fqn.find(fqn);
    if (found == target_.by_fqn.end())
      fail(Code::kUnsupported,
           fmt::format("the optimizer keeps \"{}\", which no parameter of the model is called",
                       printable(stored)),
           "take the model along, or leave the optimizer out with --only model");
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
          add_leaf(index, key.is_string() ? key.as_string() : "?", value);
      else if (indexed && leaf.name.find('.') != std::string::npos)
        add_item(index, leaf.name.substr(0, leaf.name.rfind('.')), entry.value);
      else
        add_leaf(index, leaf.name, entry.value);
    }
  }
  bool is_buffer(const OptimParameter& parameter) const {
    const bool plain = std::ranges::all_of(parameter.leaves, [](const OptimLeaf& leaf) {
      return !leaf.name.empty() && leaf.name.find('.') == std::string::npos;
    });
    return plain && std::ranges::find(target_.buffers, parameter.fqn) != target_.buffers.end();
  }
  void add_leaf(std::size_t parameter, const std::string& name, const Value& value) {
    TargetLeaf leaf{.name = name, .form = TargetLeaf::Form::kValue, .tensors = {}, .value = value};
    if (value.is_tensor()) {
      leaf.tensors = {value.tensor_index()};
      leaf.form = form_of(parameter, name, value.tensor_index());
    } else if (value.kind() == Value::Kind::kList && !value.as_list().empty() &&
               std::ranges::all_of(value.as_list(), &Value::is_tensor)) {
      leaf.form = TargetLeaf::Form::kList;
      for (const Value& item : value.as_list()) leaf.tensors.push_back(item.tensor_index());
    }
    out_.state[parameter].push_back(std::move(leaf));
  }
  /// A list that was flattened: its items follow each other.
  void add_item(std::size_t parameter, const std::string& name, const Value& value) {
    auto& leaves = out_.state[parameter];
    auto known = std::ranges::find(leaves, name, &TargetLeaf::name);
    if (!value.is_tensor())
      fail(Code::kUnsupported, fmt::format("optimizer state \"{}\" is a list of tensors and other "
                                           "values",
                                           printable(name)));
    if (known == leaves.end()) {
      leaves.push_back({name, TargetLeaf::Form::kList, {}, {}});
      known = leaves.end() - 1;
    }
    known->tensors.push_back(value.tensor_index());
  }
  TargetLeaf::Form form_of(std::size_t parameter, const std::string& name,
                           std::uint32_t tensor) const {
    const Shape& shape = source_.tensors[tensor].spec.shape;
    const bool counter = std::ranges::find(kCounters, name) != kCounters.end();
    if (shape == target_.parameters[parameter].shape && !(shape.rank() == 0 && counter))
      return TargetLeaf::Form::kSharded;
    return shape.rank() == 0 ? TargetLeaf::Form::kScalar : TargetLeaf::Form::kTensor;
  }

  void add_group(const OptimGroup& group) {
    TargetGroup& made = out_.groups.emplace_back();
    for (const auto& option : group.options)
      if (keeps_option(group.index, option.first)) made.options.push_back(option);
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      const std::size_t index = index_of(group.members[i], group.stored_members[i]);
      made.members.push_back(index);
      out_.group[index] = static_cast<std::int64_t>(out_.groups.size()) - 1;
    }
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

/// The same bytes by where they lie.
bool same_tensor(const Manifest& source, std::uint32_t a, std::uint32_t b) {
  if (a == b) return true;
  const StoredTensor &left = source.tensors[a], &right = source.tensors[b];
  if (left.spec != right.spec || left.chunk_count != 1 || right.chunk_count != 1) return false;
  const Source &from = source.source(left, 0), &other = source.source(right, 0);
  return from.kind == other.kind && from.flags == other.flags && from.file == other.file &&
         from.offset == other.offset && from.length == other.length && from.side == other.side;
}

std::string difference(const Manifest& source, const std::vector<TargetLeaf>& a,
                       const std::vector<TargetLeaf>& b) {
  if (a.size() != b.size()) return "they have other state";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || a[i].form != b[i].form) return "they have other state";
    const std::string name = printable(a[i].name);
    if (a[i].form == TargetLeaf::Form::kSharded) {
      if (source.tensors[a[i].tensors[0]].spec.dtype != source.tensors[b[i].tensors[0]].spec.dtype)
        return fmt::format("\"{}\" has two dtypes", name);
      continue;
    }
    const bool same = std::ranges::equal(a[i].tensors, b[i].tensors,
                                         [&](auto x, auto y) { return same_tensor(source, x, y); });
    if (!same || (a[i].form == TargetLeaf::Form::kValue && !(a[i].value == b[i].value)))
      return fmt::format("\"{}\" differs", name);
  }
  return "";
}

}  // namespace

void refuse_lookalikes(const Manifest& source, const Target& target,
                       const TargetOptimizer& optimizer, std::int64_t world_size) {
  for (std::size_t p = 0; p < optimizer.state.size(); ++p) {
    const FlatLayout layout = layout_of(target, target.backings[target.backing_of(p)], world_size);
    for (const TargetLeaf& leaf : optimizer.state[p]) {
      if (leaf.form != TargetLeaf::Form::kTensor) continue;
      const StoredTensor& tensor = source.tensors[leaf.tensors[0]];
      const std::int64_t numel = tensor.spec.shape.numel();
      const bool alike =
          numel == target.parameters[p].shape.numel() || numel == layout.shard_numel();
      if (tensor.spec.shape.rank() != 1 || !alike) continue;
      in_tensor(tensor.name, [&] {
        fail(Code::kUnsupported,
             fmt::format("state of {} elements and a shape of its own, as many as a shard of its "
                         "parameter or all of it have: FairScale's files cannot tell them apart",
                         numel),
             "leave it out (--exclude), or write another format, as --to torch-dcp");
      });
    }
  }
}

TargetOptimizer target_optimizer(const Manifest& source, const Roles& roles,
                                 const std::vector<OptimState>& optimizers, const Target& target,
                                 const std::vector<bool>& kept) {
  return Collector(source, roles, optimizers, target, kept).run();
}

bool fits_backings(const Manifest& source, const Target& target, const TargetOptimizer& optimizer,
                   std::string& why_not) {
  for (const TargetBacking& backing : target.backings) {
    const auto& first = optimizer.state[backing.first];
    if (!first.empty() && optimizer.group[backing.first] < 0)
      why_not =
          fmt::format("no group lists \"{}\"", printable(target.parameters[backing.first].fqn));
    for (std::size_t i = 1; i < backing.count && why_not.empty(); ++i) {
      const std::size_t other = backing.first + i;
      std::string what = difference(source, first, optimizer.state[other]);
      if (what.empty() && optimizer.group[backing.first] != optimizer.group[other])
        what = "they are in two groups";
      if (!what.empty())
        why_not = fmt::format("\"{}\" and \"{}\" share a flat parameter, and {}",
                              printable(target.parameters[backing.first].fqn),
                              printable(target.parameters[other].fqn), what);
    }
    if (!why_not.empty()) return false;
  }
  return true;
}

}  // namespace tessera::fairscale

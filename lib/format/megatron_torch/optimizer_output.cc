#include "lib/format/megatron_torch/optimizer_output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "lib/format/megatron_torch/bucket_layout.h"
#include "lib/format/megatron_torch/buckets.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/optimizer_merge.h"

namespace tessera::megatron_torch {
namespace {

bool starts_with(const Path& path, const Path& prefix) {
  return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

}  // namespace

OptimizerOutput::OptimizerOutput(const Manifest& source, const Args& args, bool shares)
    : source_(source), args_(args), shares_(shares), owned_(source.state.entries.size()) {
  find();
}

void OptimizerOutput::find() {
  const Roles roles = find_roles(source_.state);
  for (OptimState& optim : canonical_optim_states(source_, roles)) {
    const bool ours = optim.root == "optimizer" || optim.root == "optimizer.optimizer";
    if (!ours || optim.dialect != OptimDialect::kByFqn || optim_) {
      if (!shares_) continue;  // one rank: copied as it stands
      fail(Code::kUnsupported,
           fmt::format("optimizer \"{}\" ({}) over several ranks: only state keyed by parameter "
                       "names under \"optimizer\" can be shared",
                       optim.root, dialect_name(optim.dialect)),
           "leave it out (--only model), or --rename it");
    }
    optim_ = std::move(optim);
  }
  if (!optim_) return;
  base_ = {key_item(kOptimizer)};
  if (optim_->root != kOptimizer) base_.push_back(key_item(kOptimizer));
  for (const OptimParameter& parameter : optim_->parameters) {
    by_fqn_.emplace(parameter.fqn, &parameter);
    for (const OptimLeaf& leaf : parameter.leaves) owned_[leaf.entry] = true;
  }
  own_groups();
  const bool has_state = std::ranges::any_of(
      optim_->parameters, [](const OptimParameter& p) { return !p.leaves.empty(); });
  distributed_ = has_state && std::ranges::none_of(groups_, &Group::lists_members);
}

/// Member lists become ids; the other options are copied by whoever copies the rest.
void OptimizerOutput::own_groups() {
  const Path root = below(base_, "param_groups");
  for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
    const StateEntry& entry = source_.state.entries[i];
    if (!starts_with(entry.path, root) || entry.path.size() < root.size() + 2) continue;
    const Path path(entry.path.begin(), entry.path.begin() + static_cast<long>(root.size()) + 1);
    if (groups_.empty() || groups_.back().path != path) groups_.push_back({path, false, {}});
    if (entry.path.size() != path.size() + 1 || !is_key(entry.path.back(), "params")) continue;
    if (entry.value.kind() != Value::Kind::kList) continue;
    groups_.back().lists_members = true;
    for (const Value& member : entry.value.as_list())
      if (member.is_string()) groups_.back().members.push_back(member.as_string());
    owned_[i] = true;
  }
}

RankPart OptimizerOutput::part_of(const TargetCut& cut, std::int64_t tp_rank,
                                  const WrittenTensor& of, std::uint32_t tensor) const {
  const Shape& shape = source_.tensors[tensor].spec.shape;
  if (shape == source_.tensors[of.tensor].spec.shape) return cut.part(tensor, of.fqn, tp_rank);
  if (shape.rank() == 0 || cut.tp() == 1) return cut.whole(tensor);
  return in_tensor(source_.tensors[tensor].name, [&]() -> RankPart {
    fail(Code::kUnsupported,
         "state of another shape than its parameter's, over tensor-parallel ranks");
  });
}

void OptimizerOutput::write(RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
                            const std::vector<WrittenTensor>& tensors) const {
  if (!optim_ || distributed_) return;
  std::vector<std::vector<const WrittenTensor*>> groups;
  std::int64_t id = 0;
  std::vector<std::pair<std::int64_t, const WrittenTensor*>> numbered;
  for (const Group& group : groups_) {
    const std::set<std::string_view> members(group.members.begin(), group.members.end());
    groups.emplace_back();
    ValueList ids;
    for (const WrittenTensor& tensor : tensors) {
      if (!members.contains(tensor.fqn)) continue;
      groups.back().push_back(&tensor);
      numbered.emplace_back(id, &tensor);
      ids.push_back(Value::integer(id++));
    }
    if (group.lists_members) out.add(below(group.path, {key_item("params")}), Value::list(ids));
  }
  bool any = false;
  for (const auto& [number, tensor] : numbered) {
    const auto parameter = by_fqn_.find(tensor->fqn);
    if (parameter == by_fqn_.end()) continue;
    for (const OptimLeaf& leaf : parameter->second->leaves) {
      if (leaf.name == kMasterLeaf) continue;
      const Path path =
          below(base_, {key_item("state"), int_key_item(number), key_item(leaf.name)});
      const Value& value = source_.state.entries[leaf.entry].value;
      out.add(path, leaf.tensor == kNoTensor
                        ? out.value(value)
                        : out.tensor(leaf.tensor, part_of(cut, tp_rank, *tensor, leaf.tensor)));
      any = true;
    }
  }
  if (!any && !groups_.empty()) out.add(below(base_, "state"), Value::dict({}));
  write_masters(out, cut, tp_rank, groups);
}

void OptimizerOutput::write_masters(
    RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
    const std::vector<std::vector<const WrittenTensor*>>& groups) const {
  const bool any = std::ranges::any_of(
      optim_->parameters, [](const OptimParameter& p) { return p.find(kMasterLeaf) != nullptr; });
  if (!any) return;
  ValueList lists;
  for (const auto& group : groups) {
    ValueList masters;
    for (const WrittenTensor* tensor : group) {
      const auto parameter = by_fqn_.find(tensor->fqn);
      const OptimLeaf* master =
          parameter == by_fqn_.end() ? nullptr : parameter->second->find(kMasterLeaf);
      const bool half = is_half(source_.tensors[tensor->tensor].spec.dtype);
      if (half != (master != nullptr && master->tensor != kNoTensor))
        in_tensor(tensor->fqn, [&] {
          fail(Code::kUnsupported, half ? "a 16-bit parameter without an fp32 master among others "
                                          "that have one"
                                        : "an fp32 master of a parameter that is not 16-bit");
        });
      if (master)
        masters.push_back(
            out.tensor(master->tensor, part_of(cut, tp_rank, *tensor, master->tensor)));
    }
    lists.push_back(Value::list(std::move(masters)));
  }
  out.add({key_item(kOptimizer), key_item(kMasters)}, Value::list(std::move(lists)));
}

Value OptimizerOutput::buffer_set(RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
                                  const std::vector<WrittenTensor>& tensors) const {
  std::vector<const OptimParameter*> owners;
  std::vector<RankPart> shapes;
  std::vector<BucketParam> params;
  for (const WrittenTensor& tensor : tensors) {
    const OptimParameter& owner = *by_fqn_.at(tensor.fqn);
    owners.push_back(&owner);
    params.push_back(
        {cut.part(tensor.tensor, tensor.fqn, tp_rank).shape.numel(), tensor.shared_embedding});
  }
  const BucketLayout layout = bucket_layout(params, bucket_sizes(args_, 1)[0], true);
  ValueDict dict;
  for (const auto& [key, leaf] : kBuffers) {
    RankPart buffer{Shape{layout.numel_unpadded}, {}};
    std::int64_t at = 0;
    const auto pad_to = [&](std::int64_t begin) {
      if (begin == at) return;
      StoragePiece zeros;
      zeros.zero_bytes = static_cast<std::uint64_t>(begin - at) * sizeof(float);
      buffer.pieces.push_back(zeros);
      at = begin;
    };
    std::uint32_t any = 0;
    for (std::size_t i = tensors.size(); i-- > 0;) {
      const OptimLeaf* found = owners[i]->find(leaf);
      const bool fits =
          found && found->tensor != kNoTensor &&
          source_.tensors[found->tensor].spec ==
              TensorSpec{DType::kFloat32, source_.tensors[tensors[i].tensor].spec.shape};
      if (!fits)
        in_tensor(tensors[i].fqn, [&] {
          fail(Code::kUnsupported,
               fmt::format("the distributed optimizer keeps {} of every parameter as float32 of "
                           "its shape",
                           leaf));
        });
      any = found->tensor;
      pad_to(layout.begin[i]);
      RankPart part = cut.part(found->tensor, tensors[i].fqn, tp_rank);
      at += part.shape.numel();
      std::ranges::move(part.pieces, std::back_inserter(buffer.pieces));
    }
    pad_to(layout.numel_unpadded);
    dict.emplace_back(Value::string(std::string(key)), out.tensor(any, std::move(buffer)));
  }
  dict.emplace_back(Value::string("numel_unpadded"), Value::integer(layout.numel_unpadded));
  return Value::dict(std::move(dict));
}

std::optional<ArchiveFile> OptimizerOutput::buckets(const TargetCut& cut, std::int64_t tp_rank,
                                                    const std::vector<WrittenTensor>& tensors,
                                                    const std::string& path) const {
  if (!optim_ || !distributed_) return std::nullopt;
  std::vector<WrittenTensor> sets[2];  // dense parameters, experts
  for (const WrittenTensor& tensor : tensors) {
    const auto owner = by_fqn_.find(tensor.fqn);
    if (owner == by_fqn_.end() || owner->second->leaves.empty()) continue;
    sets[is_expert(tensor.fqn)].push_back(tensor);
  }
  RankWriter out(source_, cut);
  const bool in_fp32 = args_.boolean("accumulate_allreduce_grads_in_fp32").value_or(true);
  ValueList optimizers;
  for (const auto& set : sets) {
    if (set.empty()) continue;
    const DType dtype = source_.tensors[set[0].tensor].spec.dtype;
    for (const WrittenTensor& tensor : set)
      if (source_.tensors[tensor.tensor].spec.dtype != dtype)
        in_tensor(tensor.fqn, [&] {
          fail(Code::kUnsupported, "parameters of several types in the distributed optimizer");
        });
    const Value key =
        Value::list({Value::dtype(dtype), Value::dtype(in_fp32 ? DType::kFloat32 : dtype)},
                    Value::Kind::kTuple);
    optimizers.push_back(Value::dict(
        {{Value::string("buckets_coalesced"), Value::boolean(true)},
         {Value::integer(0), Value::dict({{key, buffer_set(out, cut, tp_rank, set)}})}}));
  }
  ArchiveFile file = out.finish(path, "distrib_optim");
  file.root = optimizers.size() == 1 ? optimizers[0] : Value::list(std::move(optimizers));
  return file;
}

}  // namespace tessera::megatron_torch

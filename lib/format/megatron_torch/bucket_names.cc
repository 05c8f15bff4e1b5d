#include "lib/format/megatron_torch/bucket_names.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <charconv>
#include <vector>

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kSpace = "optimizer.distributed.dp_group_idx_";

/// Objects of model-parallel groups, as Megatron's own gather leaves them.
std::vector<std::string_view> gathered_objects(const Manifest& manifest) {
  constexpr std::string_view kGathered = ".param_state/shard_";
  std::vector<std::string_view> found;
  for (const StateEntry& entry : manifest.state.entries)
    if (entry.name.find(kSpace) != entry.name.npos && entry.name.find(kGathered) != entry.name.npos)
      found.push_back(entry.name);
  return found;
}

std::optional<std::int64_t> number_between(std::string_view text, std::size_t begin,
                                           std::size_t end) {
  std::int64_t value = 0;
  const auto [last, error] = std::from_chars(text.data() + begin, text.data() + end, value);
  return error == std::errc() && last == text.data() + end && value >= 0 ? std::optional(value)
                                                                         : std::nullopt;
}

}  // namespace

std::optional<BucketName> parse_bucket_name(std::string_view name) {
  constexpr std::string_view kBuffer = ".gbuf_idx_", kDtype = ".dtype_", kBucket = ".bucket_idx_";
  const std::size_t buffer = name.find(kBuffer), dtype = name.find(kDtype),
                    bucket = name.rfind(kBucket), dot = name.rfind('.');
  if (!is_bucket(name) || buffer == name.npos || dtype == name.npos || bucket == name.npos ||
      buffer > dtype || dtype + kDtype.size() > bucket || dot < bucket + kBucket.size())
    return std::nullopt;
  const auto g = number_between(name, buffer + kBuffer.size(), dtype);
  const auto b = number_between(name, bucket + kBucket.size(), dot);
  if (!g || !b) return std::nullopt;
  const std::size_t group = name.find(kSpace) + kSpace.size();
  const auto i = group <= buffer ? number_between(name, group, buffer) : std::nullopt;
  if (!i) return std::nullopt;
  BucketName out{std::string(name.substr(0, buffer)), *i, *g, *b, {},
                 std::string(name.substr(dot + 1))};
  std::string_view types = name.substr(dtype + kDtype.size(), bucket - dtype - kDtype.size());
  if (types.starts_with('(')) types.remove_prefix(1);
  types = types.substr(0, types.find_first_of(",)"));
  if (types.starts_with("torch.")) types.remove_prefix(6);
  out.dtype = types;
  return out;
}

bool is_bucket(std::string_view tensor) {
  return tensor.find(kSpace) != tensor.npos && tensor.find(".bucket_idx_") != tensor.npos;
}

std::set<std::string> bucket_groups(const Manifest& manifest) {
  std::set<std::string> groups;
  for (const StoredTensor& tensor : manifest.tensors)
    if (const auto name = parse_bucket_name(tensor.name); name && !tensor.embedded)
      groups.insert(name->group.substr(name->group.find(kSpace)));
  return groups;
}

void check_undecoded(const Manifest& manifest, const std::optional<TargetRanks>& target) {
  const auto objects = gathered_objects(manifest);
  const std::size_t groups = bucket_groups(manifest).size();
  const auto kept = [&](std::size_t parts) {
    return parts == 0 || (target && target->same_sizes &&
                          target->tp * target->pp == static_cast<std::int64_t>(parts));
  };
  if (kept(objects.size()) && kept(groups)) return;
  const std::string state =
      kept(groups) ? fmt::format(
                         "the optimizer's state is {} objects, one of each model-parallel group "
                         "(\"{}\", ...; param_state_sharding_type dp_zero_gather_scatter)",
                         objects.size(), printable(objects[0]))
                   : fmt::format("optimizer buckets of {} model-parallel groups", groups);
  const std::string sizes =
      target ? fmt::format(", for tp={}, pp={}", target->tp, target->pp) : std::string();
  fail(Code::kUnsupported,
       fmt::format("{}{}: which parameter lies where in them (the model's param_index_map) is not "
                   "stored",
                   state, sizes),
       "load it with Megatron-LM at its own tensor- and pipeline-parallel sizes and save it with "
       "--dist-ckpt-optim-fully-reshardable, or leave it out: --exclude "
       "'*optimizer.distributed.*'");
}

}  // namespace tessera::megatron_torch

#include "lib/format/megatron_torch/packed_experts.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kFirst = "experts.weight1";
constexpr std::string_view kSecond = "experts.weight2";

bool is_named(std::string_view fqn, std::string_view end) {
  return fqn.ends_with(end) &&
         (fqn.size() == end.size() || fqn[fqn.size() - end.size() - 1] == '.');
}

/// "decoder.layers.0.mlp." of "decoder.layers.0.mlp.experts.weight1".
std::string owner_of(const std::string& name) {
  return name.substr(0, name.size() - kFirst.size());
}

/// Experts of the layer, of all ranks: by the router's rows, by args, or by both, which must agree.
std::optional<std::int64_t> count_of(const std::string& name, const ShapeOf& shape_of,
                                     const Args& args) {
  std::optional<std::int64_t> stated;
  for (const std::string_view key : {"num_experts", "num_moe_experts"})
    if (const auto said = args.integer(key); !stated && said && *said > 0) stated = said;
  const auto router = shape_of(owner_of(name) + "router.weight");
  if (!router || router->rank() != 2 || (*router)[0] == 0) return stated;
  if (stated && *stated != (*router)[0])
    fail(Code::kCorrupt, fmt::format("the router's weight has {} rows, but args say {} experts",
                                     (*router)[0], *stated));
  return (*router)[0];
}

[[noreturn]] void fail_shape(const Shape& stored, std::int64_t experts) {
  fail(Code::kCorrupt, fmt::format("a matrix {} does not hold {} experts packed end to end",
                                   stored.to_string(), experts));
}

}  // namespace

bool is_packed(std::string_view fqn) { return is_named(fqn, kFirst) || is_named(fqn, kSecond); }

std::optional<Shape> packed_view(const std::string& name, const ShapeOf& shape_of, const Args& args,
                                 std::int64_t expert_ranks) {
  const auto stored = shape_of(name);
  const auto all = count_of(name, shape_of, args);
  if (!stored || !all || stored->rank() != 2) return std::nullopt;
  if (*all % expert_ranks != 0)
    fail(Code::kCorrupt,
         fmt::format("{} experts, over {} expert-parallel ranks", *all, expert_ranks));
  const std::int64_t experts = *all / expert_ranks;
  const bool first = is_named(name, kFirst);
  const std::int64_t packed = (*stored)[first ? 1 : 0], hidden = (*stored)[first ? 0 : 1];
  if (packed % experts != 0) fail_shape(*stored, experts);
  const std::int64_t each = packed / experts;
  if (!first) return Shape{experts, each, hidden};
  const auto second = shape_of(owner_of(name) + std::string(kSecond));
  if (!second || second->rank() != 2) {
    if (!args.gated().value_or(false)) return Shape{experts, hidden, each};
    if (each % 2 != 0) fail_shape(*stored, experts);
    return Shape{experts, hidden, 2, each / 2};
  }
  // Its sizes say whether the first matrix is a pair.
  if ((*second)[1] != hidden || (*second)[0] % experts != 0)
    in_tensor(owner_of(name) + std::string(kSecond), [&] { fail_shape(*second, experts); });
  const std::int64_t inner = (*second)[0] / experts;
  if (each == inner) return Shape{experts, hidden, each};
  if (each / 2 != inner || each % 2 != 0) fail_shape(*stored, experts);
  return Shape{experts, hidden, 2, inner};
}

int packed_tp_dim(std::string_view fqn, int rank) {
  return is_named(fqn, kFirst) ? rank - 1 : rank - 2;
}

Shape packed_matrix(std::string_view fqn, const Shape& part) {
  if (part.rank() < 3) return part;
  if (!is_named(fqn, kFirst)) return Shape{part[0] * part[1], part[2]};
  return Shape{part[1], part.rank() == 4 ? part[0] * part[2] * part[3] : part[0] * part[2]};
}

void fail_packed_name() {
  fail(Code::kUnsupported,
       "experts packed in one tensor under a name that is not Megatron's (experts.weight1, "
       "experts.weight2): which part belongs to which expert is not stored",
       "Megatron-LM splits them: convert there with --ckpt-convert-format torch_dist "
       "--ckpt-convert-save DIR, and use that");
}

void fail_packed() {
  fail(Code::kUnsupported,
       "experts packed in one tensor, over several ranks: how many there are is not stored (no "
       "router.weight lies beside it, and args have no num_experts)",
       "Megatron-LM splits them: convert there with --ckpt-convert-format torch_dist "
       "--ckpt-convert-save DIR, and use that");
}

}  // namespace tessera::megatron_torch

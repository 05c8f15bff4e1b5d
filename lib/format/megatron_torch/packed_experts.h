#pragma once
// Experts packed in one matrix (GroupedMLP): `experts.weight1` and `experts.weight2`. What a rank
// stores as a matrix is, in memory, one matrix behind the other:
//
//   weight1  [hidden, experts * ffn]        is  [experts, hidden, ffn]
//            [hidden, experts * 2 * ffn]    is  [experts, hidden, 2, ffn]     gate, up: gated
//   weight2  [experts * ffn, hidden]        is  [experts, ffn, hidden]
//
// In that shape tensor parallelism cuts ffn, and expert parallelism the experts, in plain parts; so
// it is the shape of the whole. How many experts a rank has follows from the router beside them,
// which has a row for each expert of the layer, or from args. Source: megatron/core/transformer/
// moe/experts.py (cores 0.5 to 0.16). Pure.
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lib/format/megatron_torch/args.h"

namespace tessera::megatron_torch {

/// "...experts.weight1" or "...experts.weight2": experts packed in one matrix.
bool is_packed(std::string_view fqn);

/// What looks up the stored shape of a rank's tensor by its name in the rank's own model.
using ShapeOf = std::function<std::optional<Shape>(const std::string&)>;

/// The shape as which the rank's matrix `name` is to be seen; nullopt: the number of experts is
/// unknown. Throws kCorrupt where the matrix is none of that many experts.
std::optional<Shape> packed_view(const std::string& name, const ShapeOf& shape_of, const Args& args,
                                 std::int64_t expert_ranks);

/// The dim of ffn in the shape above: the one that tensor parallelism cuts.
int packed_tp_dim(std::string_view fqn, int rank);

/// The matrix that a rank stores of what it holds of the whole.
Shape packed_matrix(std::string_view fqn, const Shape& part);

/// Throws kUnsupported: what is missing to take packed experts apart.
[[noreturn]] void fail_packed();
/// ... of a tensor of experts that is none of GroupedMLP's.
[[noreturn]] void fail_packed_name();

}  // namespace tessera::megatron_torch

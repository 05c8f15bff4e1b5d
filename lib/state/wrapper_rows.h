#pragma once
// Tensors of several parts (tensor_wrapper.h) that are cut, and joined, by rows: optimizer state in
// blocks over a weight's elements in order, as torchao holds it.
//
//   OptimState8bit   codes: a byte for each element; scale: one for each block; qmap: a table
//   OptimState4bit   codes: a byte for two elements, one dim; the rest alike
//   OptimStateFp8    codes: float8; scale: one for each block
//
// Rows of such a tensor are the rows of each part in the same proportion, and all of a table. A cut
// through a block has no such rows, and nobody can make it. Source: slice and all_gather of
// torchao's classes, which load and gather so.
#include <tessera/layout/layout.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// Type and shape of a tensor in a value.
using SpecOf = std::function<TensorSpec(std::uint32_t tensor)>;

struct RowPart {
  std::string name;
  std::uint32_t tensor = 0;
  TensorSpec spec;
  bool is_table = false;  // the same for all rows

  /// Its rows for these of `whole`; nullopt: a block would be cut. A table: all of them.
  std::optional<RowRange> rows(const Shape& whole, RowRange of) const;
};

struct RowWrapper {
  TensorSpec spec;  // as it looks to those who use it
  std::vector<RowPart> parts;

  bool can_cut(RowRange rows) const;
};

/// nullopt: an object of another class, or one whose parts do not fit each other.
std::optional<RowWrapper> row_wrapper(const Value& value, const SpecOf& spec_of);

/// The object as one of `rows` rows, its tensors numbered anew: tensor i is new_index[i].
Value with_rows(const Value& value, std::int64_t rows, const std::vector<std::uint32_t>& new_index);

/// kUnsupported: no part of `value`, the entry `name`, can be these rows. `is_run`: they are whole
/// rows, one behind the other, but cut a block.
[[noreturn]] void refuse_rows(std::string_view name, const Value& value, bool is_run,
                              RowRange rows);

/// Rows of the whole, as one of its owners holds them.
struct WrapperShard {
  RowRange rows;
  Value value;
  SpecOf spec_of;
};

struct JoinedWrapper {
  struct Piece {
    std::size_t shard = 0;
    std::uint32_t tensor = 0;    // in that shard
    std::int64_t first_row = 0;  // of the part, where it begins
  };
  struct Part {
    TensorSpec spec;
    std::vector<Piece> pieces;  // in order; of a table: the first shard's
  };
  Value value;  // its tensor i is parts[i]
  std::vector<Part> parts;
};

/// The whole of `spec` from shards in the order of their rows. `same_table`: whether this tensor of
/// that shard is equal to the first one's. nullopt: they are none of one kind, or do not cover it.
std::optional<JoinedWrapper> join_rows(
    std::span<const WrapperShard> shards, const TensorSpec& spec,
    const std::function<bool(std::size_t shard, std::uint32_t tensor, std::uint32_t first)>&
        same_table);

}  // namespace tessera

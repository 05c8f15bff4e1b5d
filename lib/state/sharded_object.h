#pragma once
// ShardedObject: a value of one place in a grid, kept whole under the name
// "<key>/shard_<place>_<grid>", numbers joined by dots: "rng_state/shard_0.1_2.2" is place (0, 1)
// of a grid of 2 x 2. No other grid's load asks for that name. What dist_checkpointing calls
// unique_key (mapping.py of megatron.core).
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

struct ShardedObject {
  std::string_view key;  // "rng_state"; a view of the parsed name
  std::vector<std::int64_t> place;
  std::vector<std::int64_t> grid;  // a last size of 0: unknown, as old cores wrote it

  std::int64_t number() const;  // row-major
  std::int64_t places() const;
  /// Each place is that of a rank. False for one object for all, and for a module's _extra_state,
  /// whose grid counts layers and experts.
  bool of_ranks() const;
};

/// nullopt: another name, or numbers that are no place of a grid.
std::optional<ShardedObject> parse_sharded_object(std::string_view name);

}  // namespace tessera

#pragma once
// Placement: what one mesh dimension does to a tensor. PyTorch's words.
//
//   Shard(d)            dim d split by torch.chunk's rule: ceil(n / size) rows each, the last ones
//                       shorter or empty
//   StridedShard(d, f)  dim d as if a later mesh dim (f ways in total) had been applied first
//                       (FSDP2 x TP)
//   Replicate           every coordinate holds all of it
//   Flat                the row-major ravel of what is left, split by ceil(numel / size)
//   Partial             an unreduced sum; exists in memory, never in a file
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct Placement {
  enum class Kind : std::uint8_t { kReplicate, kShard, kStridedShard, kFlat, kPartial };
  Kind kind = Kind::kReplicate;
  int dim = 0;                    // kShard, kStridedShard
  std::int64_t split_factor = 1;  // kStridedShard

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::kShard, dim, 1}; }
  static Placement strided_shard(int dim, std::int64_t factor) {
    return {Kind::kStridedShard, dim, factor};
  }
  static Placement flat() { return {Kind::kFlat, 0, 1}; }
  /// "replicate", "shard(0)", "strided(0,2)", "flat"; a list is comma separated at top level.
  static Placement parse(std::string_view text);
  static std::vector<Placement> parse_list(std::string_view text);
  std::string to_string() const;
  bool operator==(const Placement&) const = default;
};

}  // namespace tessera

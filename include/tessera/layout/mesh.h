#pragma once
// Mesh: named dimensions over ranks, row-major (the last dimension varies fastest). Pure data.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct MeshDim {
  std::string name;       // "dp", "tp", "replicate", "shard", ...
  std::int64_t size = 1;  // >= 1
  bool operator==(const MeshDim&) const = default;
};

class Mesh {
 public:
  Mesh() = default;  // rank 0 mesh: one process
  /// Throws kInvalidArgument for a size below 1, a duplicate name, or overflow.
  explicit Mesh(std::vector<MeshDim> dims);
  /// "dp=2,tp=4". Throws kInvalidArgument.
  static Mesh parse(std::string_view text);
  static Mesh one_dim(std::int64_t world_size, std::string name = "dp");

  const std::vector<MeshDim>& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  std::int64_t world_size() const;
  /// Coordinate of a global rank, one number per mesh dim.
  std::vector<std::int64_t> coordinate(std::int64_t global_rank) const;
  std::int64_t rank_of(const std::vector<std::int64_t>& coordinate) const;
  std::string to_string() const;  // "dp=2,tp=4"
  bool operator==(const Mesh&) const = default;

 private:
  std::vector<MeshDim> dims_;
};

}  // namespace tessera

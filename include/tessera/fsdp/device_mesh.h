#pragma once
// DeviceMesh: a tessera::Mesh over the ranks of a World, with a communicator per mesh dim. A
// handle: copies share the same mesh, so one object serves every unit, and its groups are made
// once.
//
//   fsdp::DeviceMesh mesh(world, {2, 4}, {"replicate", "shard"});
//
// Dims are row-major over `ranks` (default: all ranks of the world in order). Making the mesh talks
// to nobody; a dim's communicator is made on first use, collective over its members alone.
#include <tessera/layout/mesh.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fsdp {

class Communicator;
class World;

class DeviceMesh {
 public:
  /// Throws kInvalidArgument: sizes whose product is not the number of ranks, a name twice,
  /// names and sizes of different counts, ranks that do not ascend or lie outside the world, this
  /// rank not among them.
  DeviceMesh(const World& world, std::vector<std::int64_t> sizes, std::vector<std::string> names);
  DeviceMesh(const World& world, std::vector<std::int64_t> sizes, std::vector<std::string> names,
             std::vector<int> ranks);

  const Mesh& mesh() const;
  int ndim() const { return mesh().rank(); }
  std::int64_t size(int dim) const;
  /// This rank's coordinate on `dim`.
  std::int64_t coordinate(int dim) const;
  /// -1: no such name.
  int find_dim(std::string_view name) const;
  /// Global ranks, row-major.
  const std::vector<int>& ranks() const;

  /// The global ranks that differ from this one only in `dim`, itself among them, ascending.
  std::vector<int> ranks_along(int dim) const;
  /// The communicator of ranks_along(dim).
  std::shared_ptr<Communicator> group(int dim) const;
  /// The 1-D mesh of `dim` that holds this rank; remembers its parent. Not validated again.
  DeviceMesh sub(int dim) const;
  /// The mesh of several ascending dims, as (replicate, shard) beside a tensor dim.
  DeviceMesh sub(const std::vector<int>& dims) const;
  bool has_parent() const;
  /// The mesh it was taken from, and as which dim (of several: the first). Only with has_parent().
  DeviceMesh parent() const;
  int parent_dim() const;

  const World& world() const;
  /// Same handle, not just equal sizes.
  bool same(const DeviceMesh& other) const { return impl_ == other.impl_; }

 private:
  friend class World;
  struct Impl;
  explicit DeviceMesh(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tessera::fsdp

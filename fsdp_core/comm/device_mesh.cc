#include <fmt/format.h>
#include <tessera/fsdp/device_mesh.h>
#include <tessera/fsdp/world.h>

#include <algorithm>
#include <numeric>

#include "fsdp_core/comm/world_impl.h"

namespace tessera::fsdp {

struct DeviceMesh::Impl {
  World world;
  Mesh mesh;
  std::vector<int> ranks;
  std::vector<std::int64_t> coordinate;
  std::shared_ptr<const Impl> parent;
  int parent_dim = -1;
};

namespace {

void check_ranks(const std::vector<int>& ranks, const Mesh& mesh, const World& world) {
  if (static_cast<std::int64_t>(ranks.size()) != mesh.world_size())
    fail(Code::kInvalidArgument, fmt::format("mesh {} has {} places for {} ranks", mesh.to_string(),
                                             mesh.world_size(), ranks.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world.size())
      fail(Code::kInvalidArgument, fmt::format("mesh {}: rank {} is outside the world of {}",
                                               mesh.to_string(), ranks[i], world.size()));
    if (i > 0 && ranks[i] <= ranks[i - 1])
      fail(Code::kInvalidArgument, fmt::format("mesh {}: rank {} after rank {}; ranks must ascend",
                                               mesh.to_string(), ranks[i], ranks[i - 1]));
  }
  if (!std::ranges::binary_search(ranks, world.rank()))
    fail(Code::kInvalidArgument, fmt::format("mesh {}: this rank, {}, is not among its ranks",
                                             mesh.to_string(), world.rank()));
}

Mesh make_mesh(const std::vector<std::int64_t>& sizes, const std::vector<std::string>& names) {
  if (sizes.empty() || sizes.size() != names.size())
    fail(Code::kInvalidArgument,
         fmt::format("a mesh of {} sizes and {} names", sizes.size(), names.size()));
  std::vector<MeshDim> dims;
  for (std::size_t d = 0; d < sizes.size(); ++d) dims.push_back({names[d], sizes[d]});
  return Mesh(std::move(dims));
}

std::vector<int> whole_world(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

DeviceMesh::DeviceMesh(const World& world, std::vector<std::int64_t> sizes,
                       std::vector<std::string> names)
    : DeviceMesh(world, std::move(sizes), std::move(names), whole_world(world)) {}

DeviceMesh::DeviceMesh(const World& world, std::vector<std::int64_t> sizes,
                       std::vector<std::string> names, std::vector<int> ranks) {
  Mesh mesh = make_mesh(sizes, names);
  check_ranks(ranks, mesh, world);
  const auto place = std::ranges::lower_bound(ranks, world.rank()) - ranks.begin();
  auto coordinate = mesh.coordinate(place);
  impl_ = std::make_shared<const Impl>(
      Impl{world, std::move(mesh), std::move(ranks), std::move(coordinate), nullptr, -1});
}

const Mesh& DeviceMesh::mesh() const { return impl_->mesh; }

std::int64_t DeviceMesh::size(int dim) const { return impl_->mesh.dims().at(dim).size; }

std::int64_t DeviceMesh::coordinate(int dim) const { return impl_->coordinate.at(dim); }

int DeviceMesh::find_dim(std::string_view name) const {
  const auto& dims = impl_->mesh.dims();
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d].name == name) return static_cast<int>(d);
  return -1;
}

const std::vector<int>& DeviceMesh::ranks() const { return impl_->ranks; }

std::vector<int> DeviceMesh::ranks_along(int dim) const {
  std::vector<int> along;
  auto coordinate = impl_->coordinate;
  for (coordinate.at(dim) = 0; coordinate[dim] < size(dim); ++coordinate[dim])
    along.push_back(impl_->ranks[impl_->mesh.rank_of(coordinate)]);
  return along;
}

std::shared_ptr<Communicator> DeviceMesh::group(int dim) const {
  return impl_->world.group(ranks_along(dim));
}

DeviceMesh DeviceMesh::sub(int dim) const { return sub(std::vector<int>{dim}); }

DeviceMesh DeviceMesh::sub(const std::vector<int>& dims) const {
  std::vector<MeshDim> kept;
  std::vector<std::int64_t> coordinate;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (d > 0 && dims[d] <= dims[d - 1])
      fail(Code::kInvalidArgument,
           fmt::format("mesh {}: dim {} after dim {} in a part of it; dims must ascend",
                       mesh().to_string(), dims[d], dims[d - 1]));
    kept.push_back(mesh().dims().at(dims[d]));
    coordinate.push_back(this->coordinate(dims[d]));
  }
  Mesh part(std::move(kept));
  std::vector<int> ranks;
  std::vector<std::int64_t> whole = impl_->coordinate;
  for (std::int64_t place = 0; place < part.world_size(); ++place) {
    const std::vector<std::int64_t> at = part.coordinate(place);
    for (std::size_t d = 0; d < dims.size(); ++d) whole[dims[d]] = at[d];
    ranks.push_back(impl_->ranks[mesh().rank_of(whole)]);
  }
  return DeviceMesh(std::make_shared<const Impl>(Impl{
      impl_->world, std::move(part), std::move(ranks), std::move(coordinate), impl_, dims.at(0)}));
}

bool DeviceMesh::has_parent() const { return impl_->parent != nullptr; }

DeviceMesh DeviceMesh::parent() const {
  TESSERA_CHECK(has_parent());
  return DeviceMesh(impl_->parent);
}

int DeviceMesh::parent_dim() const { return impl_->parent_dim; }

const World& DeviceMesh::world() const { return impl_->world; }

/// One handle for all callers for as long as one of them keeps it: the world cannot, as the mesh
/// keeps the world.
DeviceMesh World::mesh() const {
  const std::lock_guard lock(impl_->groups_mutex);
  if (const auto known = impl_->mesh.lock())
    return DeviceMesh(std::static_pointer_cast<const DeviceMesh::Impl>(known));
  DeviceMesh made(*this, {impl_->size}, {"shard"});
  impl_->mesh = made.impl_;
  return made;
}

}  // namespace tessera::fsdp

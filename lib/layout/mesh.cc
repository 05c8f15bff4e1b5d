#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/mesh.h>

#include <charconv>

namespace tessera {

Mesh::Mesh(std::vector<MeshDim> dims) : dims_(std::move(dims)) {
  std::optional<std::int64_t> product = 1;
  for (std::size_t d = 0; d < dims_.size(); ++d) {
    if (dims_[d].size < 1)
      fail(Code::kInvalidArgument, fmt::format("mesh dim \"{}\" has size {}; it must be at least 1",
                                               printable(dims_[d].name), dims_[d].size));
    for (std::size_t e = 0; e < d; ++e)
      if (dims_[e].name == dims_[d].name)
        fail(Code::kInvalidArgument,
             fmt::format("mesh dim \"{}\" is named twice", printable(dims_[d].name)));
    product = checked_mul(*product, dims_[d].size);
    if (!product) fail(Code::kInvalidArgument, "the mesh has more than 2^63 - 1 ranks");
  }
}

Mesh Mesh::parse(std::string_view text) {
  std::vector<MeshDim> dims;
  for (const std::string_view part : split(text, ',')) {
    const auto equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::string_view size = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    MeshDim dim{std::string(name), 0};
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), dim.size);
    if (name.empty() || size.empty() || error != std::errc{} || end != size.data() + size.size())
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" in mesh \"{}\" is not NAME=SIZE", printable(part), printable(text)),
           "write a mesh as dp=2,tp=4");
    dims.push_back(std::move(dim));
  }
  return Mesh(std::move(dims));
}

Mesh Mesh::one_dim(std::int64_t world_size, std::string name) {
  return Mesh({MeshDim{std::move(name), world_size}});
}

std::int64_t Mesh::world_size() const {
  std::int64_t product = 1;
  for (const MeshDim& dim : dims_) product *= dim.size;
  return product;
}

std::vector<std::int64_t> Mesh::coordinate(std::int64_t global_rank) const {
  if (global_rank < 0 || global_rank >= world_size())
    fail(Code::kOutOfRange, fmt::format("rank {} is outside mesh {} of {} ranks", global_rank,
                                        to_string(), world_size()));
  std::vector<std::int64_t> coordinate(dims_.size());
  for (std::size_t d = dims_.size(); d-- > 0;) {
    coordinate[d] = global_rank % dims_[d].size;
    global_rank /= dims_[d].size;
  }
  return coordinate;
}

std::int64_t Mesh::rank_of(const std::vector<std::int64_t>& coordinate) const {
  TESSERA_CHECK(coordinate.size() == dims_.size());
  std::int64_t global_rank = 0;
  for (std::size_t d = 0; d < dims_.size(); ++d) {
    if (coordinate[d] < 0 || coordinate[d] >= dims_[d].size)
      fail(Code::kOutOfRange, fmt::format("coordinate {} is outside mesh dim {}={}", coordinate[d],
                                          dims_[d].name, dims_[d].size));
    global_rank = global_rank * dims_[d].size + coordinate[d];
  }
  return global_rank;
}

std::string Mesh::to_string() const {
  std::string text;
  for (const MeshDim& dim : dims_)
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", dim.name, dim.size);
  return text;
}

}  // namespace tessera

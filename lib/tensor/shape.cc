#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/tensor/shape.h>

namespace tessera {

Shape Shape::checked(std::span<const std::int64_t> extents) {
  if (extents.size() > static_cast<std::size_t>(kMaxRank))
    fail(Code::kCorrupt, fmt::format("a shape of {} dims, more than {}", extents.size(), kMaxRank));
  std::optional<std::int64_t> product = 1;
  for (const std::int64_t extent : extents) {
    if (extent < 0)
      fail(Code::kCorrupt,
           fmt::format("negative extent {} in shape [{}]", extent, fmt::join(extents, ",")));
    if (extent > 0 && product) product = checked_mul(*product, extent);
  }
  if (!product)
    fail(Code::kCorrupt,
         fmt::format("shape [{}] has more than 2^63 - 1 elements", fmt::join(extents, ",")));
  return Shape(extents);
}

std::int64_t Shape::numel() const {
  std::uint64_t product = 1;  // a caller's extents are asked for before they are checked
  for (const std::int64_t extent : extents_) product *= static_cast<std::uint64_t>(extent);
  return static_cast<std::int64_t>(product);
}

std::int64_t Shape::inner_numel(int dim) const {
  std::int64_t product = 1;
  for (int d = dim + 1; d < rank(); ++d) product *= (*this)[d];
  return product;
}

std::vector<std::int64_t> Shape::strides() const {
  std::vector<std::int64_t> strides(extents_.size());
  std::int64_t step = 1;
  for (std::size_t d = extents_.size(); d-- > 0;) {
    strides[d] = step;
    step *= extents_[d];
  }
  return strides;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents_, ",")); }

std::int64_t TensorSpec::size_bytes() const {
  const std::int64_t numel = shape.numel();
  // Not numel * bits / 8: that product may overflow where the bytes do not.
  const auto whole = checked_mul(numel / 8, bits(dtype));
  const auto total =
      whole ? checked_add(*whole, ceil_div(numel % 8 * bits(dtype), 8)) : std::nullopt;
  if (!total) fail(Code::kCorrupt, fmt::format("{} takes more than 2^63 - 1 bytes", to_string()));
  return *total;
}

std::string TensorSpec::to_string() const {
  return fmt::format("{} {}", torch_name(dtype), shape.to_string());
}

}  // namespace tessera

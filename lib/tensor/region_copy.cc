#include <tessera/base/error.h>
#include <tessera/tensor/region_copy.h>

#include <array>
#include <bit>
#include <cstring>

namespace tessera {
namespace {

struct Dim {
  std::int64_t extent;
  std::int64_t source_stride;
  std::int64_t destination_stride;
};

/// The region's dims, innermost first, without those of extent 1 and with neighbours merged that
/// are contiguous in both arrays.
struct Dims {
  std::array<Dim, kMaxRank> dims;
  int count = 0;
  bool empty = false;
};

Dims merged(const Shape& shape, std::span<const std::int64_t> source_strides,
            std::span<const std::int64_t> destination_strides) {
  TESSERA_CHECK(shape.rank() <= kMaxRank);
  TESSERA_CHECK(source_strides.size() == static_cast<std::size_t>(shape.rank()));
  TESSERA_CHECK(destination_strides.size() == static_cast<std::size_t>(shape.rank()));
  Dims out;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    const Dim dim{shape[d], source_strides[i], destination_strides[i]};
    if (dim.extent == 0) out.empty = true;
    if (dim.extent == 1) continue;
    if (out.count > 0) {
      Dim& inner = out.dims[static_cast<std::size_t>(out.count - 1)];
      if (dim.source_stride == inner.source_stride * inner.extent &&
          dim.destination_stride == inner.destination_stride * inner.extent) {
        inner.extent *= dim.extent;
        continue;
      }
    }
    out.dims[static_cast<std::size_t>(out.count++)] = dim;
  }
  return out;
}

bool is_run(const Dim& dim) { return dim.source_stride == 1 && dim.destination_stride == 1; }

/// Copies one strided row; a constant size lets the compiler make it a load and a store.
template <int kBytes>
void copy_row(const Dim& row, const std::byte* source, std::byte* destination) {
  const std::int64_t source_step = row.source_stride * kBytes;
  const std::int64_t destination_step = row.destination_stride * kBytes;
  for (std::int64_t i = 0; i < row.extent; ++i)
    std::memcpy(destination + i * destination_step, source + i * source_step, kBytes);
}

void copy_row(const Dim& row, int element_bytes, const std::byte* source, std::byte* destination) {
  switch (element_bytes) {
    case 1:
      return copy_row<1>(row, source, destination);
    case 2:
      return copy_row<2>(row, source, destination);
    case 4:
      return copy_row<4>(row, source, destination);
    case 8:
      return copy_row<8>(row, source, destination);
    case 16:
      return copy_row<16>(row, source, destination);
    default:
      break;
  }
  for (std::int64_t i = 0; i < row.extent; ++i)
    std::memcpy(destination + i * row.destination_stride * element_bytes,
                source + i * row.source_stride * element_bytes,
                static_cast<std::size_t>(element_bytes));
}

template <class Unit, class Swap>
void swap_units(std::span<std::byte> data, Swap swap) {
  for (std::size_t at = 0; at < data.size(); at += sizeof(Unit)) {
    Unit unit;
    std::memcpy(&unit, data.data() + at, sizeof unit);
    unit = swap(unit);
    std::memcpy(data.data() + at, &unit, sizeof unit);
  }
}

}  // namespace

void copy_region(const Shape& shape, int element_bytes, const std::byte* source,
                 std::span<const std::int64_t> source_strides, std::byte* destination,
                 std::span<const std::int64_t> destination_strides) {
  const Dims region = merged(shape, source_strides, destination_strides);
  if (region.empty) return;
  const Dim row = region.count > 0 ? region.dims[0] : Dim{1, 1, 1};
  const auto run_bytes = static_cast<std::size_t>(row.extent * element_bytes);
  // An odometer over the outer dims; dims[0] is the row.
  std::array<std::int64_t, kMaxRank> at{};
  for (;;) {
    if (is_run(row)) {
      std::memcpy(destination, source, run_bytes);
    } else {
      copy_row(row, element_bytes, source, destination);
    }
    int d = 1;
    for (; d < region.count; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const Dim& dim = region.dims[i];
      source += dim.source_stride * element_bytes;
      destination += dim.destination_stride * element_bytes;
      if (++at[i] < dim.extent) break;
      at[i] = 0;
      source -= dim.extent * dim.source_stride * element_bytes;
      destination -= dim.extent * dim.destination_stride * element_bytes;
    }
    if (d >= region.count) return;
  }
}

std::int64_t run_numel(const Shape& shape, std::span<const std::int64_t> a_strides,
                       std::span<const std::int64_t> b_strides) {
  const Dims region = merged(shape, a_strides, b_strides);
  if (region.empty) return 0;
  if (region.count == 0 || !is_run(region.dims[0])) return 1;
  return region.dims[0].extent;
}

void swap_bytes(std::span<std::byte> data, int unit_bytes) {
  TESSERA_CHECK(unit_bytes > 0 && data.size() % static_cast<std::size_t>(unit_bytes) == 0);
  switch (unit_bytes) {
    case 1:
      return;
    case 2:
      return swap_units<std::uint16_t>(data, [](auto u) { return __builtin_bswap16(u); });
    case 4:
      return swap_units<std::uint32_t>(data, [](auto u) { return __builtin_bswap32(u); });
    case 8:
      return swap_units<std::uint64_t>(data, [](auto u) { return __builtin_bswap64(u); });
    default:
      TESSERA_CHECK(!"a unit of 1, 2, 4 or 8 bytes");
  }
}

}  // namespace tessera

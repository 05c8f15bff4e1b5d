#pragma once
// Region copy: moves a box between two strided arrays by the longest contiguous runs.
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <span>

namespace tessera {

/// Copies `shape` elements of `element_bytes` each. Strides are in elements, may be any sign-free
/// value (source may repeat: stride 0). Trailing dims that are dense in both become one memcpy.
void copy_region(const Shape& shape, int element_bytes, const std::byte* source,
                 std::span<const std::int64_t> source_strides, std::byte* destination,
                 std::span<const std::int64_t> destination_strides);

/// Elements per memcpy that copy_region would use: the planner's "longest run".
std::int64_t run_numel(const Shape& shape, std::span<const std::int64_t> a_strides,
                       std::span<const std::int64_t> b_strides);

/// Reverses the bytes of every `unit_bytes` unit in place (byte order of a big-endian file).
void swap_bytes(std::span<std::byte> data, int unit_bytes);

}  // namespace tessera

#include "lib/live/untouched.h"

#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <cstring>

namespace tessera {

namespace {

std::uint64_t bytes_of(const Manifest& manifest, const MemoryTarget& target) {
  const int width = bits(manifest.tensors[target.tensor].spec.dtype);
  return static_cast<std::uint64_t>((target.chunk.numel() * width + 7) / 8);
}

int element_width(const Manifest& manifest, const MemoryTarget& target) {
  const DType dtype = manifest.tensors[target.tensor].spec.dtype;
  return is_sub_byte(dtype) ? 1 : element_bytes(dtype);
}

/// Visits every run of neighbouring elements of a target: (first byte, bytes).
template <class Visit>
void for_each_run(const Manifest& manifest, const MemoryTarget& target, const Visit& visit) {
  if (target.strides.empty()) return visit(target.data, bytes_of(manifest, target));
  const Shape& shape = target.chunk.box.shape;
  const auto width = static_cast<std::size_t>(element_width(manifest, target));
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()), 0);
  for (std::int64_t left = shape.numel(); left > 0; --left) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * target.strides[d];
    visit(target.data + static_cast<std::size_t>(offset) * width, std::uint64_t{width});
    for (int d = shape.rank(); d-- > 0;) {
      if (++at[static_cast<std::size_t>(d)] < shape[d]) break;
      at[static_cast<std::size_t>(d)] = 0;
    }
  }
}

}  // namespace

void fill_canary(const Manifest& manifest, std::span<const MemoryTarget> targets,
                 std::byte canary) {
  for (const MemoryTarget& target : targets)
    for_each_run(manifest, target, [&](std::byte* data, std::uint64_t bytes) {
      std::memset(data, std::to_integer<int>(canary), static_cast<std::size_t>(bytes));
    });
}

std::vector<std::int64_t> canaries(const Manifest& manifest, const MemoryTarget& target,
                                   std::byte canary) {
  const auto width = static_cast<std::uint64_t>(element_width(manifest, target));
  std::vector<std::int64_t> found;
  std::int64_t element = 0;
  for_each_run(manifest, target, [&](const std::byte* data, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at + width <= bytes; at += width, ++element) {
      if (data[at] != canary) continue;
      if (std::all_of(data + at, data + at + width, [&](std::byte b) { return b == canary; }))
        found.push_back(element);
    }
  });
  return found;
}

bool holds(const Manifest& manifest, const MemoryTarget& target, const std::byte* dense) {
  bool same = true;
  for_each_run(manifest, target, [&](const std::byte* data, std::uint64_t bytes) {
    same = same && std::memcmp(data, dense, static_cast<std::size_t>(bytes)) == 0;
    dense += bytes;
  });
  return same;
}

void copy_to_target(const Manifest& manifest, const std::byte* dense, const MemoryTarget& target) {
  if (target.strides.empty()) {
    std::memcpy(target.data, dense, static_cast<std::size_t>(bytes_of(manifest, target)));
    return;
  }
  copy_region(target.chunk.box.shape, element_width(manifest, target), dense,
              target.chunk.box.shape.strides(), target.data, target.strides);
}

}  // namespace tessera

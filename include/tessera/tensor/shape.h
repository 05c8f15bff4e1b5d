#pragma once
// Shape: the extents of a dense array, in elements. Rank 0 is a scalar with numel 1.
//
// Row-major everywhere: the last dimension is contiguous. Extents are >= 0; their product, and the
// product of the non-zero ones, fits in int64 (checked when untrusted: Shape::checked).
#include <tessera/base/small_vector.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace tessera {

inline constexpr int kMaxRank = 64;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) : extents_(extents) {}
  explicit Shape(std::span<const std::int64_t> extents)
      : extents_(extents.begin(), extents.end()) {}
  explicit Shape(const std::vector<std::int64_t>& extents)
      : extents_(extents.begin(), extents.end()) {}

  /// For extents read from a file. Throws kCorrupt on rank > kMaxRank, a negative extent or
  /// overflow.
  static Shape checked(std::span<const std::int64_t> extents);

  int rank() const { return static_cast<int>(extents_.size()); }
  std::int64_t operator[](int dim) const { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return extents_[static_cast<std::size_t>(dim)]; }
  std::span<const std::int64_t> extents() const { return {extents_.data(), extents_.size()}; }
  std::int64_t numel() const;
  /// Elements of one step along `dim`: product of the extents after it.
  std::int64_t inner_numel(int dim) const;
  /// Row-major strides in elements.
  std::vector<std::int64_t> strides() const;
  bool operator==(const Shape&) const = default;
  /// "[4,5]"; "[]" for a scalar.
  std::string to_string() const;

 private:
  SmallVector<std::int64_t, 2> extents_;
};

/// A tensor without data: element type and global shape.
struct TensorSpec {
  DType dtype = DType::kFloat32;
  Shape shape;

  /// Bytes of the dense row-major form: ceil(numel * bits / 8). Throws kCorrupt on overflow.
  std::int64_t size_bytes() const;
  bool operator==(const TensorSpec&) const = default;
  std::string to_string() const;  // "float32 [4,5]"
};

}  // namespace tessera

#pragma once
// Names of PyTorch's storage classes.
#include <tessera/tensor/dtype.h>

#include <array>
#include <optional>
#include <string_view>

namespace tessera {

struct StorageClass {
  std::string_view name;
  DType dtype;
};

inline constexpr std::array kStorageClasses = {
    StorageClass{"DoubleStorage", DType::kFloat64},
    StorageClass{"FloatStorage", DType::kFloat32},
    StorageClass{"HalfStorage", DType::kFloat16},
    StorageClass{"BFloat16Storage", DType::kBFloat16},
    StorageClass{"LongStorage", DType::kInt64},
    StorageClass{"IntStorage", DType::kInt32},
    StorageClass{"ShortStorage", DType::kInt16},
    StorageClass{"CharStorage", DType::kInt8},
    StorageClass{"ByteStorage", DType::kUInt8},
    StorageClass{"BoolStorage", DType::kBool},
    StorageClass{"ComplexDoubleStorage", DType::kComplex128},
    StorageClass{"ComplexFloatStorage", DType::kComplex64},
    StorageClass{"QInt8Storage", DType::kQInt8},
    StorageClass{"QUInt8Storage", DType::kQUInt8},
    StorageClass{"QInt32Storage", DType::kQInt32},
    StorageClass{"QUInt4x2Storage", DType::kQUInt4x2},
    StorageClass{"QUInt2x4Storage", DType::kQUInt2x4},
};

/// nullopt: the type has no class of its own and lives in an UntypedStorage.
constexpr std::optional<std::string_view> storage_class_name(DType dtype) {
  for (const StorageClass& c : kStorageClasses) {
    if (c.dtype == dtype) return c.name;
  }
  return std::nullopt;
}

constexpr std::optional<DType> storage_class_dtype(std::string_view name) {
  for (const StorageClass& c : kStorageClasses) {
    if (c.name == name) return c.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera

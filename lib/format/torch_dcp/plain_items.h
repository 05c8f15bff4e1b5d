#pragma once
// What lies on the stack while `.metadata` is read the short way (plain_metadata.h): 16 bytes an
// item, the rest in pools by number.
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/plain_stream.h"

namespace tessera::dcp::plain {  // short names for what stands on the stack

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInt,         // n
  kText,        // a: number of the text
  kGlobal,      // a: number of the global
  kSize,        // a: number of the torch.Size
  kTuple,       // a values from place n of the pool
  kDict,        // a: number of the dict
  kList,        // a: number of the list
  kProperties,  // a: number of the TensorProperties
  kTensor,      // a: number of the TensorStorageMetadata
  kBytes,       // a BytesStorageMetadata
  kChunk,       // a: rank, n: first coordinate
  kIndex,       // a: text of the name, n: number of the size, -1: none
  kInfo,        // a: text of the path, n: number of the Info
  kObject,      // made and not built yet. a: number of the global
  kMetadata,    // n: number of the dict of attributes
  kStorageMeta,
  kOpaque,  // never looked at: a layout, a memory format
};

struct Item {
  Kind kind = Kind::kNone;
  std::uint32_t a = 0;
  std::int64_t n = 0;
};

/// A vector whose push is a store: half of all opcodes push one item.
class Stack {
 public:
  void push(const Item& item) {
    if (size_ == items_.size()) items_.resize(std::max<std::size_t>(1024, 2 * size_));
    items_[size_++] = item;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Item& back() { return items_[size_ - 1]; }
  const Item& operator[](std::size_t i) const { return items_[i]; }
  void shrink(std::size_t size) { size_ = size; }
  std::span<const Item> from(std::size_t begin) const {
    return std::span(items_).subspan(begin, size_ - begin);
  }

 private:
  std::vector<Item> items_;
  std::size_t size_ = 0;
};

enum class Role : std::uint8_t {
  kOther,
  kSize,
  kMetadata,
  kTensor,
  kBytes,
  kChunk,
  kProperties,
  kIndex,
  kInfo,
  kPath,
  kEnum,  // called with one plain value; the result is not looked at
  kDType,
};

struct Global {
  std::string module;
  std::string name;
  Role role = Role::kOther;
};

struct Size {
  std::uint64_t first = 0;  // in the coordinates
  std::uint32_t count = 0;
};

struct Properties {
  std::optional<DType> dtype;  // none: not built yet
  bool requires_grad = false;
};

struct TensorMeta {
  std::uint32_t properties = 0;
  std::uint32_t size = 0;
  std::uint64_t first_coordinate = 0;
  std::uint32_t chunk_count = 0;
};

struct Info {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

inline Role role_of(std::string_view module, std::string_view name) {
  if (module == "torch" && name == "Size") return Role::kSize;
  if (module == "torch") return Role::kDType;
  if (module == "pathlib" || module == "pathlib._local") return Role::kPath;
  if (module == "torch.serialization" && name == "_get_layout") return Role::kEnum;
  if (module == kFilesystemModule && name == "_StorageInfo") return Role::kInfo;
  if (module != kMetadataModule) return Role::kOther;
  if (name == "Metadata") return Role::kMetadata;
  if (name == "TensorStorageMetadata") return Role::kTensor;
  if (name == "BytesStorageMetadata") return Role::kBytes;
  if (name == "ChunkStorageMetadata") return Role::kChunk;
  if (name == "TensorProperties") return Role::kProperties;
  if (name == "MetadataIndex") return Role::kIndex;
  return name == "_MEM_FORMAT_ENCODING" ? Role::kEnum : Role::kOther;
}

[[noreturn]] inline void leave() { throw LeaveIt{}; }
inline void need(bool condition) {
  if (!condition) leave();
}

}  // namespace tessera::dcp::plain

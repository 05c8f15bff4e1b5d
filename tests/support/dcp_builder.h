#pragma once
// Hand-made `.metadata` in any dialect, right or wrong, and items to go with it.
#include <tessera/base/bytes.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

using Numbers = std::vector<std::int64_t>;

struct BuiltTensor {
  std::string name;
  std::string dtype = "float32";
  Numbers size;
  std::vector<std::pair<Numbers, Numbers>> chunks;  // offsets, sizes
};

struct BuiltItem {
  std::string name;
  std::optional<Numbers> origin;  // nullopt: a value
  std::string file = "__0_0.distcp";
  std::int64_t offset = 0;
  std::int64_t length = 0;
  std::vector<std::string> transforms;
};

struct BuiltMetadata {
  std::vector<BuiltTensor> tensors;
  std::vector<std::string> values;
  std::vector<BuiltItem> items;

  // The dialect.
  std::string module = "torch.distributed.checkpoint.metadata";
  std::string root_module;  // "": the same
  std::string root_class = "Metadata";
  std::string properties_module = "torch.distributed.checkpoint.metadata";
  std::string storage_module = "torch.distributed.checkpoint.filesystem";
  std::string enum_name = "_MEM_FORMAT_ENCODING";
  bool enum_by_getattr = false;
  std::optional<std::string> version;
  /// Writes the value of `storage_meta`; null: the attribute is absent.
  std::function<void(PickleEmitter&)> storage_meta;
  /// Writes planner_data; null: None.
  std::function<void(PickleEmitter&)> planner_data;
  /// Name and writer of one more attribute.
  std::string extra_name;
  std::function<void(PickleEmitter&)> extra;
};

Bytes build_metadata(const BuiltMetadata& metadata);

/// A StorageMeta whose checkpoint_id is a path of this class, made of `parts`.
std::function<void(PickleEmitter&)> storage_meta_with_path(std::string path_module,
                                                           std::string path_class,
                                                           std::vector<std::string> parts);

/// torch.save of a dense tensor whose element i is `first + i` (float32 only).
Bytes tensor_item(const Shape& shape, float first);
/// torch.save of a value.
Bytes value_item(const Value& value);

}  // namespace tessera::testing

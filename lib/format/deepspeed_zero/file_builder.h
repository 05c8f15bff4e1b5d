#pragma once
// One archive of DeepSpeed's in the making: values may refer to tensors of the source; flat buffers
// are put together from pieces of them.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/format/torch_files/archive_plan.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::deepspeed {

class FileBuilder {
 public:
  explicit FileBuilder(const Manifest& source) : source_(source) {}
  FileBuilder(const FileBuilder&) = delete;
  FileBuilder& operator=(const FileBuilder&) = delete;

  /// A whole tensor of the source; the same one, and one of the same bytes, share a storage.
  Value tensor(std::uint32_t index);
  /// The same data as a 1-D tensor.
  Value flattened(std::uint32_t index);
  /// `value` with tensors of the source in it.
  Value value(const Value& value) { return remap_(value); }
  /// A 1-D tensor of `numel` elements; what `pieces` leave of it are zeros.
  Value flat(DType dtype, std::int64_t numel, std::vector<StoragePiece> pieces);
  /// A 0-dim float32.
  Value float_scalar(double number);

  ArchiveFile finish(std::string path, Value root);

 private:
  std::uint32_t add(const TensorSpec& spec, std::vector<StoragePiece> pieces);
  StoragePiece whole(std::uint32_t index) const;

  const Manifest& source_;
  ArchiveFile file_;
  std::unordered_map<std::uint32_t, std::uint32_t> taken_;  // source tensor -> ours
  TensorRemapper remap_{[this](std::uint32_t index) { return take(index); }};
  std::uint32_t take(std::uint32_t index);
};

/// Elements [begin, end) of the row-major ravel of a source tensor.
StoragePiece piece_of(const Manifest& source, std::uint32_t tensor, std::int64_t begin,
                      std::int64_t end);

}  // namespace tessera::deepspeed

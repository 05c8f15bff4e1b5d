#pragma once
// One torch.save file while it is put together: tensors get storages in the order they are added.
// Pure; not thread-safe.
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/torch_files/archive_plan.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::fairscale {

class ArchiveDraft {
 public:
  /// `path`: of the file in the output folder.
  ArchiveDraft(const Manifest& source, std::string path);

  /// A new tensor with a storage of these pieces.
  Value add(const TensorSpec& spec, std::vector<StoragePiece> pieces);
  /// All of a source tensor, stored once however often it is asked for.
  Value whole(std::uint32_t tensor);
  /// The same elements in another shape, in a storage of their own.
  Value reshaped(std::uint32_t tensor, const Shape& shape);
  /// A value of the source: tensors inside are taken whole.
  Value take(const Value& value) { return remap_(value); }

  ArchiveFile finish(Value root);

 private:
  const Manifest& source_;
  ArchiveFile file_;
  std::unordered_map<std::uint32_t, std::uint32_t> known_;
  TensorRemapper remap_;
};

}  // namespace tessera::fairscale

#pragma once
// One rank's file while it is planned: tensors with what their storages hold.
#include <deque>
#include <unordered_map>

#include "lib/format/torch_files/archive_plan.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::rank_files {

class RankArchive {
 public:
  explicit RankArchive(const Manifest& source) : source_(source) {}

  /// A tensor of its own storage; the number that Value::tensor() takes.
  std::uint32_t add(const TensorSpec& spec, std::vector<StoragePiece> pieces);
  /// A tensor of the source, whole: once, however often it is asked for.
  std::uint32_t whole(std::uint32_t index);
  /// `value` with its tensor references numbered as here.
  Value adopt(const Value& value);

  /// Ends it. `prefix`: of its records.
  ArchiveFile finish(std::string path, std::string prefix, Value root);

 private:
  const Manifest& source_;
  std::vector<ArchiveWriteTensor> tensors_;
  std::vector<std::vector<StoragePiece>> storages_;
  std::unordered_map<std::uint32_t, std::uint32_t> whole_;
  std::deque<QuantParams> quant_;
};

}  // namespace tessera::rank_files

#pragma once
// One torch.save file while a writer puts it together: tensors of the source, views of them, new
// tensors made of pieces, and values with tensors inside. Tensors and storages are numbered in the
// order they are added. Pure; not thread-safe.
//
//   ArchiveDraft draft(source, {.format = "fairscale-fsdp"});
//   Value bias = draft.whole(b);                     a source tensor, stored once
//   Value flat = draft.flat(dtype, 24, pieces);      one of pieces and zeros
//   builder.add(draft.finish("rank0.pt", root));     root: a dict that holds both
#include <tessera/state/manifest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "lib/format/torch_files/archive_plan.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera {

/// What a format's files keep of a source tensor beyond its elements.
struct DraftRules {
  std::string_view format;  // its id, for refusals
  bool quantized = false;   // quantizer parameters; where not, such tensors are refused
  bool parameters = true;   // that it is an nn.Parameter
  bool ties = false;        // tensors that lie at one place of the source share a storage
};

class ArchiveDraft {
 public:
  ArchiveDraft(const Manifest& source, const DraftRules& rules) : source_(source), rules_(rules) {}
  ArchiveDraft(const ArchiveDraft&) = delete;
  ArchiveDraft& operator=(const ArchiveDraft&) = delete;

  // The Values refer to tensors of this file. Those of the source throw kUnsupported (see
  // refuse_dtype()) for packed element types and, by the rules, for quantized tensors.
  /// All of a source tensor: stored once, however often it is asked for.
  Value whole(std::uint32_t tensor);
  /// The same elements in another shape, in a storage of their own.
  Value reshaped(std::uint32_t tensor, const Shape& shape);
  /// A part of a source tensor, made of these pieces one behind the other.
  Value part(std::uint32_t tensor, const Shape& shape, std::vector<StoragePiece> pieces);
  /// A value of the source: tensors inside are taken whole.
  Value take(const Value& value) { return remap_(value); }
  /// A new tensor.
  Value add(const TensorSpec& spec, std::vector<StoragePiece> pieces);
  /// A new tensor of `numel` elements in one dimension; what `pieces` leave of it are zeros.
  Value flat(DType dtype, std::int64_t numel, std::vector<StoragePiece> pieces);
  /// A new float32 without dims.
  Value float_scalar(double number);

  /// Ends the file; nothing may be added after it. `path`: in the output folder; `prefix`: of its
  /// records, the stem of its name where it has none.
  ArchiveFile finish(std::string path, Value root, std::string prefix = {});

 private:
  using Place = std::tuple<std::uint32_t, std::uint64_t, std::uint8_t, DType,
                           std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::optional<Place> place_of(const StoredTensor& tensor) const;
  std::uint32_t storage_of(std::uint32_t tensor);
  std::uint32_t push(const TensorSpec& spec, std::uint32_t storage);
  void keep_marks(std::uint32_t number, const StoredTensor& tensor);
  std::uint32_t take_whole(std::uint32_t tensor);
  void require_held(const StoredTensor& tensor) const;

  const Manifest& source_;
  DraftRules rules_;
  ArchiveFile file_;
  std::unordered_map<std::uint32_t, std::uint32_t> taken_;  // source tensor -> ours
  std::map<Place, std::uint32_t> places_;                   // -> storage
  std::deque<QuantParams> quant_;
  TensorRemapper remap_{[this](std::uint32_t index) { return take_whole(index); }};
};

/// Elements [begin, end) of the row-major ravel of a source tensor.
StoragePiece piece_of(const Manifest& source, std::uint32_t tensor, std::int64_t begin,
                      std::int64_t end);
/// All of a source tensor.
StoragePiece piece_of(const Manifest& source, std::uint32_t tensor);

}  // namespace tessera

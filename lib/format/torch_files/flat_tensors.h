#pragma once
// Flat buffers in torch.save files, for the formats whose ranks keep them: what a reader takes out
// of them, what a writer puts into them, and whether what is no parameter's is zero.
//
//   FlatPlaces --pieces_of--> ArchivePiece...       one per run
//   FlatPiece... --flat_storage--> StoragePiece...  zeros in the gaps
#include <tessera/layout/flat_layout.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_plan.h"
#include "lib/layout/flat_places.h"

namespace tessera {

/// The tensor that holds a run's buffer; nullopt: it is not there, which leaves a hole.
using TensorOfRun = std::function<std::optional<TensorRef>(const FlatRun&)>;

/// A parameter of `shape` from its runs (FlatPlaces::cut()).
std::vector<ArchivePiece> pieces_of(const std::vector<FlatRun>& runs, const Shape& shape,
                                    const TensorOfRun& tensor);

/// A storage of `numel` elements of `dtype`: `pieces` (ascending, apart) at their offsets, zeros
/// elsewhere. `tensor`: of the source, by parameter; kNoTensor: zeros.
std::vector<StoragePiece> flat_storage(const Manifest& source, const std::vector<FlatPiece>& pieces,
                                       std::int64_t numel, DType dtype,
                                       const std::function<std::uint32_t(std::size_t)>& tensor);

/// A buffer whose padding is looked at.
struct PaddedBuffer {
  TensorRef ref;
  std::vector<FlatRange> content;  // what is parameters', in any order
  std::string name = {};           // for the note
  /// FSDP1 fills the padding of weights with this (_FLAT_PARAM_PADDING_VALUE,
  /// torch/distributed/fsdp/_flat_param.py). Zero is fine everywhere.
  std::optional<double> filler = {};
  Severity severity = Severity::kWarning;
};
/// Notes (CK065) how many elements of padding are neither zero nor filler: no reader uses them, but
/// whoever lays parameters out otherwise would. Reads the padding, in small blocks; a tensor that
/// cannot be read as it stands (strided, packed) is left alone.
void note_used_padding(ArchiveBytes& bytes, Findings& findings, const std::string& file,
                       const PaddedBuffer& buffer);

}  // namespace tessera

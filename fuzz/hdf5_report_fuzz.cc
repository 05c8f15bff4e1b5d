// Any bytes as the report of tessera-hdf5: parsed or refused. What parses becomes pieces that stay
// inside the file and tile their dataset.
#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
#include "lib/format/hdf5/dtype.h"
#include "lib/format/hdf5/pieces.h"
#include "lib/format/hdf5/report.h"

using namespace tessera;

namespace {

constexpr std::uint64_t kFileBytes = 1 << 20;

void check_pieces(const h5::Dataset& dataset) {
  const auto dtype = h5::dtype_of(dataset.type, "bfloat16");
  const bool elsewhere =
      dataset.layout == h5::LayoutKind::kVirtual || dataset.layout == h5::LayoutKind::kExternal;
  if (!dtype || elsewhere) return;
  const auto pieces = h5::pieces_of(dataset, *dtype, 0, kFileBytes);
  Manifest manifest;
  std::int64_t numel = 0;
  for (const h5::Piece& piece : pieces) {
    numel += piece.box.numel();
    h5::add_piece(manifest, piece, element_bytes(*dtype));
  }
  if (numel != Shape::checked(dataset.extents).numel()) std::abort();
  for (std::size_t i = 0; i < manifest.chunks.size(); ++i) {
    const Source& source = manifest.chunks.source(i);
    if (source.offset > kFileBytes || source.length > kFileBytes - source.offset) std::abort();
  }
}

}  // namespace

TESSERA_MUTATOR(mutate_words)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::refuse_cleanly([&] {
    const h5::Report report = h5::parse_report({reinterpret_cast<const std::byte*>(data), size});
    for (const h5::Dataset& dataset : report.datasets)
      fuzz::refuse_cleanly([&] { check_pieces(dataset); });
  });
  return 0;
}

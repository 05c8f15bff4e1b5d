#include "lib/format/hdf5/pieces.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/chunk.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>

namespace tessera::h5 {
namespace {

// HDF5's registered filters.
constexpr std::uint32_t kDeflate = 1;
constexpr std::uint32_t kShuffle = 2;
constexpr std::uint32_t kFletcher32 = 3;
constexpr std::uint32_t kLzf = 32000;
constexpr std::uint32_t kZstd = 32015;

std::int64_t dot(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b,
                 const std::vector<std::int64_t>& strides) {
  std::int64_t sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += (a[d] - b[d]) * strides[d];
  return sum;
}

void check_range(std::uint64_t offset, std::uint64_t length, std::uint64_t file_bytes) {
  if (offset > file_bytes || length > file_bytes - offset)
    fail(Code::kCorrupt, fmt::format("its bytes [{}, {} + {}) reach past the file's {}", offset,
                                     offset, length, file_bytes));
}

class PieceBuilder {
 public:
  PieceBuilder(const Dataset& dataset, DType dtype, std::uint32_t file, std::uint64_t file_bytes)
      : dataset_(dataset),
        dtype_(dtype),
        file_(file),
        file_bytes_(file_bytes),
        shape_(Shape::checked(dataset.extents)),
        bytes_(static_cast<std::uint64_t>(TensorSpec{dtype, shape_}.size_bytes())) {}

  std::vector<Piece> build() {
    if (bytes_ == 0)  // one empty chunk, as of any other empty tensor
      add(piece(Box::whole(shape_), Source::Kind::kInline));
    else if (dataset_.layout == LayoutKind::kContiguous)
      contiguous();
    else if (dataset_.layout == LayoutKind::kCompact)
      compact();
    else
      chunked();
    return std::move(out_);
  }

 private:
  void add(Piece piece) { out_.push_back(std::move(piece)); }
  Piece piece(Box box, Source::Kind kind) const {
    Piece p;
    p.strides = box.shape.strides();
    p.box = std::move(box);
    p.kind = kind;
    p.file = file_;
    p.byte_swap = dataset_.type.big_endian && swap_unit_bytes(dtype_) > 1;
    return p;
  }
  void add_fill(Box box) {
    Piece p = piece(std::move(box), Source::Kind::kFill);
    p.byte_swap = false;
    p.bytes = fill_element(dataset_, dtype_);
    add(std::move(p));
  }

  void contiguous() {
    if (dataset_.length == 0) return add_fill(Box::whole(shape_));
    if (dataset_.length < bytes_)
      fail(Code::kCorrupt,
           fmt::format("{} bytes are stored where its shape needs {}", dataset_.length, bytes_));
    check_range(dataset_.offset, bytes_, file_bytes_);
    Piece p = piece(Box::whole(shape_), Source::Kind::kExtent);
    p.offset = dataset_.offset;
    add(std::move(p));
  }

  void compact() {
    if (dataset_.bytes.size() != bytes_)
      fail(Code::kCorrupt, fmt::format("{} bytes are stored where its shape needs {}",
                                       dataset_.bytes.size(), bytes_));
    Piece p = piece(Box::whole(shape_), Source::Kind::kInline);
    const ByteView bytes = as_bytes(dataset_.bytes);
    p.bytes.assign(bytes.begin(), bytes.end());
    add(std::move(p));
  }

  void chunked() {
    const Shape chunk = Shape::checked(dataset_.chunk);
    chunk_ = chunk;
    chunk_bytes_ = static_cast<std::uint64_t>(TensorSpec{dtype_, chunk}.size_bytes());
    std::vector<std::int64_t> grid;
    for (int d = 0; d < shape_.rank(); ++d) grid.push_back(ceil_div(shape_[d], chunk[d]));
    grid_ = Shape::checked(grid);
    std::int64_t next = 0;
    for (const StoredChunk& stored : dataset_.chunks) {
      if (stored.number >= static_cast<std::uint64_t>(grid_.numel()))
        fail(Code::kCorrupt, "a chunk lies outside of its extents");
      const auto number = static_cast<std::int64_t>(stored.number);
      add_missing(next, number);
      add_chunk(number, stored);
      next = number + 1;
    }
    add_missing(next, grid_.numel());
  }

  /// Places [begin, end) of the grid hold nothing: as few boxes as cover them.
  void add_missing(std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    for (const ChunkPiece& run : decompose(Chunk{Box::whole(grid_), begin, end}))
      add_fill(elements_of(run.box));
  }
  /// A box of places as the box of elements in it.
  Box elements_of(const Box& places) const {
    Box out = places;
    for (int d = 0; d < shape_.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      out.origin[i] = places.origin[i] * chunk_[d];  // < extent
      const std::int64_t left = shape_[d] - out.origin[i];
      const auto wanted = checked_mul(places.shape[d], chunk_[d]);
      out.shape[d] = wanted ? std::min(left, *wanted) : left;
    }
    return out;
  }

  void add_chunk(std::int64_t number, const StoredChunk& stored) {
    Box place = Box::whole(grid_);
    for (int d = grid_.rank(); d-- > 0;) {
      place.origin[static_cast<std::size_t>(d)] = number % grid_[d];
      number /= grid_[d];
      place.shape[d] = 1;
    }
    check_range(stored.offset, stored.length, file_bytes_);
    Piece p = piece(elements_of(place), Source::Kind::kCoded);
    const bool whole = p.box.shape == chunk_;
    p.strides = chunk_.strides();
    p.offset = stored.offset;
    p.length = stored.length;
    if (whole || !dataset_.edges_unfiltered) p.codecs = codecs_for(stored.skipped_filters);
    if (p.codecs.empty()) {
      if (stored.length != chunk_bytes_)
        fail(Code::kCorrupt, fmt::format("a chunk of {} bytes where its shape {} needs {}",
                                         stored.length, chunk_.to_string(), chunk_bytes_));
      p.kind = Source::Kind::kExtent;
    }
    add(std::move(p));
  }

  /// What undoes the filters, last one first.
  std::vector<std::string> codecs_for(std::uint32_t skipped) const {
    std::vector<std::string> out;
    // Checksums lie between filters: four bytes each.
    const std::uint64_t most = chunk_bytes_ + 4 * dataset_.filters.size();
    for (std::size_t i = dataset_.filters.size(); i-- > 0;) {
      if (i < 32 && (skipped >> i & 1) != 0) continue;
      const Filter& filter = dataset_.filters[i];
      switch (filter.id) {
        case kDeflate:
          out.push_back(fmt::format("hdf5.deflate:{}", most));
          break;
        case kLzf:
          out.push_back(fmt::format("hdf5.lzf:{}", most));
          break;
        case kZstd:
          out.push_back("stream.zstd");
          break;
        case kFletcher32:
          out.push_back("hdf5.fletcher32");
          break;
        case kShuffle:
          out.push_back(fmt::format("hdf5.shuffle:{}", filter.parameters.empty()
                                                           ? dataset_.type.size
                                                           : filter.parameters[0]));
          break;
        default:
          fail(Code::kUnsupported,
               fmt::format("filter {} ({}) is not known", filter.id, printable(filter.name)),
               "gzip, lzf, zstd, shuffle and fletcher32 can be read");
      }
    }
    return out;
  }

  const Dataset& dataset_;
  DType dtype_;
  std::uint32_t file_;
  std::uint64_t file_bytes_;
  Shape shape_;
  std::uint64_t bytes_;
  Shape chunk_, grid_;
  std::uint64_t chunk_bytes_ = 0;
  std::vector<Piece> out_;
};

template <class T, class Same>
std::uint32_t intern(std::vector<T>& list, const T& item, Same&& same) {
  // Neighbours mostly share one; a dataset has few different ones.
  const std::size_t first = list.size() > 64 ? list.size() - 64 : 0;
  for (std::size_t i = list.size(); i-- > first;)
    if (same(list[i])) return static_cast<std::uint32_t>(i);
  list.push_back(item);
  return static_cast<std::uint32_t>(list.size() - 1);
}

/// The box's elements, dense.
Bytes gathered(const Piece& piece, int element_bytes) {
  Bytes out(static_cast<std::size_t>(piece.box.numel() * element_bytes));
  if (out.empty()) return out;
  copy_region(piece.box.shape, element_bytes,
              piece.bytes.data() + piece.first_element * element_bytes, piece.strides, out.data(),
              piece.box.shape.strides());
  return out;
}

bool is_dense(const Piece& piece) { return piece.strides == piece.box.shape.strides(); }

/// Elements from the first to the last that the box touches.
std::int64_t span_of(const Piece& piece) {
  if (piece.box.empty()) return 0;
  std::int64_t span = 1;
  for (int d = 0; d < piece.box.rank(); ++d)
    span += (piece.box.shape[d] - 1) * piece.strides[static_cast<std::size_t>(d)];
  return span;
}

/// Index of the codec chain, or of the view of what it gives.
void add_coded(Manifest& manifest, const Piece& piece, Source& source) {
  source.offset = piece.offset;
  source.length = piece.length;
  const std::uint32_t chain = intern(manifest.codecs, piece.codecs,
                                     [&](const auto& known) { return known == piece.codecs; });
  source.side = chain;
  if (piece.first_element == 0 && is_dense(piece)) return;
  const CodedView view{chain, piece.first_element, piece.strides};
  source.view = 1;
  source.side = intern(manifest.views, view, [&](const CodedView& known) {
    return known.codecs == view.codecs && known.first_element == view.first_element &&
           known.strides == view.strides;
  });
}

}  // namespace

std::vector<Piece> pieces_of(const Dataset& dataset, DType dtype, std::uint32_t file,
                             std::uint64_t file_bytes) {
  return PieceBuilder(dataset, dtype, file, file_bytes).build();
}

Bytes fill_element(const Dataset& dataset, DType dtype) {
  Bytes out(static_cast<std::size_t>(element_bytes(dtype)));
  const ByteView given = as_bytes(dataset.fill);
  if (given.size() == out.size()) out.assign(given.begin(), given.end());
  if (dataset.type.big_endian) swap_bytes(out, swap_unit_bytes(dtype));
  return out;
}

Piece cut(const Piece& piece, const Box& box, int element_bytes) {
  Piece out = piece;
  out.box = box;
  if (piece.kind == Source::Kind::kFill) return out;
  const std::int64_t skipped = dot(box.origin, piece.box.origin, piece.strides);
  if (piece.kind == Source::Kind::kExtent)
    out.offset += static_cast<std::uint64_t>(skipped * element_bytes);
  else
    out.first_element += skipped;
  return out;
}

void add_piece(Manifest& manifest, const Piece& piece, int element_bytes) {
  Source source;
  source.kind = piece.kind;
  source.flags = piece.byte_swap ? Source::kByteSwap : 0;
  source.file = piece.file;
  switch (piece.kind) {
    case Source::Kind::kExtent:
      source.offset = piece.offset;
      source.length = static_cast<std::uint64_t>(span_of(piece) * element_bytes);
      if (!is_dense(piece))
        source.side = 1 + intern(manifest.strides, piece.strides,
                                 [&](const auto& known) { return known == piece.strides; });
      break;
    case Source::Kind::kCoded:
      add_coded(manifest, piece, source);
      break;
    case Source::Kind::kInline:
      source.side = static_cast<std::uint32_t>(manifest.inline_bytes.size());
      manifest.inline_bytes.push_back(gathered(piece, element_bytes));
      break;
    default:
      source.side = intern(manifest.inline_bytes, piece.bytes,
                           [&](const auto& known) { return known == piece.bytes; });
      break;
  }
  manifest.chunks.add(Chunk::whole_of(piece.box), source);
}

}  // namespace tessera::h5

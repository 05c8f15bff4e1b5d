#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>

namespace tessera {
namespace {

/// Which indices of one dim of a piece lie in [begin, end): numbers [first, last) of origin + i *
/// step.
struct IndexRun {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

IndexRun indices_inside(std::int64_t origin, std::int64_t step, std::int64_t count,
                        std::int64_t begin, std::int64_t end) {
  return {ceil_div(begin - origin, step), std::min(count, ceil_div(end - origin, step))};
}

bool is_dense(const Shape& shape, const std::vector<std::int64_t>& strides) {
  const std::vector<std::int64_t> dense = shape.strides();
  for (int d = 0; d < shape.rank(); ++d)
    if (shape[d] > 1 && strides[static_cast<std::size_t>(d)] != dense[static_cast<std::size_t>(d)])
      return false;
  return true;
}

/// A dense or strided block of one stored chunk, and what is wanted of it.
struct Part {
  Box box;                            // in the new tensor
  std::int64_t first_element = 0;     // of the stored chunk's elements
  std::vector<std::int64_t> strides;  // per dim of the new tensor
  std::int64_t span() const {
    std::int64_t last = 0;
    for (int d = 0; d < box.rank(); ++d)
      last += (box.shape[d] - 1) * strides[static_cast<std::size_t>(d)];
    return last + 1;
  }
};

class Builder {
 public:
  Builder(Manifest& manifest, std::string name, const Shape& shape,
          std::span<const TensorPiece> pieces)
      : manifest_(manifest), shape_(shape), pieces_(pieces) {
    made_.name = std::move(name);
    made_.spec.shape = shape;
    made_.first_chunk = manifest.chunks.size();
  }

  std::uint32_t build() {
    take_type();
    for (const TensorPiece& piece : pieces_) {
      check(piece);
      if (piece.source == kNoTensor) {
        add_zeros(piece);
      } else if (!add_unchanged(piece)) {
        add_piece(piece);
      }
    }
    if (made_.chunk_count == 0 && shape_.numel() == 0) {  // an empty tensor still has its place
      add(Box::whole(shape_), fill_source());
    }
    manifest_.tensors.push_back(std::move(made_));
    return static_cast<std::uint32_t>(manifest_.tensors.size() - 1);
  }

 private:
  const StoredTensor& source_of(const TensorPiece& piece) const {
    TESSERA_CHECK(piece.source < manifest_.tensors.size());
    return manifest_.tensors[piece.source];
  }

  void take_type() {
    const StoredTensor* first = nullptr;
    for (const TensorPiece& piece : pieces_) {
      if (piece.source == kNoTensor) continue;
      const StoredTensor& source = source_of(piece);
      if (first == nullptr) {
        first = &source;
        made_.spec.dtype = source.spec.dtype;
        made_.cast_from = source.cast_from;
        made_.kind = source.kind;
        made_.is_parameter = source.is_parameter;
        made_.requires_grad = source.requires_grad;
      } else if (source.spec.dtype != first->spec.dtype || source.cast_from != first->cast_from) {
        fail(
            Code::kInvalidArgument,
            fmt::format("\"{}\" is {}, \"{}\" is {}: they cannot be one tensor", first->name,
                        torch_name(first->spec.dtype), source.name, torch_name(source.spec.dtype)));
      }
      // A part of a sharded tensor may lie in one chunk: it is sharded all the same.
      made_.always_sharded = made_.always_sharded || source.always_sharded || is_split(source);
    }
    TESSERA_CHECK(first != nullptr);
  }

  bool is_split(const StoredTensor& tensor) const {
    for (std::uint32_t c = 1; c < tensor.chunk_count; ++c)
      if (!(manifest_.chunk(tensor, c) == manifest_.chunk(tensor, 0))) return true;
    return false;
  }

  static std::int64_t step(const TensorPiece& piece, int dim) {
    return piece.steps.empty() ? 1 : piece.steps[static_cast<std::size_t>(dim)];
  }
  static int source_dim(const TensorPiece& piece, int dim) {
    return piece.dims.empty() ? dim : piece.dims[static_cast<std::size_t>(dim)];
  }
  std::int64_t origin(const TensorPiece& piece, int dim) const {
    return piece.origin.empty() ? 0 : piece.origin[static_cast<std::size_t>(dim)];
  }
  static std::int64_t to_step(const TensorPiece& piece, int dim) {
    return piece.to_steps.empty() ? 1 : piece.to_steps[static_cast<std::size_t>(dim)];
  }
  /// Indices of the piece along dim `dim` of the new tensor.
  static std::int64_t extent(const TensorPiece& piece, int dim) {
    if (piece.source == kNoTensor) return piece.box.shape[dim];
    const int from = source_dim(piece, dim);
    return from < 0 ? 1 : piece.box.shape[from];
  }

  void check(const TensorPiece& piece) const {
    const int rank = shape_.rank();
    const auto has_rank = [rank](const std::vector<std::int64_t>& list) {
      return list.empty() || list.size() == static_cast<std::size_t>(rank);
    };
    bool fits = has_rank(piece.origin) && has_rank(piece.to_steps);
    if (piece.source == kNoTensor) {
      fits = fits && piece.box.rank() == rank && piece.to_steps.empty();
    } else {
      const Shape& from = source_of(piece).spec.shape;
      fits = fits && piece.box.rank() == from.rank() &&
             (piece.steps.empty() || piece.steps.size() == static_cast<std::size_t>(from.rank())) &&
             (piece.dims.empty() ? from.rank() == rank
                                 : piece.dims.size() == static_cast<std::size_t>(rank)) &&
             takes_inside(piece, from) && leaves_out_single(piece, from.rank());
    }
    for (int d = 0; fits && d < rank; ++d) {
      const std::int64_t begin = origin(piece, d);
      const std::int64_t count = extent(piece, d);
      const std::int64_t each = to_step(piece, d);
      fits = begin >= 0 && begin <= shape_[d] && each >= 1 &&
             (count == 0 || (begin < shape_[d] && (shape_[d] - 1 - begin) / each >= count - 1));
    }
    if (fits) return;
    fail(
        Code::kInvalidArgument,
        fmt::format(
            "\"{}\" {} cannot take {} of {}", made_.name, shape_.to_string(), piece.box.to_string(),
            piece.source == kNoTensor ? std::string("zeros") : source_of(piece).spec.to_string()));
  }

  static bool takes_inside(const TensorPiece& piece, const Shape& from) {
    for (int d = 0; d < from.rank(); ++d) {
      const std::int64_t count = piece.box.shape[d];
      const std::int64_t begin = piece.box.begin(d);
      if (begin < 0 || count < 0 || step(piece, d) < 1 || begin > from[d]) return false;
      if (count > 0 && (from[d] - 1 - begin) / step(piece, d) < count - 1) return false;
      if (count > 0 && begin >= from[d]) return false;
    }
    return true;
  }

  /// Every source dim runs along one new dim, or has one index.
  static bool leaves_out_single(const TensorPiece& piece, int rank) {
    if (piece.dims.empty()) return true;
    std::vector<bool> used(static_cast<std::size_t>(rank));
    for (const int d : piece.dims) {
      if (d < -1 || d >= rank || (d >= 0 && used[static_cast<std::size_t>(d)])) return false;
      if (d >= 0) used[static_cast<std::size_t>(d)] = true;
    }
    for (int d = 0; d < rank; ++d)
      if (!used[static_cast<std::size_t>(d)] && piece.box.shape[d] != 1) return false;
    return true;
  }

  void add(Box box, const Source& source) {
    manifest_.chunks.add(Chunk::whole_of(std::move(box)), source);
    ++made_.chunk_count;
  }

  /// One element of zeros, in the type that is stored.
  Source fill_source() {
    if (!zeros_) {
      zeros_ = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
      manifest_.inline_bytes.emplace_back(
          static_cast<std::size_t>(element_bytes(made_.stored_dtype())));
    }
    Source source;
    source.kind = Source::Kind::kFill;
    source.side = *zeros_;
    return source;
  }

  void add_zeros(const TensorPiece& piece) {
    require_cuttable(made_);
    Box box{piece.origin, piece.box.shape};
    if (piece.origin.empty()) box = Box::whole(piece.box.shape);
    if (box.numel() > 0) add(std::move(box), fill_source());
  }

  static void require_cuttable(const StoredTensor& tensor) {
    if (is_sub_byte(tensor.spec.dtype) || is_sub_byte(tensor.stored_dtype())) {
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is {}: its elements do not start at byte borders, it cannot be cut "
                       "or joined",
                       tensor.name, torch_name(tensor.spec.dtype)));
    }
    if (tensor.quant >= 0 || is_quantized(tensor.spec.dtype)) {
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is quantized: it cannot be cut or joined", tensor.name),
           "leave it out with --exclude, or dequantize it first");
    }
  }

  /// The source as it stands: any chunk goes over, whatever its type and source.
  bool add_unchanged(const TensorPiece& piece) {
    const StoredTensor source = source_of(piece);
    const bool same = pieces_.size() == 1 && piece.steps.empty() && piece.dims.empty() &&
                      piece.to_steps.empty() && source.spec.shape == shape_ &&
                      piece.box == Box::whole(shape_) &&
                      std::ranges::all_of(piece.origin, [](std::int64_t at) { return at == 0; });
    if (!same) return false;
    for (std::uint32_t c = 0; c < source.chunk_count; ++c) {
      const Chunk chunk = manifest_.chunk(source, c);
      const Source from = manifest_.source(source, c);
      manifest_.chunks.add(chunk, from);
      ++made_.chunk_count;
    }
    made_.quant = source.quant;
    return true;
  }

  void add_piece(const TensorPiece& piece) {
    const StoredTensor source = source_of(piece);  // a copy: tables grow below
    require_cuttable(source);
    for (std::uint32_t c = 0; c < source.chunk_count; ++c) {
      const Chunk chunk = manifest_.chunk(source, c);
      const Source from = manifest_.source(source, c);
      for (const ChunkPiece& dense : decompose(chunk)) add_common(piece, chunk, from, dense);
    }
  }

  /// The part of one dense piece of a chunk that `piece` takes.
  void add_common(const TensorPiece& piece, const Chunk& chunk, const Source& from,
                  const ChunkPiece& dense) {
    const std::vector<std::int64_t> steps_in_chunk = chunk_strides(chunk, from, dense.box.shape);
    const int source_rank = dense.box.rank();
    std::vector<IndexRun> common(static_cast<std::size_t>(source_rank));
    Part part;
    part.first_element = dense.chunk_offset + view_offset(from);
    for (int d = 0; d < source_rank; ++d) {
      const auto i = static_cast<std::size_t>(d);
      common[i] = indices_inside(piece.box.begin(d), step(piece, d), piece.box.shape[d],
                                 dense.box.begin(d), dense.box.end(d));
      if (common[i].first >= common[i].last) return;
      const std::int64_t at = piece.box.begin(d) + common[i].first * step(piece, d);
      part.first_element += (at - dense.box.begin(d)) * steps_in_chunk[i];
    }
    std::vector<std::int64_t> extents;
    for (int d = 0; d < shape_.rank(); ++d) {
      const int from_dim = source_dim(piece, d);
      const auto i = static_cast<std::size_t>(from_dim < 0 ? 0 : from_dim);
      part.box.origin.push_back(origin(piece, d) +
                                (from_dim < 0 ? 0 : common[i].first * to_step(piece, d)));
      extents.push_back(from_dim < 0 ? 1 : common[i].last - common[i].first);
      part.strides.push_back(from_dim < 0 ? 0 : steps_in_chunk[i] * step(piece, from_dim));
    }
    part.box.shape = Shape(std::move(extents));
    add_apart(piece, from, part, 0);
  }

  /// Along dims where the piece does not go to neighbours, each index is a chunk of its own.
  void add_apart(const TensorPiece& piece, const Source& from, const Part& part, int dim) {
    while (dim < shape_.rank() && (to_step(piece, dim) == 1 || part.box.shape[dim] <= 1)) ++dim;
    if (dim == shape_.rank()) return add(part.box, part_source(from, part));
    const auto d = static_cast<std::size_t>(dim);
    for (std::int64_t i = 0; i < part.box.shape[dim]; ++i) {
      Part one = part;
      one.box.shape[dim] = 1;
      one.box.origin[d] += i * to_step(piece, dim);
      one.first_element += i * part.strides[d];
      add_apart(piece, from, one, dim + 1);
    }
  }

  std::vector<std::int64_t> chunk_strides(const Chunk& chunk, const Source& from,
                                          const Shape& dense) const {
    const std::vector<std::int64_t>* strides = nullptr;
    if (from.kind == Source::Kind::kExtent && from.side != 0) {
      strides = &manifest_.strides[from.side - 1];
    } else if (has_view(from)) {
      strides = &manifest_.views[from.side].strides;
    }
    if (strides == nullptr || strides->empty()) return dense.strides();
    if (strides->size() != static_cast<std::size_t>(dense.rank())) {
      fail(Code::kCorrupt, "its stored strides have another rank than its shape");
    }
    if (!chunk.is_whole_box()) fail(Code::kUnsupported, "a strided source that holds a flat range");
    return *strides;
  }

  static bool has_view(const Source& source) {
    const bool may = source.kind == Source::Kind::kCoded || source.kind == Source::Kind::kComputed;
    return may && source.view != 0;
  }

  std::int64_t view_offset(const Source& from) const {
    return has_view(from) ? manifest_.views[from.side].first_element : 0;
  }

  Source part_source(const Source& from, const Part& part) {
    const auto es = static_cast<std::uint64_t>(element_bytes(made_.stored_dtype()));
    const bool dense = is_dense(part.box.shape, part.strides);
    Source source = from;
    switch (from.kind) {
      case Source::Kind::kPending:
        fail(Code::kInternal, "its data was not located before it was cut");
      case Source::Kind::kMemory:
        fail(Code::kInternal, "tensors in memory are not cut");
      case Source::Kind::kFill:
        break;
      case Source::Kind::kExtent:
        source.offset = from.offset + static_cast<std::uint64_t>(part.first_element) * es;
        source.length = static_cast<std::uint64_t>(part.span()) * es;
        if (source.offset - from.offset > from.length ||
            source.length > from.length - (source.offset - from.offset)) {
          fail(Code::kCorrupt,
               fmt::format("its elements reach past the {} bytes stored for them", from.length));
        }
        source.side = 0;
        if (!dense) {
          manifest_.strides.push_back(part.strides);
          source.side = static_cast<std::uint32_t>(manifest_.strides.size());
        }
        break;
      case Source::Kind::kCoded:
      case Source::Kind::kComputed: {
        const std::uint32_t codecs = from.view != 0 ? manifest_.views[from.side].codecs : from.side;
        source.view = 1;
        source.side = static_cast<std::uint32_t>(manifest_.views.size());
        manifest_.views.push_back(
            {codecs, part.first_element, dense ? std::vector<std::int64_t>() : part.strides});
        break;
      }
      case Source::Kind::kInline:
        source.side = copy_inline(from, part, es);
        break;
    }
    return source;
  }

  std::uint32_t copy_inline(const Source& from, const Part& part, std::uint64_t es) {
    const Bytes& whole = manifest_.inline_bytes[from.side];
    const std::uint64_t begin = static_cast<std::uint64_t>(part.first_element) * es;
    const std::uint64_t span = static_cast<std::uint64_t>(part.span()) * es;
    if (begin > whole.size() || span > whole.size() - begin) {
      fail(Code::kCorrupt,
           fmt::format("{} bytes are stored for it, which is too few", whole.size()));
    }
    Bytes copy(static_cast<std::size_t>(part.box.numel()) * es);
    copy_region(part.box.shape, static_cast<int>(es), whole.data() + begin, part.strides,
                copy.data(), part.box.shape.strides());
    manifest_.inline_bytes.push_back(std::move(copy));
    return static_cast<std::uint32_t>(manifest_.inline_bytes.size() - 1);
  }

  Manifest& manifest_;
  const Shape& shape_;
  std::span<const TensorPiece> pieces_;
  StoredTensor made_;
  std::optional<std::uint32_t> zeros_;
};

}  // namespace

TensorPiece whole_piece(const Manifest& manifest, std::uint32_t source) {
  TESSERA_CHECK(source < manifest.tensors.size());
  TensorPiece piece;
  piece.source = source;
  piece.box = Box::whole(manifest.tensors[source].spec.shape);
  return piece;
}

std::uint32_t build_tensor(Manifest& manifest, std::string name, const Shape& shape,
                           std::span<const TensorPiece> pieces) {
  const std::string in = name;
  return in_tensor(in, [&] { return Builder(manifest, std::move(name), shape, pieces).build(); });
}

}  // namespace tessera

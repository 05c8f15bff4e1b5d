#include "lib/format/hdf5/virtual.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/layout/coverage.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/format/hdf5/dtype.h"

namespace tessera::h5 {
namespace {

constexpr int kMaxNesting = 8;               // virtual datasets over virtual datasets
constexpr std::uint64_t kMaxRuns = 1 << 16;  // boxes of one mapping
constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << 22;
constexpr std::size_t kMaxHoleBoxes = 1 << 14;
constexpr const char* kPlainly =
    "write it out plainly first, as with h5py: new[NAME] = old[NAME][...]";

/// A run of selected indices along one dimension.
struct Run {
  std::int64_t start = 0;
  std::int64_t length = 0;
};

/// A run as seen from both sides.
struct PairedRun {
  std::int64_t target = 0;
  std::int64_t source = 0;
  std::int64_t length = 0;
};

/// The selected indices of one dimension, neighbours joined.
std::vector<Run> runs_of(const Hyperslab& slab, std::int64_t extent) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (slab.count == std::numeric_limits<std::uint64_t>::max() ||
      slab.block == std::numeric_limits<std::uint64_t>::max())
    fail(Code::kUnsupported, "an unlimited selection", kPlainly);
  if (slab.start > kMost || slab.stride > kMost || slab.count > kMost || slab.block > kMost)
    fail(Code::kCorrupt, "a selection leaves its dataset");
  if (slab.count == 0 || slab.block == 0) return {};
  const bool dense = slab.count == 1 || slab.stride == slab.block;
  if (!dense && slab.stride < slab.block) fail(Code::kCorrupt, "a selection overlaps itself");
  const auto last = checked_mul(slab.count - 1, slab.stride);
  const auto length = last ? checked_add(*last, slab.block) : std::nullopt;
  const auto end = length ? checked_add(*length, slab.start) : std::nullopt;
  if (!end || *end > static_cast<std::uint64_t>(extent))
    fail(Code::kCorrupt, "a selection leaves its dataset");
  const auto start = static_cast<std::int64_t>(slab.start);
  if (dense) return {{start, static_cast<std::int64_t>(*length)}};
  if (slab.count > kMaxRuns) fail(Code::kUnsupported, "a selection of very many blocks", kPlainly);
  std::vector<Run> out;
  for (std::uint64_t i = 0; i < slab.count; ++i)
    out.push_back({start + static_cast<std::int64_t>(i * slab.stride),
                   static_cast<std::int64_t>(slab.block)});
  return out;
}

std::int64_t total(const std::vector<Run>& runs) {
  std::int64_t sum = 0;
  for (const Run& run : runs) sum += run.length;
  return sum;
}

std::vector<PairedRun> pair_up(const std::vector<Run>& target, const std::vector<Run>& source) {
  std::vector<PairedRun> out;
  std::size_t t = 0, s = 0;
  std::int64_t t_done = 0, s_done = 0;
  while (t < target.size() && s < source.size()) {
    const std::int64_t length = std::min(target[t].length - t_done, source[s].length - s_done);
    out.push_back({target[t].start + t_done, source[s].start + s_done, length});
    if ((t_done += length) == target[t].length) ++t, t_done = 0;
    if ((s_done += length) == source[s].length) ++s, s_done = 0;
  }
  return out;
}

std::vector<std::vector<Run>> all_runs(const Selection& selection, const Shape& shape) {
  std::vector<std::vector<Run>> out;
  if (selection.kind == SelectionKind::kAll) {
    for (int d = 0; d < shape.rank(); ++d)
      out.push_back(shape[d] > 0 ? std::vector<Run>{{0, shape[d]}} : std::vector<Run>{});
    return out;
  }
  if (selection.kind != SelectionKind::kRegular)
    fail(Code::kUnsupported, "a selection that is no regular hyperslab", kPlainly);
  if (selection.dims.size() != static_cast<std::size_t>(shape.rank()))
    fail(Code::kCorrupt, "a selection has another rank than its dataset");
  for (int d = 0; d < shape.rank(); ++d)
    out.push_back(runs_of(selection.dims[static_cast<std::size_t>(d)], shape[d]));
  return out;
}

/// Byte order apart, which each piece keeps for itself.
bool same_elements(const TypeInfo& a, const TypeInfo& b) {
  return a.type_class == b.type_class && a.size == b.size && a.mantissa_bits == b.mantissa_bits &&
         a.exponent_bits == b.exponent_bits && a.bias == b.bias;
}

/// Which dimensions of the target and the source go together; -1: one element is selected, at
/// `target_start` or `source_start`.
struct Correspondence {
  std::vector<std::vector<PairedRun>> pairs;
  std::vector<int> target_pair, source_pair;  // per dimension: index in pairs
  std::vector<std::int64_t> target_start, source_start;
  bool empty = false;
};

Correspondence correspond(const Mapping& mapping, const Shape& target, const Shape& source) {
  const auto t = all_runs(mapping.target, target);
  const auto s = all_runs(mapping.source, source);
  Correspondence out;
  const auto selects_none = [](const auto& runs) { return runs.empty(); };
  out.empty = std::ranges::any_of(t, selects_none) || std::ranges::any_of(s, selects_none);
  if (out.empty) return out;
  std::vector<std::size_t> wide_t, wide_s;
  const auto sort_out = [](const auto& runs, auto& wide, auto& pair, auto& start) {
    for (std::size_t d = 0; d < runs.size(); ++d) {
      const bool single = total(runs[d]) == 1;
      pair.push_back(single ? -1 : static_cast<int>(wide.size()));
      start.push_back(runs[d].front().start);
      if (!single) wide.push_back(d);
    }
  };
  sort_out(t, wide_t, out.target_pair, out.target_start);
  sort_out(s, wide_s, out.source_pair, out.source_start);
  bool fits = wide_t.size() == wide_s.size();
  std::uint64_t boxes = 1;
  for (std::size_t i = 0; fits && i < wide_t.size(); ++i) {
    fits = total(t[wide_t[i]]) == total(s[wide_s[i]]);
    out.pairs.push_back(pair_up(t[wide_t[i]], s[wide_s[i]]));
    boxes *= out.pairs.back().size();
    if (boxes > kMaxRuns) fail(Code::kUnsupported, "a selection of very many blocks", kPlainly);
  }
  if (!fits) fail(Code::kUnsupported, "a selection of another form than its source's", kPlainly);
  return out;
}

class VirtualResolver {
 public:
  explicit VirtualResolver(FileSet& files) : files_(files) {}

  std::vector<Piece> resolve(const std::string& file, const Dataset& dataset, DType dtype,
                             int depth) {
    if (depth > kMaxNesting) fail(Code::kCorrupt, "virtual datasets are nested too deeply");
    const Shape shape = Shape::checked(dataset.extents);
    (void)TensorSpec{dtype, shape}.size_bytes();
    std::vector<Piece> out;
    for (const Mapping& mapping : dataset.mappings)
      add_mapping(file, mapping, dataset.type, dtype, shape, depth, out);
    fill_rest(dataset, dtype, shape, out);
    return out;
  }

 private:
  std::vector<Piece> source_pieces(const std::string& path, const std::string& name,
                                   const TypeInfo& type, DType dtype, int depth, Shape& shape) {
    const DescribedFile& file = files_.get(path);
    const std::string inner = name.starts_with('/') ? name.substr(1) : name;
    const Dataset* source = file.report.find_dataset(inner);
    if (!source)
      fail(Code::kCorrupt,
           fmt::format("its source {} has no dataset \"{}\"", printable(path), printable(name)));
    shape = Shape::checked(source->extents);
    if (!same_elements(source->type, type))
      fail(Code::kUnsupported,
           fmt::format("its source {} holds other elements than it ({}); they are not converted",
                       printable(path), describe_type(source->type)));
    if (source->layout == LayoutKind::kExternal)
      fail(Code::kCorrupt, "its source keeps its bytes in an external file, which is refused");
    if (source->layout == LayoutKind::kVirtual) return resolve(path, *source, dtype, depth + 1);
    return files_.pieces(file, *source, dtype);
  }

  /// The mapping's file as a path in the folder.
  std::string path_of(const std::string& file, const std::string& named) const {
    if (named == ".") return file;
    bool inside = !named.empty() && named.front() != '/' && named.find('\0') == named.npos;
    std::string path;
    for (const std::string_view part : split(named, '/')) {
      if (part == ".") continue;
      inside = inside && !part.empty() && part != "..";
      path += (path.empty() ? "" : "/") + std::string(part);
    }
    if (!inside || path.empty())
      fail(
          Code::kCorrupt,
          fmt::format("its source \"{}\" lies outside of the checkpoint's folder and is not opened",
                      printable(named)));
    const std::size_t slash = file.rfind('/');
    if (slash != file.npos) path = file.substr(0, slash + 1) + path;
    if (const std::string why = files_.absence(path); !why.empty())
      fail(Code::kCorrupt, fmt::format("its source {}: {}", printable(path), why),
           "put the file back; fill values are never read in its place");
    return path;
  }

  void add_mapping(const std::string& file, const Mapping& mapping, const TypeInfo& type,
                   DType dtype, const Shape& shape, int depth, std::vector<Piece>& out) {
    const std::string path = path_of(file, mapping.file);
    Shape source_shape;
    const std::vector<Piece> source =
        source_pieces(path, mapping.dataset, type, dtype, depth, source_shape);
    const Correspondence c = correspond(mapping, shape, source_shape);
    if (c.empty) return;
    std::vector<std::size_t> at(c.pairs.size(), 0);
    while (true) {
      add_box(c, at, source, element_bytes(dtype), out);
      std::size_t d = at.size();
      while (d > 0 && ++at[d - 1] == c.pairs[d - 1].size()) at[--d] = 0;
      if (d == 0) return;
    }
  }

  /// One combination of runs: a box on either side.
  void add_box(const Correspondence& c, const std::vector<std::size_t>& at,
               const std::vector<Piece>& source, int es, std::vector<Piece>& out) {
    const auto side = [&](const std::vector<int>& pair, const std::vector<std::int64_t>& start,
                          std::int64_t PairedRun::*begin) {
      Box box;
      std::vector<std::int64_t> extents;
      for (std::size_t d = 0; d < pair.size(); ++d) {
        const auto p = static_cast<std::size_t>(std::max(pair[d], 0));
        const PairedRun* run = pair[d] < 0 ? nullptr : &c.pairs[p][at[p]];
        box.origin.push_back(run ? run->*begin : start[d]);
        extents.push_back(run ? run->length : 1);
      }
      box.shape = Shape(std::move(extents));
      return box;
    };
    const Box wanted = side(c.source_pair, c.source_start, &PairedRun::source);
    const Box target = side(c.target_pair, c.target_start, &PairedRun::target);
    spent_ += source.size();
    if (spent_ > kMaxPieces)
      fail(Code::kUnsupported, "the virtual dataset has too many mappings", kPlainly);
    for (const Piece& piece : source)
      if (const auto common = intersect(piece.box, wanted); common && !common->empty())
        out.push_back(move_over(c, cut(piece, *common, es), wanted, target));
  }

  /// A piece inside `wanted`, in the coordinates of `target`.
  static Piece move_over(const Correspondence& c, Piece piece, const Box& wanted,
                         const Box& target) {
    Box box = target;
    std::vector<std::int64_t> strides(target.origin.size(), 1);
    for (std::size_t t = 0; t < c.target_pair.size(); ++t) {
      if (c.target_pair[t] < 0) continue;
      const auto s = static_cast<std::size_t>(std::ranges::find(c.source_pair, c.target_pair[t]) -
                                              c.source_pair.begin());
      box.origin[t] += piece.box.origin[s] - wanted.origin[s];
      box.shape[static_cast<int>(t)] = piece.box.shape[static_cast<int>(s)];
      if (!piece.strides.empty()) strides[t] = piece.strides[s];
    }
    piece.strides = std::move(strides);
    piece.box = std::move(box);
    return piece;
  }

  static void fill_rest(const Dataset& dataset, DType dtype, const Shape& shape,
                        std::vector<Piece>& out) {
    std::vector<Chunk> chunks;
    for (const Piece& piece : out) chunks.push_back(Chunk::whole_of(piece.box));
    std::vector<Box> rest{Box::whole(shape)};
    if (shape.numel() > 0) {
      const CoverageReport report = check_coverage(shape, chunks);
      if (report.first_overlap || report.replicas > 1)
        fail(Code::kUnsupported, "two of its mappings write one element", kPlainly);
      if (report.complete) return;
      for (const Piece& piece : out) {
        std::vector<Box> left;
        for (const Box& box : rest) subtract(box, piece.box, left);
        rest = std::move(left);
        if (rest.size() > kMaxHoleBoxes)
          fail(Code::kUnsupported, "its mappings leave very many holes", kPlainly);
      }
    }
    for (Box& box : rest) {
      Piece piece;
      piece.kind = shape.numel() > 0 ? Source::Kind::kFill : Source::Kind::kInline;
      piece.strides = box.shape.strides();
      piece.box = std::move(box);
      if (shape.numel() > 0) piece.bytes = fill_element(dataset, dtype);
      out.push_back(std::move(piece));
    }
  }
  /// box without `hole`, appended as at most 2 * rank boxes.
  static void subtract(const Box& box, const Box& hole, std::vector<Box>& out) {
    const auto common = intersect(box, hole);
    if (!common || common->empty()) return out.push_back(box);
    Box rest = box;
    for (int d = 0; d < box.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      if (Box below = rest; common->begin(d) > rest.begin(d)) {
        below.shape[d] = common->begin(d) - rest.begin(d);
        out.push_back(below);
      }
      if (Box above = rest; common->end(d) < rest.end(d)) {
        above.origin[i] = common->end(d);
        above.shape[d] = rest.end(d) - common->end(d);
        out.push_back(above);
      }
      rest.origin[i] = common->begin(d);
      rest.shape[d] = common->shape[d];
    }
  }

  FileSet& files_;
  std::uint64_t spent_ = 0;
};

}  // namespace

std::vector<Piece> resolve_virtual(FileSet& files, const std::string& file, const Dataset& dataset,
                                   DType dtype) {
  return VirtualResolver(files).resolve(file, dataset, dtype, 0);
}

}  // namespace tessera::h5

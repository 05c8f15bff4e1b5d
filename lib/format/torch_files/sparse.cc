#include "lib/format/torch_files/sparse.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/cast.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lib/format/torch_files/archive_source.h"

namespace tessera {
namespace {

using Layout = ArchiveTensor::Layout;

[[noreturn]] void corrupt(std::string_view what) {
  fail(Code::kCorrupt, fmt::format("sparse tensor: {}", what));
}

void check_limit(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes > limit)
    fail(Code::kResourceExhausted,
         fmt::format("a sparse tensor takes {} when dense; the limit is {}", format_bytes(bytes),
                     format_bytes(limit)),
         "raise --mem-limit, or leave the tensor out (--exclude)");
}

/// Reads parts of one sparse tensor.
class PartReader {
 public:
  PartReader(const ByteWindow& window, const TorchArchive& archive, std::uint64_t limit,
             bool check_crc)
      : window_(window), archive_(archive), limit_(limit), check_crc_(check_crc) {}

  Bytes dense(const ArchiveTensor& part) const {
    if (part.flags != 0) fail(Code::kUnsupported, "sparse tensor: a part is a conj or neg view");
    const TensorSpec spec{part.dtype, part.shape};
    const auto size = static_cast<std::uint64_t>(spec.size_bytes());
    const ArchiveStorage& storage = archive_.storages[part.storage];
    check_limit(size, limit_);
    check_limit(storage.size_bytes, limit_);
    Bytes record = window_.read(storage.offset, storage.size_bytes);
    if (check_crc_) check_storage(storage, record);
    if (archive_.big_endian) swap_bytes(record, swap_unit_bytes(part.dtype));
    Bytes out(size);
    if (size == 0) return out;
    const int item = element_bytes(part.dtype);
    copy_region(part.shape, item, record.data() + part.storage_offset * item, part.strides,
                out.data(), part.shape.strides());
    return out;
  }
  std::vector<std::int64_t> indices(const ArchiveTensor& part) const {
    const Bytes raw = dense(part);
    const auto numel = static_cast<std::size_t>(part.shape.numel());
    std::vector<std::int64_t> out(numel);
    if (part.dtype == DType::kInt64)
      for (std::size_t i = 0; i < numel; ++i) out[i] = load_le<std::int64_t>(raw.data() + 8 * i);
    else if (part.dtype == DType::kInt32)
      for (std::size_t i = 0; i < numel; ++i) out[i] = load_le<std::int32_t>(raw.data() + 4 * i);
    else
      corrupt(fmt::format("indices of dtype {}", torch_name(part.dtype)));
    return out;
  }

 private:
  const ByteWindow& window_;
  const TorchArchive& archive_;
  std::uint64_t limit_;
  bool check_crc_;
};

/// destination += source for one element, in its own arithmetic.
void add_element(DType dtype, std::byte* destination, const std::byte* source) {
  const auto add = [&](auto zero, std::size_t at) {
    using T = decltype(zero);
    store_le<T>(destination + at,
                static_cast<T>(load_le<T>(destination + at) + load_le<T>(source + at)));
  };
  switch (dtype) {
    case DType::kBool:
      destination[0] |= source[0];
      return;
    case DType::kUInt8:
    case DType::kInt8:
      return add(std::uint8_t{}, 0);
    case DType::kUInt16:
    case DType::kInt16:
      return add(std::uint16_t{}, 0);
    case DType::kUInt32:
    case DType::kInt32:
      return add(std::uint32_t{}, 0);
    case DType::kUInt64:
    case DType::kInt64:
      return add(std::uint64_t{}, 0);
    case DType::kFloat32:
      return add(float{}, 0);
    case DType::kFloat64:
      return add(double{}, 0);
    case DType::kComplex64:
      add(float{}, 0);
      return add(float{}, 4);
    case DType::kComplex128:
      add(double{}, 0);
      return add(double{}, 8);
    case DType::kFloat16:
    case DType::kBFloat16: {
      double a = 0, b = 0;
      to_double(dtype, {destination, 2}, {&a, 1});
      to_double(dtype, {source, 2}, {&b, 1});
      const double sum = a + b;
      cast_elements(DType::kFloat64, {reinterpret_cast<const std::byte*>(&sum), sizeof sum}, dtype,
                    {destination, 2});
      return;
    }
    default:
      fail(Code::kUnsupported,
           fmt::format("an uncoalesced sparse tensor of {}", torch_name(dtype)));
  }
}

class Densifier {
 public:
  Densifier(const TorchArchive& archive, const ArchiveTensor& sparse, const PartReader& reader,
            std::uint64_t limit)
      : archive_(archive),
        sparse_(sparse),
        reader_(reader),
        values_(part(sparse.parts.size() - 1)) {
    if (is_sub_byte(sparse.dtype)) fail(Code::kUnsupported, "a sparse tensor of a packed dtype");
    const auto size =
        static_cast<std::uint64_t>(TensorSpec{sparse.dtype, sparse.shape}.size_bytes());
    check_limit(size, limit);
    out_.resize(size);
    item_ = static_cast<std::size_t>(element_bytes(sparse.dtype));
  }

  Bytes run() {
    raw_ = reader_.dense(values_);
    if (sparse_.layout == Layout::kSparseCoo)
      coo();
    else
      compressed();
    return std::move(out_);
  }

 private:
  const ArchiveTensor& part(std::size_t i) const { return archive_.tensors[sparse_.parts[i]]; }

  /// indices [sparse dims, nnz], values [nnz, dense dims..].
  void coo() {
    const ArchiveTensor& where = part(0);
    if (where.shape.rank() != 2 || where.shape[0] > sparse_.shape.rank() ||
        values_.shape.rank() < 1 || values_.shape[0] != where.shape[1])
      corrupt("indices and values disagree");
    const int dims = static_cast<int>(where.shape[0]);
    check_tail(1, dims);
    const std::vector<std::int64_t> indices = reader_.indices(where);
    const std::int64_t nnz = where.shape[1];
    const std::int64_t run = values_.shape.inner_numel(0);
    std::vector<bool> seen(static_cast<std::size_t>(run == 0 ? 0 : sparse_.shape.numel() / run));
    for (std::int64_t k = 0; k < nnz; ++k) {
      std::int64_t at = 0;
      for (int d = 0; d < dims; ++d) {
        const std::int64_t index = indices[static_cast<std::size_t>(d * nnz + k)];
        if (index < 0 || index >= sparse_.shape[d])
          corrupt(fmt::format("index {} in dim {} of {}", index, d, sparse_.shape[d]));
        at = at * sparse_.shape[d] + index;
      }
      if (run == 0) continue;
      const bool repeated = seen[static_cast<std::size_t>(at)];
      seen[static_cast<std::size_t>(at)] = true;
      place(at * run, k * run, run, repeated);
    }
  }
  /// The dims of values after `from` equal those of the tensor after `dims`.
  void check_tail(int from, int dims) const {
    const auto tail = values_.shape.extents().subspan(static_cast<std::size_t>(from));
    const auto want = sparse_.shape.extents().subspan(static_cast<std::size_t>(dims));
    if (!std::equal(tail.begin(), tail.end(), want.begin(), want.end()))
      corrupt("values have another shape");
  }

  void place(std::int64_t to, std::int64_t from, std::int64_t run, bool add) {
    std::byte* destination = out_.data() + static_cast<std::size_t>(to) * item_;
    const std::byte* source = raw_.data() + static_cast<std::size_t>(from) * item_;
    if (!add) {
      std::copy_n(source, static_cast<std::size_t>(run) * item_, destination);
      return;
    }
    for (std::int64_t i = 0; i < run; ++i)
      add_element(sparse_.dtype, destination + static_cast<std::size_t>(i) * item_,
                  source + static_cast<std::size_t>(i) * item_);
  }

  /// Batches of: compressed [n + 1], plain [nnz], values [nnz, (block rows, block columns), dense
  /// dims..].
  struct Compressed {
    bool by_row = true;
    int batch_dims = 0;
    std::int64_t batches = 1, nnz = 0, block_rows = 1, block_columns = 1, lines = 0, across = 0;
    std::int64_t rows = 0, columns = 0, run = 1;
  };
  Compressed shape_of() const {
    const bool blocked =
        sparse_.layout == Layout::kSparseBsr || sparse_.layout == Layout::kSparseBsc;
    Compressed c;
    c.by_row = sparse_.layout == Layout::kSparseCsr || sparse_.layout == Layout::kSparseBsr;
    c.batch_dims = part(0).shape.rank() - 1;
    const int b = c.batch_dims, inner = b + 1 + (blocked ? 2 : 0);
    if (b < 0 || part(1).shape.rank() != b + 1 || values_.shape.rank() < inner ||
        sparse_.shape.rank() < b + 2)
      corrupt("its parts disagree in rank");
    for (int d = 0; d < b; ++d) {
      if (part(0).shape[d] != sparse_.shape[d] || part(1).shape[d] != sparse_.shape[d] ||
          values_.shape[d] != sparse_.shape[d])
        corrupt("its parts disagree in batches");
      c.batches *= sparse_.shape[d];
    }
    c.nnz = part(1).shape[b];
    if (values_.shape[b] != c.nnz) corrupt("indices and values disagree");
    if (blocked) {
      c.block_rows = values_.shape[b + 1];
      c.block_columns = values_.shape[b + 2];
      if (c.block_rows < 1 || c.block_columns < 1) corrupt("empty blocks");
    }
    check_tail(inner, b + 2);
    c.rows = sparse_.shape[b];
    c.columns = sparse_.shape[b + 1];
    if (c.rows % c.block_rows != 0 || c.columns % c.block_columns != 0)
      corrupt("blocks do not tile the tensor");
    c.lines = c.by_row ? c.rows / c.block_rows : c.columns / c.block_columns;
    c.across = c.by_row ? c.columns / c.block_columns : c.rows / c.block_rows;
    if (part(0).shape[b] != c.lines + 1) corrupt("compressed indices have another length");
    for (int d = b + 2; d < sparse_.shape.rank(); ++d) c.run *= sparse_.shape[d];
    return c;
  }
  void compressed() {
    const Compressed c = shape_of();
    const std::vector<std::int64_t> starts = reader_.indices(part(0)),
                                    plain = reader_.indices(part(1));
    for (std::int64_t batch = 0; batch < c.batches; ++batch) {
      const std::int64_t* line = starts.data() + batch * (c.lines + 1);
      for (std::int64_t i = 0; i < c.lines; ++i) {
        if (line[i] < 0 || line[i] > line[i + 1] || line[i + 1] > c.nnz)
          corrupt("compressed indices out of order");
        for (std::int64_t k = line[i]; k < line[i + 1]; ++k) {
          const std::int64_t entry = batch * c.nnz + k;
          const std::int64_t j = plain[static_cast<std::size_t>(entry)];
          if (j < 0 || j >= c.across) corrupt(fmt::format("index {} of {}", j, c.across));
          block(c, batch, c.by_row ? i : j, c.by_row ? j : i, entry);
        }
      }
    }
  }
  void block(const Compressed& c, std::int64_t batch, std::int64_t row, std::int64_t column,
             std::int64_t entry) {
    if (c.run == 0) return;
    for (std::int64_t x = 0; x < c.block_rows; ++x) {
      const std::int64_t r = row * c.block_rows + x;
      const std::int64_t to = ((batch * c.rows + r) * c.columns + column * c.block_columns) * c.run;
      place(to, (entry * c.block_rows + x) * c.block_columns * c.run, c.block_columns * c.run,
            false);
    }
  }

  const TorchArchive& archive_;
  const ArchiveTensor& sparse_;
  const PartReader& reader_;
  const ArchiveTensor& values_;
  std::size_t item_ = 1;
  Bytes raw_, out_;
};

}  // namespace

Bytes densify(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index,
              std::uint64_t memory_limit_bytes, bool check_crc) {
  const PartReader reader(window, archive, memory_limit_bytes, check_crc);
  return Densifier(archive, archive.tensors[index], reader, memory_limit_bytes).run();
}

}  // namespace tessera

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <optional>

#include "lib/encoding/torch_pickle.h"
#include "lib/encoding/zip_layout.h"

namespace tessera {
namespace {

constexpr std::string_view kByteOrder = "little";
constexpr std::string_view kVersion = "3\n";
// Records before the first storage: data.pkl and byteorder.
constexpr std::size_t kFirstStorage = 2;

void check_dtype(const ArchiveWriteTensor& tensor) {
  const DType dtype = tensor.spec.dtype;
  const bool has_torch_name =
      dtype != DType::kFloat4 && dtype != DType::kFloat6E2M3 && dtype != DType::kFloat6E3M2;
  if (!has_torch_name || dtype == DType::kQUInt4x2 || dtype == DType::kQUInt2x4)
    fail(Code::kUnsupported,
         fmt::format("torch.save cannot hold tensors of dtype {}", torch_name(dtype)));
  if (is_quantized(dtype) != (tensor.quant != nullptr))
    fail(Code::kUnsupported, fmt::format("a {} tensor {} quantizer parameters", torch_name(dtype),
                                         tensor.quant ? "with" : "without"));
}

/// Bytes of every storage. Tensors that share one must agree on it.
std::vector<std::uint64_t> storage_sizes(const std::vector<ArchiveWriteTensor>& tensors) {
  std::vector<std::uint64_t> sizes;
  std::vector<DType> dtypes;
  for (const ArchiveWriteTensor& tensor : tensors) {
    check_dtype(tensor);
    const auto bytes = static_cast<std::uint64_t>(tensor.spec.size_bytes());
    if (tensor.storage > sizes.size())
      fail(Code::kInvalidArgument, "storages are not numbered in the order of their first use");
    if (tensor.storage == sizes.size()) {
      sizes.push_back(bytes);
      dtypes.push_back(tensor.spec.dtype);
    }
    if (sizes[tensor.storage] != bytes || dtypes[tensor.storage] != tensor.spec.dtype)
      fail(Code::kInvalidArgument,
           fmt::format("two tensors disagree on storage {}", tensor.storage));
  }
  return sizes;
}

void append(Bytes& out, ByteView bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

}  // namespace

struct TorchArchiveLayout::Rep {
  ZipLayout zip;
  Bytes pickle;
  std::size_t storage_count = 0;
  std::vector<Piece> pieces;

  std::size_t version_record() const { return kFirstStorage + storage_count; }
  void place(const std::string& prefix, const std::vector<std::uint64_t>& sizes);
  /// A record whose bytes are known now.
  void append_record(std::size_t record, ByteView bytes, Bytes& out) const;
};

void TorchArchiveLayout::Rep::place(const std::string& prefix,
                                    const std::vector<std::uint64_t>& sizes) {
  zip.add(prefix + "/data.pkl", pickle.size());
  zip.add(prefix + "/byteorder", kByteOrder.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    zip.add(fmt::format("{}/data/{}", prefix, i), sizes[i]);
  zip.add(prefix + "/version", kVersion.size());

  const auto& records = zip.records();
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t data = records[kFirstStorage + i].data_offset;
    pieces.push_back({i == 0 ? Piece::Kind::kLiteral : Piece::Kind::kDeferred, at, data - at, 0});
    pieces.push_back({Piece::Kind::kStorage, data, sizes[i], static_cast<std::uint32_t>(i)});
    at = data + sizes[i];
  }
  if (sizes.empty()) {
    at = records[version_record()].header_offset;
    pieces.push_back({Piece::Kind::kLiteral, 0, at, 0});
  }
  pieces.push_back({Piece::Kind::kDeferred, at, zip.size_bytes() - at, 0});
}

void TorchArchiveLayout::Rep::append_record(std::size_t record, ByteView bytes, Bytes& out) const {
  zip.append_header(record, out);
  append(out, bytes);
  zip.append_descriptor(record, crc32(0, bytes), out);
}

TorchArchiveLayout::TorchArchiveLayout(const Value& root, std::vector<ArchiveWriteTensor> tensors,
                                       std::string prefix) {
  if (prefix.empty() || prefix.find('/') != std::string::npos)
    fail(Code::kInvalidArgument, fmt::format("\"{}\" cannot name an archive's top folder", prefix));
  auto rep = std::make_shared<Rep>();
  const std::vector<std::uint64_t> sizes = storage_sizes(tensors);
  rep->pickle = write_torch_pickle(root, tensors);
  rep->storage_count = sizes.size();
  rep->place(prefix, sizes);
  rep_ = std::move(rep);
}

const std::vector<TorchArchiveLayout::Piece>& TorchArchiveLayout::pieces() const {
  return rep_->pieces;
}

std::uint64_t TorchArchiveLayout::size_bytes() const { return rep_->zip.size_bytes(); }

Bytes TorchArchiveLayout::render(std::size_t piece,
                                 const std::function<std::uint32_t(std::uint32_t)>& crc) const {
  const Rep& r = *rep_;
  TESSERA_CHECK(piece < r.pieces.size() && r.pieces[piece].kind != Piece::Kind::kStorage);
  const auto storage_crc = [&](std::size_t storage) {
    const bool empty = r.zip.records()[kFirstStorage + storage].size_bytes == 0;
    return empty ? 0 : crc(static_cast<std::uint32_t>(storage));
  };
  Bytes out;
  out.reserve(r.pieces[piece].length);
  // Pieces alternate: what stands before storage k is piece 2k.
  const std::size_t next_storage = piece / 2;
  const bool is_last = piece + 1 == r.pieces.size();
  if (piece == 0) {
    r.append_record(0, r.pickle, out);
    r.append_record(1, as_bytes(kByteOrder), out);
  } else if (r.storage_count > 0) {
    const std::size_t done = next_storage - 1;
    r.zip.append_descriptor(kFirstStorage + done, storage_crc(done), out);
  }
  if (!is_last) {
    if (r.storage_count > 0) r.zip.append_header(kFirstStorage + next_storage, out);
  } else {
    r.append_record(r.version_record(), as_bytes(kVersion), out);
    r.zip.append_directory(
        [&](std::size_t record) {
          if (record == 0) return crc32(0, r.pickle);
          if (record == 1) return crc32(0, as_bytes(kByteOrder));
          if (record == r.version_record()) return crc32(0, as_bytes(kVersion));
          return storage_crc(record - kFirstStorage);
        },
        out);
  }
  TESSERA_CHECK(out.size() == r.pieces[piece].length);
  return out;
}

}  // namespace tessera

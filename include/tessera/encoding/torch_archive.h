#pragma once
// Torch archive: what torch.save writes. Zip form (1.6 and later) and legacy stream form; also the items inside DCP files.
//
//   root      the saved object; every tensor in it is Value::tensor(i), i an index in `tensors`
//   tensors   views: dtype, sizes, strides, offset into a storage, conj / neg / quantization / sparse parts
//   storages  records of bytes: where they lie, how long, their CRC
//
// Opening reads the directory and data.pkl (legacy: the pickles and, seeking over the data, the storage headers); no storage byte.
// TorchScript archives and pre-release containers are kUnsupported by name. A root object of an unknown class is kUnsupported naming the
// class, unless ArchiveOptions::allow_opaque_root. Modules of torch.nn are read as their state_dict() where
// ArchiveOptions::modules_as_state asks for it.
#include <tessera/encoding/byte_window.h>
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct ArchiveStorage {
  std::string key;  // "0", or an address in legacy files
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;         // window-relative start of the bytes; valid once located
  std::uint64_t header_offset = 0;  // zip: window-relative local header
  std::uint32_t crc32 = 0;
  bool has_crc = false;
  bool located = false;
};

struct ArchiveTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::int64_t> strides;  // elements; >= 0, checked to stay inside the storage
  std::int64_t storage_offset = 0;    // elements
  std::uint32_t storage = 0;          // index in TorchArchive::storages
  std::uint8_t flags = 0;             // Source::kConj | Source::kNeg
  bool requires_grad = false;
  bool is_parameter = false;
  std::int32_t quant = -1;  // index in TorchArchive::quant
  enum class Layout : std::uint8_t {
    kStrided,
    kSparseCoo,
    kSparseCsr,
    kSparseCsc,
    kSparseBsr,
    kSparseBsc,
    kMeta
  } layout = Layout::kStrided;
  /// Sparse: component tensors (coo: indices, values; csr, csc: compressed, plain, values).
  std::vector<std::uint32_t> parts;
};

struct TorchArchive {
  bool legacy = false;
  bool big_endian = false;
  std::string prefix;  // zip: "archive", the file's stem, ...
  Value root;
  std::vector<ArchiveTensor> tensors;
  std::vector<ArchiveStorage> storages;
  std::vector<QuantParams> quant;
  std::vector<GlobalUse> globals;
  std::vector<Note> notes;
  /// What modules hold that their state_dict() does not. Named from the root.
  std::vector<LeftOut> left_out;
};

struct ArchiveOptions {
  bool collect_denied = false;
  bool allow_opaque_root = false;
  bool modules_as_state = false;
  bool locate = false;  // locate_storages() at once, sharing the bytes that were read (DCP items)
  std::uint64_t pickle_limit_bytes = 0;  // as ReadOptions
};

TorchArchive open_torch_archive(const ByteWindow& window, const ArchiveOptions& options = {});

/// Fills ArchiveStorage::offset of every storage of a zip archive by reading local headers, checking them against the directory
/// (name, method stored, sizes) and that records do not overlap.
void locate_storages(const ByteWindow& window, TorchArchive& archive);

/// Whether `text` stands in the pickle of an archive: cheap, as nothing is decoded. Legacy streams, whose pickles have no directory, are
/// not searched: true. Throws as open_torch_archive() does for a damaged container.
bool may_mention(const ByteWindow& window, std::string_view text);

/// "PK\x03\x04" or the legacy magic pickle at the front: could this be a torch archive? Reads at most 64 bytes.
bool looks_like_torch_archive(const ByteWindow& window);

}  // namespace tessera

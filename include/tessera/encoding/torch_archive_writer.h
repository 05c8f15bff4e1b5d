#pragma once
// Layout of a torch.save zip archive, to the byte, before any tensor byte is known.
//
//   piece 0            literal: data.pkl and the headers up to the first storage's first byte
//   then, per storage  the storage's bytes, and a deferred piece (its descriptor, the next header)
//   last               deferred: remaining records, central directory (needs every storage's CRC),
//                      zip64 end, end
//
// Records and order as PyTorch 2.1+ writes them (data.pkl, byteorder, data/<k>, version,
// .data/serialization_id left out), protocol 2, so that torch.load(weights_only=True) of 1.13 to
// 2.13 reads it; 64-byte alignment relative to the archive's start. Pure: the same input gives the
// same bytes. Storage bytes are dense row-major little-endian tensors.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// A tensor of the archive: its spec and which storage it reads (tied tensors name the same one).
struct ArchiveWriteTensor {
  TensorSpec spec;
  std::uint32_t storage = 0;  // 0, 1, ... in order of first use
  bool is_parameter = false;
  bool requires_grad = false;
  const struct QuantParams* quant = nullptr;
};

class TorchArchiveLayout {
 public:
  /// `root`: Value::tensor(i) means tensors[i]. `prefix`: "archive" for streams and items, the file's stem for files.
  /// Throws kUnsupported for a value that pickle cannot hold here.
  TorchArchiveLayout(const Value& root, std::vector<ArchiveWriteTensor> tensors,
                     std::string prefix);

  struct Piece {
    enum class Kind : std::uint8_t { kLiteral, kStorage, kDeferred } kind;
    std::uint64_t offset;  // in the archive
    std::uint64_t length;
    std::uint32_t storage;  // kStorage
  };
  const std::vector<Piece>& pieces() const;
  std::uint64_t size_bytes() const;
  /// Bytes of a literal or deferred piece. `crc(storage)`: CRC-32 of that storage's bytes.
  Bytes render(std::size_t piece,
               const std::function<std::uint32_t(std::uint32_t storage)>& crc) const;

 private:
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

}  // namespace tessera

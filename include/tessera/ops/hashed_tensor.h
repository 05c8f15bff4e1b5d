#pragma once
// The content of tensors as SHA-256: what a seal records, hash prints and diff compares. The lines
// and the root over them are described in hash.h.
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The quantizer of a tensor: one scale and zero point, or one per channel along an axis.
struct HashedQuantizer {
  std::string scheme;  // "per_tensor_affine", "per_channel_affine", ...
  double scale = 0;
  std::int64_t zero_point = 0;
  std::int64_t axis = 0;
  std::string scales;  // per channel: SHA-256 (hex) of the canonical text of all; "" = one scale
  std::string zero_points;

  bool is_per_channel() const { return !scales.empty(); }
  /// The field of root's line: "per_tensor_affine scale=3fb999999999999a zero_point=0" (the bits of
  /// the scale), "per_channel_affine axis=0 scales=<hex> zero_points=<hex>".
  std::string text() const;
  bool operator==(const HashedQuantizer& other) const { return text() == other.text(); }
};

struct HashedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string sha256;  // hex
  std::optional<HashedQuantizer> quantizer = std::nullopt;
};

/// SHA-256 (hex) of each of `tensors` (located leaves or embedded ones), in their order.
std::vector<std::string> hash_tensors(const Manifest& manifest, const Directory& directory,
                                      const std::vector<std::uint32_t>& tensors,
                                      const TransferOptions& transfer);

/// "dtype \t shape \t sha256" and, if it is quantized, "\t quantizer"; pure.
std::string content_text(const HashedTensor& tensor);
/// Root over hashed tensors; pure.
std::string content_root(const std::vector<HashedTensor>& tensors);
/// The same without quantizers.
std::string content_root_v1(std::vector<HashedTensor> tensors);

}  // namespace tessera

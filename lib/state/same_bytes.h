#pragma once
// Whether chunks, or tensors, of a manifest hold the same bytes: what is known from where they lie
// and from checksums of their records, without reading any. Tied weights, copies of a step that
// ranks share, masters that are the weights. Pure.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tessera {

/// One place read in one way, or the same run of two records with one length and CRC-32: true.
/// Whole records whose lengths or CRC-32s differ: false. nullopt: their bytes must be compared.
std::optional<bool> known_equal(const Manifest& manifest, const Source& a, const Source& b);

/// The same stored elements in the same places, whatever dtype they become.
bool same_stored(const Manifest& manifest, std::uint32_t a, std::uint32_t b);
/// ... and the same tensor.
bool same_bytes(const Manifest& manifest, std::uint32_t a, std::uint32_t b);

/// Compares values with tensors inside by what these hold, as known_equal() knows it.
class EqualTensors {
 public:
  explicit EqualTensors(const Manifest& manifest) : manifest_(manifest) {}
  /// The value with one number for all tensors that are equal: values are equal where these are.
  Value operator()(const Value& value);

 private:
  std::string content_of(std::uint32_t tensor) const;

  const Manifest& manifest_;
  std::map<std::string, std::uint32_t> first_;  // by content
};

}  // namespace tessera

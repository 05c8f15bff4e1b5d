#pragma once
// What is known of a tensor's bytes without reading them: SHA-256 from the seal, CRC-32 of archive
// records, CRC-32 of the MiB blocks of a sealed file that it lies in.
#include <tessera/ops/seal.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <map>
#include <string_view>

namespace tessera {

/// What `exact` was made of; keys of different kinds say nothing of each other.
enum class KeyKind : std::uint8_t {
  kNone,
  kSha256,   // by the seal
  kRecord,   // CRC-32 of the one record that the tensor is
  kRecords,  // of several: how the tensor was cut is in the key, too
  kDigest,   // of elements that `deep` read
};

/// 0 = not known.
struct ContentKey {
  KeyKind kind = KeyKind::kNone;
  std::uint64_t exact = 0;     // of this tensor's bytes alone
  std::uint64_t around = 0;    // of bytes that it lies in with others
  std::uint64_t interior = 0;  // of blocks that are all its own
};

enum class ContentChange : std::uint8_t { kSame, kChanged, kUnknown };
ContentChange compare_content(const ContentKey& before, const ContentKey& after);

std::uint64_t mix_key(std::uint64_t key, std::uint64_t value);
std::uint64_t mix_key(std::uint64_t key, std::string_view text);

/// Keys of one checkpoint's tensors. `seal` may be null; both must outlive this.
class ContentKeys {
 public:
  ContentKeys(const Manifest& manifest, const Seal* seal);
  ContentKey of(const StoredTensor& tensor) const;

 private:
  ContentKey by_place(const StoredTensor& tensor) const;

  const Manifest& manifest_;
  std::map<std::string_view, const HashedTensor*> hashed_;
  std::map<std::string_view, const SealedFile*> sealed_;
};

}  // namespace tessera

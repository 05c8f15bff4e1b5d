#pragma once
// SHA-256 of two streams side by side in one thread. CPUs with instructions for it gain by that:
// each of their steps waits for the one before, and two streams wait together. Others compute one
// stream after the other, in plain C++.
#include <tessera/base/bytes.h>
#include <tessera/storage/checksum.h>

#include <array>
#include <cstdint>

namespace tessera {

bool has_sha_instructions();

/// Continues `state` (FIPS 180-4: eight words) over whole blocks of 64 bytes without the
/// instructions, whatever the CPU has.
void sha256_blocks_plain(std::array<std::uint32_t, 8>& state, ByteView data);

/// One stream. Copies are independent.
class Sha256Lane {
 public:
  /// Continues both, as far as they go along together at once.
  static void update(Sha256Lane& a, ByteView more_of_a, Sha256Lane& b, ByteView more_of_b);
  void update(ByteView data);
  Sha256Digest finish();

 private:
  static constexpr std::size_t kBlockBytes = 64;

  /// Takes from the front of `data` what completes a block begun before.
  void complete_block(ByteView& data);
  /// Keeps less than a block.
  void keep(ByteView rest);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint64_t length_bytes_ = 0;
  std::array<std::byte, kBlockBytes> begun_ = {};  // length_bytes_ % kBlockBytes of it
};

}  // namespace tessera

#pragma once
// CRC-32 (zip polynomial, the one checksum everywhere) and SHA-256 (content hashes).
#include <tessera/base/bytes.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// Continues `crc` (0 to start) over `data`. Hardware speed (ISA-L).
std::uint32_t crc32(std::uint32_t crc, ByteView data);
/// memcpy(to, from) and CRC of what was copied, in one pass over cache-sized blocks.
std::uint32_t copy_crc32(std::uint32_t crc, std::byte* to, ByteView from);
/// CRC of A followed by B from their CRCs and B's length. O(log length).
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

using Sha256Digest = std::array<std::uint8_t, 32>;
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(ByteView data);
  Sha256Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
Sha256Digest sha256(ByteView data);
std::string hex(const Sha256Digest& digest);

/// CRC of a byte range.
struct CrcRun {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
};

/// CRCs of disjoint byte ranges of one record, in any order and from several threads, folded into
/// the record's CRC once the ranges cover it. Memory: one entry per maximal run seen so far.
class CrcFold {
 public:
  explicit CrcFold(std::uint64_t length_bytes);
  ~CrcFold();
  void add(std::uint64_t offset, std::uint64_t length, std::uint32_t crc);
  bool complete() const;
  std::uint32_t value() const;       // precondition: complete()
  std::vector<CrcRun> runs() const;  // what was added, neighbours joined, ascending

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

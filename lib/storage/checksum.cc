// SHA256_Init and its like: see Sha256::Impl.
#define OPENSSL_SUPPRESS_DEPRECATED
#ifdef TESSERA_WITH_ISAL
#include <isa-l/crc.h>
#endif
#ifdef TESSERA_WITH_OPENSSL
#include <openssl/sha.h>
#endif
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "lib/base/cpu.h"
#include "lib/storage/sha256_lanes.h"

namespace tessera {

namespace {

// Small enough that what was just copied is still in the first-level cache when it is summed.
constexpr std::size_t kCopyBlockBytes = 16 * 1024;

#if defined(TESSERA_WITH_ISAL) && defined(__x86_64__)
// ISA-L leaves the upper halves of the vector registers in use: what works on the lower ones
// afterwards (SHA-256, our loops) then runs at two thirds of its speed.
__attribute__((target("avx"))) void empty_upper_halves() { __builtin_ia32_vzeroupper(); }
#endif

}  // namespace

std::uint32_t crc32(std::uint32_t crc, ByteView data) {
#ifdef TESSERA_WITH_ISAL
  crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(data.data()), data.size());
#if defined(__x86_64__)
  if (cpu_features().avx) empty_upper_halves();
#endif
  return crc;
#else
  // zlib-ng, which stands in for zlib where ISA-L is absent, is as fast.
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const unsigned char*>(data.data()), data.size()));
#endif
}

std::uint32_t copy_crc32(std::uint32_t crc, std::byte* to, ByteView from) {
  for (std::size_t at = 0; at < from.size(); at += kCopyBlockBytes) {
    const std::size_t length = std::min(kCopyBlockBytes, from.size() - at);
    std::memcpy(to + at, from.data() + at, length);
    crc = crc32(crc, {to + at, length});
  }
  return crc;
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) {
  static_assert(sizeof(z_off_t) == 8, "lengths of records need 64 bits");
  return static_cast<std::uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(length_b)));
}

// ---- SHA-256

#ifdef TESSERA_WITH_OPENSSL

// The calls below EVP: those need no memory, no lock and no set-up of the library. EVP takes all
// three at its first use, and where memory ends there it waits for a lock that it holds itself.
struct Sha256::Impl {
  SHA256_CTX context;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  TESSERA_CHECK(SHA256_Init(&impl_->context) == 1);
}

void Sha256::update(ByteView data) {
  TESSERA_CHECK(SHA256_Update(&impl_->context, data.data(), data.size()) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  TESSERA_CHECK(SHA256_Final(digest.data(), &impl_->context) == 1);
  return digest;
}

#else

struct Sha256::Impl {
  Sha256Lane lane;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
void Sha256::update(ByteView data) { impl_->lane.update(data); }
Sha256Digest Sha256::finish() { return impl_->lane.finish(); }

#endif

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256Digest sha256(ByteView data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

std::string hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(digest.size() * 2);
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// ---- CrcFold

struct CrcFold::Impl {
  struct Run {
    std::uint64_t length;
    std::uint32_t crc;
  };
  std::uint64_t length_bytes;
  mutable std::mutex mutex;
  std::map<std::uint64_t, Run> runs;  // by offset; disjoint and never adjacent
};

CrcFold::CrcFold(std::uint64_t length_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->length_bytes = length_bytes;
}
CrcFold::~CrcFold() = default;

void CrcFold::add(std::uint64_t offset, std::uint64_t length, std::uint32_t crc) {
  TESSERA_CHECK(offset <= impl_->length_bytes && length <= impl_->length_bytes - offset);
  if (length == 0) return;
  const std::lock_guard lock(impl_->mutex);
  auto& runs = impl_->runs;
  const auto next = runs.lower_bound(offset);
  TESSERA_CHECK(next == runs.end() || next->first >= offset + length);
  Impl::Run run{length, crc};
  if (next != runs.end() && next->first == offset + length) {
    run.crc = crc32_combine(run.crc, next->second.crc, next->second.length);
    run.length += next->second.length;
  }
  const bool joins_next = run.length != length;
  if (next != runs.begin()) {
    const auto before = std::prev(next);
    const std::uint64_t before_end = before->first + before->second.length;
    TESSERA_CHECK(before_end <= offset);
    if (before_end == offset) {
      before->second.crc = crc32_combine(before->second.crc, run.crc, run.length);
      before->second.length += run.length;
      if (joins_next) runs.erase(next);
      return;
    }
  }
  const auto hint = joins_next ? runs.erase(next) : next;
  runs.emplace_hint(hint, offset, run);
}

bool CrcFold::complete() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->length_bytes == 0) return true;
  return impl_->runs.size() == 1 && impl_->runs.begin()->second.length == impl_->length_bytes;
}

std::vector<CrcRun> CrcFold::runs() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<CrcRun> out;
  for (const auto& [offset, run] : impl_->runs) out.push_back({offset, run.length, run.crc});
  return out;
}

std::uint32_t CrcFold::value() const {
  TESSERA_CHECK(complete());
  const std::lock_guard lock(impl_->mutex);
  return impl_->length_bytes == 0 ? 0 : impl_->runs.begin()->second.crc;
}

}  // namespace tessera

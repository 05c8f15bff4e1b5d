#include "lib/storage/sha256_lanes.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/base/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {
namespace {

struct LaneBlocks {
  std::uint32_t* state;
  const std::byte* data;
};

alignas(16) constexpr std::uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// For CPUs without the instructions. Unrolled, so that the eight variables of FIPS 180-4 change
/// their names instead of moving (three times as fast), and w holds the last 16 words alone.
void compress_plain(std::uint32_t* state, const std::byte* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    std::uint32_t w[16], v[8];
    std::copy_n(state, 8, v);
#pragma GCC unroll 4
    for (int begin = 0; begin < 64; begin += 16) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (begin == 0) {
          std::memcpy(&w[i], data + 4 * i, 4);
          w[i] = __builtin_bswap32(w[i]);
        } else {
          const std::uint32_t early = w[(i + 1) % 16], late = w[(i + 14) % 16];
          w[i] += (std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3)) + w[(i + 9) % 16] +
                  (std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10));
        }
        const auto at = [&v, i](int letter) -> std::uint32_t& { return v[(letter + 16 - i) % 8]; };
        const std::uint32_t a = at(0), b = at(1), c = at(2), e = at(4), f = at(5), g = at(6);
        const std::uint32_t sum = at(7) + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  (g ^ (e & (f ^ g))) + kRoundConstants[begin + i] + w[i];
        at(3) += sum;
        at(7) = sum + (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                ((a & b) | (c & (a | b)));
      }
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
  }
}

#if defined(__x86_64__)

#define TESSERA_SHA __attribute__((target("sha,sse4.1")))

/// Blocks of 64 bytes of as many streams: lane by lane within every step.
template <int kLanes>
TESSERA_SHA void compress_in_hardware(LaneBlocks (&lanes)[kLanes], std::size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[kLanes], cdgh[kLanes];
#pragma GCC unroll 2
  for (int l = 0; l < kLanes; ++l) {
    const auto* state = reinterpret_cast<const __m128i*>(lanes[l].state);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(state), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state + 1), 0x1b);
    abef[l] = _mm_alignr_epi8(cdab, efgh, 8);
    cdgh[l] = _mm_blend_epi16(efgh, cdab, 0xf0);
  }
  for (; blocks > 0; --blocks) {
    __m128i abef_before[kLanes], cdgh_before[kLanes], words[kLanes][4];
#pragma GCC unroll 2
    for (int l = 0; l < kLanes; ++l) {
      abef_before[l] = abef[l];
      cdgh_before[l] = cdgh[l];
    }
#pragma GCC unroll 16
    for (int step = 0; step < 16; ++step) {  // of four rounds
      const __m128i constants =
          _mm_load_si128(reinterpret_cast<const __m128i*>(kRoundConstants) + step);
#pragma GCC unroll 2
      for (int l = 0; l < kLanes; ++l) {
        __m128i& word = words[l][step % 4];
        if (step < 4) {
          word = _mm_shuffle_epi8(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes[l].data) + step), big_endian);
        } else {
          const __m128i last = words[l][(step + 3) % 4];
          const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(word, words[l][(step + 1) % 4]),
                                            _mm_alignr_epi8(last, words[l][(step + 2) % 4], 4));
          word = _mm_sha256msg2_epu32(sum, last);
        }
        const __m128i round = _mm_add_epi32(word, constants);
        cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], round);
        abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(round, 0x0e));
      }
    }
#pragma GCC unroll 2
    for (int l = 0; l < kLanes; ++l) {
      abef[l] = _mm_add_epi32(abef[l], abef_before[l]);
      cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
      lanes[l].data += 64;
    }
  }
#pragma GCC unroll 2
  for (int l = 0; l < kLanes; ++l) {
    auto* state = reinterpret_cast<__m128i*>(lanes[l].state);
    const __m128i feba = _mm_shuffle_epi32(abef[l], 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[l], 0xb1);
    _mm_storeu_si128(state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(state + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

#endif

template <int kLanes>
void compress(LaneBlocks (&lanes)[kLanes], std::size_t blocks) {
#if defined(__x86_64__)
  if (has_sha_instructions()) return compress_in_hardware(lanes, blocks);
#endif
  for (const LaneBlocks& lane : lanes) compress_plain(lane.state, lane.data, blocks);
}

}  // namespace

bool has_sha_instructions() { return cpu_features().sha; }

void sha256_blocks_plain(std::array<std::uint32_t, 8>& state, ByteView data) {
  TESSERA_CHECK(data.size() % 64 == 0);
  compress_plain(state.data(), data.data(), data.size() / 64);
}

void Sha256Lane::complete_block(ByteView& data) {
  const std::size_t begun = length_bytes_ % kBlockBytes;
  if (begun == 0) return;
  const std::size_t taken = std::min(kBlockBytes - begun, data.size());
  if (taken > 0) std::memcpy(begun_.data() + begun, data.data(), taken);
  data = data.subspan(taken);
  length_bytes_ += taken;
  if (begun + taken < kBlockBytes) return;
  LaneBlocks block[1] = {{state_.data(), begun_.data()}};
  compress<1>(block, 1);
}

void Sha256Lane::keep(ByteView rest) {
  if (!rest.empty()) std::memcpy(begun_.data(), rest.data(), rest.size());
  length_bytes_ += rest.size();
}

void Sha256Lane::update(ByteView data) {
  complete_block(data);
  const std::size_t whole = data.size() / kBlockBytes;
  LaneBlocks lane[1] = {{state_.data(), data.data()}};
  compress<1>(lane, whole);
  length_bytes_ += whole * kBlockBytes;
  keep(data.subspan(whole * kBlockBytes));
}

void Sha256Lane::update(Sha256Lane& a, ByteView more_of_a, Sha256Lane& b, ByteView more_of_b) {
  a.complete_block(more_of_a);
  b.complete_block(more_of_b);
  const std::size_t together = std::min(more_of_a.size(), more_of_b.size()) / kBlockBytes;
  LaneBlocks lanes[2] = {{a.state_.data(), more_of_a.data()}, {b.state_.data(), more_of_b.data()}};
  compress<2>(lanes, together);
  a.length_bytes_ += together * kBlockBytes;
  b.length_bytes_ += together * kBlockBytes;
  a.update(more_of_a.subspan(together * kBlockBytes));
  b.update(more_of_b.subspan(together * kBlockBytes));
}

Sha256Digest Sha256Lane::finish() {
  const std::uint64_t bits = length_bytes_ * 8;
  std::array<std::byte, 2 * kBlockBytes> end = {std::byte{0x80}};
  const std::size_t begun = length_bytes_ % kBlockBytes;
  const std::size_t padding = (begun < 56 ? 56 : 120) - begun;
  for (int i = 0; i < 8; ++i)
    end[padding + static_cast<std::size_t>(i)] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(ByteView(end).first(padding + 8));
  Sha256Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace tessera

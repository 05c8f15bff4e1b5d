#include "lib/storage/content_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace tessera {
namespace {

// XXH3 of 128 bits, seed 0: github.com/Cyan4973/xxHash, doc/xxhash_spec.md. Names are its own.

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                        kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                        kPrime64_5 = 0x27D4EB2F165667C5;
constexpr std::uint64_t kPrimeMx1 = 0x165667919E3779F9, kPrimeMx2 = 0x9FB21C651E98DF25;

constexpr std::array<std::uint8_t, 192> kSecret = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

struct Wide {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

std::uint64_t read64(const std::byte* at) { return load_le<std::uint64_t>(at); }
std::uint64_t read32(const std::byte* at) { return load_le<std::uint32_t>(at); }
const std::byte* secret(std::size_t at) {
  return reinterpret_cast<const std::byte*>(kSecret.data()) + at;
}
std::uint64_t secret64(std::size_t at) { return read64(secret(at)); }

Wide multiply(std::uint64_t a, std::uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return {static_cast<std::uint64_t>(product), static_cast<std::uint64_t>(product >> 64)};
}
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const Wide product = multiply(a, b);
  return product.low ^ product.high;
}
std::uint64_t avalanche(std::uint64_t h) {
  h = (h ^ (h >> 37)) * kPrimeMx1;
  return h ^ (h >> 32);
}
std::uint64_t avalanche64(std::uint64_t h) {
  h = (h ^ (h >> 33)) * kPrime64_2;
  h = (h ^ (h >> 29)) * kPrime64_3;
  return h ^ (h >> 32);
}

Wide xxh3_of_3(const std::byte* in, std::size_t length) {
  const auto at = [&](std::size_t i) { return std::to_integer<std::uint32_t>(in[i]); };
  const std::uint32_t low = (at(0) << 16) | (at(length >> 1) << 24) | at(length - 1) |
                            static_cast<std::uint32_t>(length << 8);
  const std::uint32_t high = std::rotl(__builtin_bswap32(low), 13);
  return {avalanche64(low ^ (read32(secret(0)) ^ read32(secret(4)))),
          avalanche64(high ^ (read32(secret(8)) ^ read32(secret(12))))};
}
Wide xxh3_of_8(const std::byte* in, std::size_t length) {
  const std::uint64_t both = read32(in) + (read32(in + length - 4) << 32);
  Wide h = multiply(both ^ (secret64(16) ^ secret64(24)), kPrime64_1 + (length << 2));
  h.high += h.low << 1;
  h.low ^= h.high >> 3;
  h.low = (h.low ^ (h.low >> 35)) * kPrimeMx2;
  h.low ^= h.low >> 28;
  h.high = avalanche(h.high);
  return h;
}
Wide xxh3_of_16(const std::byte* in, std::size_t length) {
  const std::uint64_t first = read64(in);
  std::uint64_t last = read64(in + length - 8);
  Wide m = multiply(first ^ last ^ (secret64(32) ^ secret64(40)), kPrime64_1);
  m.low += static_cast<std::uint64_t>(length - 1) << 54;
  last ^= secret64(48) ^ secret64(56);
  m.high += last + (last & 0xffffffff) * (kPrime32_2 - 1);
  m.low ^= __builtin_bswap64(m.high);
  Wide h = multiply(m.low, kPrime64_2);
  h.high += m.high * kPrime64_2;
  return {avalanche(h.low), avalanche(h.high)};
}

std::uint64_t mix16(const std::byte* in, std::size_t key) {
  return fold(read64(in) ^ secret64(key), read64(in + 8) ^ secret64(key + 8));
}
void mix32(Wide& acc, const std::byte* a, const std::byte* b, std::size_t key) {
  acc.low += mix16(a, key);
  acc.low ^= read64(b) + read64(b + 8);
  acc.high += mix16(b, key + 16);
  acc.high ^= read64(a) + read64(a + 8);
}
Wide finish_mixed(const Wide& acc, std::size_t length) {
  return {avalanche(acc.low + acc.high),
          0 - avalanche(acc.low * kPrime64_1 + acc.high * kPrime64_4 + length * kPrime64_2)};
}
Wide xxh3_of_128(const std::byte* in, std::size_t length) {
  Wide acc{length * kPrime64_1, 0};
  for (std::size_t i = (length - 1) / 32 + 1; i-- > 0;)
    mix32(acc, in + 16 * i, in + length - 16 * (i + 1), 32 * i);
  return finish_mixed(acc, length);
}
Wide xxh3_of_240(const std::byte* in, std::size_t length) {
  Wide acc{length * kPrime64_1, 0};
  for (std::size_t i = 32; i <= length; i += 32) {
    mix32(acc, in + i - 32, in + i - 16, i < 160 ? i - 32 : 3 + i - 160);
    if (i == 128) {
      acc.low = avalanche(acc.low);
      acc.high = avalanche(acc.high);
    }
  }
  mix32(acc, in + length - 16, in + length - 32, 136 - 17 - 16);
  return finish_mixed(acc, length);
}

using Lanes = std::array<std::uint64_t, 8>;

void accumulate(Lanes& acc, const std::byte* in, std::size_t key) {
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint64_t value = read64(in + 8 * i), keyed = value ^ secret64(key + 8 * i);
    acc[i ^ 1] += value;
    acc[i] += (keyed & 0xffffffff) * (keyed >> 32);
  }
}
std::uint64_t merge(const Lanes& acc, std::size_t key, std::uint64_t start) {
  for (std::size_t i = 0; i < 4; ++i)
    start += fold(acc[2 * i] ^ secret64(key + 16 * i), acc[2 * i + 1] ^ secret64(key + 16 * i + 8));
  return avalanche(start);
}
constexpr Lanes kLanes = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                          kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
constexpr std::size_t kStripe = 64, kStripesOfBlock = 16, kLastKey = 192 - 64;
constexpr std::size_t kFewBytes = 240;  // up to so many are summed in other ways

/// `number`: of the stripe, from the first byte on.
void add_stripe(Lanes& acc, const std::byte* in, std::uint64_t number) {
  accumulate(acc, in, 8 * (number % kStripesOfBlock));
  if (number % kStripesOfBlock < kStripesOfBlock - 1) return;
  for (std::size_t i = 0; i < 8; ++i)
    acc[i] = (acc[i] ^ (acc[i] >> 47) ^ secret64(kLastKey + 8 * i)) * kPrime32_1;
}
/// `last`: the last stripe of all, whatever the ones before have had of it.
Wide finish_stripes(Lanes acc, const std::byte* last, std::uint64_t length) {
  accumulate(acc, last, kLastKey - 7);
  return {merge(acc, 11, length * kPrime64_1), merge(acc, kLastKey - 11, ~(length * kPrime64_2))};
}
Wide xxh3_of_many(const std::byte* in, std::size_t length) {
  Lanes acc = kLanes;
  const std::size_t stripes = (length - 1) / kStripe;
  for (std::size_t stripe = 0; stripe < stripes; ++stripe)
    add_stripe(acc, in + stripe * kStripe, stripe);
  return finish_stripes(acc, in + length - kStripe, length);
}

Wide xxh3_128(ByteView data) {
  const std::byte* in = data.data();
  const std::size_t length = data.size();
  if (length > kFewBytes) return xxh3_of_many(in, length);
  if (length > 128) return xxh3_of_240(in, length);
  if (length > 16) return xxh3_of_128(in, length);
  if (length > 8) return xxh3_of_16(in, length);
  if (length > 3) return xxh3_of_8(in, length);
  if (length > 0) return xxh3_of_3(in, length);
  return {avalanche64(secret64(64) ^ secret64(72)), avalanche64(secret64(80) ^ secret64(88))};
}

// BLAKE3, without a key: github.com/BLAKE3-team/BLAKE3-specs.

using Words = std::array<std::uint32_t, 8>;
constexpr Words kIv = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                       0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::array<std::uint8_t, 16> kPermutation = {2, 6,  3,  10, 7, 0,  4,  13,
                                                       1, 11, 12, 5,  9, 14, 15, 8};
constexpr std::uint32_t kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8;
constexpr std::size_t kBlockBytes = 64, kChunkBytes = 1024;

/// What is left of a node once its last block is known: compressed with or without kRoot.
struct Node {
  Words chaining = kIv;
  std::array<std::uint32_t, 16> block{};
  std::uint64_t counter = 0;
  std::uint32_t length = kBlockBytes;
  std::uint32_t flags = 0;
};

void mix(std::array<std::uint32_t, 16>& v, int a, int b, int c, int d, std::uint32_t x,
         std::uint32_t y) {
  const auto at = [&](int i) -> std::uint32_t& { return v[static_cast<std::size_t>(i)]; };
  at(a) += at(b) + x;
  at(d) = std::rotr(at(d) ^ at(a), 16);
  at(c) += at(d);
  at(b) = std::rotr(at(b) ^ at(c), 12);
  at(a) += at(b) + y;
  at(d) = std::rotr(at(d) ^ at(a), 8);
  at(c) += at(d);
  at(b) = std::rotr(at(b) ^ at(c), 7);
}

Words compress(const Node& node, std::uint32_t more_flags = 0) {
  std::array<std::uint32_t, 16> v{}, m = node.block, next{};
  std::copy(node.chaining.begin(), node.chaining.end(), v.begin());
  std::copy(kIv.begin(), kIv.begin() + 4, v.begin() + 8);
  v[12] = static_cast<std::uint32_t>(node.counter);
  v[13] = static_cast<std::uint32_t>(node.counter >> 32);
  v[14] = node.length;
  v[15] = node.flags | more_flags;
  for (int round = 0; round < 7; ++round) {
    for (int i = 0; i < 4; ++i) {
      const auto w = static_cast<std::size_t>(2 * i);
      mix(v, i, 4 + i, 8 + i, 12 + i, m[w], m[w + 1]);
    }
    for (int i = 0; i < 4; ++i) {
      const auto w = static_cast<std::size_t>(8 + 2 * i);
      mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[w], m[w + 1]);
    }
    for (std::size_t i = 0; i < 16; ++i) next[i] = m[kPermutation[i]];
    m = next;
  }
  Words out{};
  for (std::size_t i = 0; i < 8; ++i) out[i] = v[i] ^ v[i + 8];
  return out;
}

void take_block(Node& node, ByteView bytes) {
  std::array<std::byte, kBlockBytes> padded{};
  std::copy(bytes.begin(), bytes.end(), padded.begin());
  for (std::size_t i = 0; i < 16; ++i)
    node.block[i] = load_le<std::uint32_t>(padded.data() + 4 * i);
  node.length = static_cast<std::uint32_t>(bytes.size());
}

Node chunk_node(ByteView chunk, std::uint64_t counter) {
  Node node;
  node.counter = counter;
  node.flags = kChunkStart;
  while (chunk.size() > kBlockBytes) {
    take_block(node, chunk.first(kBlockBytes));
    node.chaining = compress(node);
    node.flags = 0;
    chunk = chunk.subspan(kBlockBytes);
  }
  take_block(node, chunk);
  node.flags |= kChunkEnd;
  return node;
}
Node parent_node(const Words& left, const Words& right) {
  Node node;
  std::copy(left.begin(), left.end(), node.block.begin());
  std::copy(right.begin(), right.end(), node.block.begin() + 8);
  node.flags = kParent;
  return node;
}

Words blake3(ByteView data) {
  std::vector<Words> stack;  // of finished subtrees, the largest first
  std::uint64_t counter = 0;
  while (data.size() > kChunkBytes) {
    Words top = compress(chunk_node(data.first(kChunkBytes), counter));
    data = data.subspan(kChunkBytes);
    for (std::uint64_t done = ++counter; (done & 1) == 0; done >>= 1) {
      top = compress(parent_node(stack.back(), top));
      stack.pop_back();
    }
    stack.push_back(top);
  }
  Node last = chunk_node(data, counter);
  for (; !stack.empty(); stack.pop_back()) last = parent_node(stack.back(), compress(last));
  return compress(last, kRoot);
}

}  // namespace

std::string adler32_hex(ByteView data) {
  constexpr std::uint32_t kModulus = 65521;
  constexpr std::size_t kRun = 5552;  // as many bytes keep both sums below 2^32
  std::uint32_t a = 1, b = 0;
  while (!data.empty()) {
    const ByteView run = data.first(std::min(kRun, data.size()));
    for (const std::byte byte : run) b += a += std::to_integer<std::uint32_t>(byte);
    a %= kModulus;
    b %= kModulus;
    data = data.subspan(run.size());
  }
  return fmt::format("{:08x}", (b << 16) | a);
}

void Xxh3Sum::add(ByteView data) {
  constexpr std::size_t kPiece = std::size_t{64} << 10;  // stays in the cache
  for (; data.size() > kPiece; data = data.subspan(kPiece)) take(data.first(kPiece));
  take(data);
}

void Xxh3Sum::take(ByteView data) {
  held_.insert(held_.end(), data.begin(), data.end());
  length_ += data.size();
  if (length_ <= kFewBytes) return;
  if (stripes_ == 0) lanes_ = kLanes;
  for (; held_.size() - done_ > kStripe; done_ += kStripe)
    add_stripe(lanes_, held_.data() + done_, stripes_++);
  const std::size_t gone = done_ - std::min(done_, kStripe);  // the last stripe may begin before
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(gone));
  done_ -= gone;
}

std::string Xxh3Sum::hex() const {
  if (length_ <= kFewBytes) return xxh3_128_hex(held_);
  const Wide sum = finish_stripes(lanes_, held_.data() + held_.size() - kStripe, length_);
  return fmt::format("{:016x}{:016x}", sum.high, sum.low);
}

std::string xxh3_128_hex(ByteView data) {
  const Wide sum = xxh3_128(data);
  return fmt::format("{:016x}{:016x}", sum.high, sum.low);
}

std::string blake3_hex(ByteView data) {
  std::string out;
  for (const std::uint32_t word : blake3(data))
    out += fmt::format("{:08x}", __builtin_bswap32(word));
  return out;
}

std::optional<std::string> content_sum(std::string_view name, ByteView data) {
  if (name == "adler32") return adler32_hex(data);
  if (name == "xxh3-128") return xxh3_128_hex(data);
  if (name == "blake3") return blake3_hex(data);
  return std::nullopt;
}

}  // namespace tessera

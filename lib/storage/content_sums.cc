#include "lib/storage/content_sums.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace tessera {
namespace {

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

struct Xxh3Sum::State {
  XXH3_state_t sum;
};

Xxh3Sum::Xxh3Sum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->sum); }
Xxh3Sum::~Xxh3Sum() = default;
void Xxh3Sum::add(ByteView data) { XXH3_128bits_update(&state_->sum, data.data(), data.size()); }
std::string Xxh3Sum::hex() const {
  const XXH128_hash_t sum = XXH3_128bits_digest(&state_->sum);
  return fmt::format("{:016x}{:016x}", sum.high64, sum.low64);
}

std::string adler32_hex(ByteView data) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  return fmt::format("{:08x}", data.empty() ? 1 : adler32_z(1, bytes, data.size()));
}

std::string xxh3_128_hex(ByteView data) {
  Xxh3Sum sum;
  sum.add(data);
  return sum.hex();
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

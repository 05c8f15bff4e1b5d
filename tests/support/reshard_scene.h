#pragma once
// A checkpoint and an output plan made up by a test, in memory, with an oracle that knows every
// byte by brute force.
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>
#include <tessera/storage/memory_file_system.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace tessera::test {

/// Byte `b` of element `element` of tensor `tensor`.
inline std::byte content_byte(std::uint32_t tensor, std::int64_t element, int b) {
  std::uint64_t x = (std::uint64_t{tensor} << 40) ^ static_cast<std::uint64_t>(element) * 8 ^
                    static_cast<std::uint64_t>(b);
  x = (x + 1) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::byte>(x >> 56);
}

/// Row-major element numbers (in the whole tensor) of a chunk's elements, in the chunk's own order,
/// one by one.
std::vector<std::int64_t> elements_of(const Shape& shape, const Chunk& chunk);
/// Whether the bytes are equal: megabytes at once, where a test that is sanitized takes each by itself.
bool same(ByteView a, ByteView b);
bool same(const std::vector<Bytes>& a, const std::vector<Bytes>& b);
/// What a segment holding this chunk must contain.
Bytes chunk_bytes(std::uint32_t tensor, const TensorSpec& spec, const Chunk& chunk);
/// The whole tensor.
Bytes tensor_bytes(std::uint32_t tensor, const TensorSpec& spec);

/// Chunks that tile the shape: a grid, flat ranges, row shards or the whole.
std::vector<Chunk> random_tiling(std::mt19937_64& random, const Shape& shape);

/// Collects tensors, then writes source files with holes of random length between chunks.
class SceneBuilder {
 public:
  SceneBuilder(MemoryFileSystem& fs, std::string root, std::uint64_t seed)
      : fs_(fs), root_(std::move(root)), random_(seed) {}
  std::uint32_t add_tensor(const std::string& name, const TensorSpec& spec,
                           const std::vector<Chunk>& chunks, std::uint32_t files);
  /// Writes the files; every record has its checksum.
  Manifest finish();

 private:
  MemoryFileSystem& fs_;
  std::string root_;
  std::mt19937_64 random_;
  Manifest manifest_;
  std::vector<Bytes> files_;
};

/// An output plan of `files` files: each chunk of each tensor in one of them, a literal before it,
/// a deferred part (its CRC-32) after it; at a file's end a deferred part over all of them.
OutputPlan make_output(const Manifest& source,
                       const std::vector<std::pair<std::uint32_t, Chunk>>& segments,
                       std::uint32_t files, std::uint64_t literal_bytes);
/// Every file of the plan, by brute force.
std::vector<Bytes> expected_files(const Manifest& source, const OutputPlan& plan);

}  // namespace tessera::test

// Flat buffers as writers put them together and readers take them apart, element by element.
#include "lib/format/torch_files/flat_tensors.h"

#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <random>

namespace tessera::flat_tensors_test {
namespace {

constexpr std::int64_t kZero = -1;

struct Scene {
  Manifest manifest;  // tensor p + 1 is parameter p
  FlatLayout layout;
};

Scene random_scene(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<FlatParameter> parameters(static_cast<std::size_t>(1 + below(5)));
  Manifest manifest;
  manifest.tensors.emplace_back();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    parameters[p] = {"p" + std::to_string(p), Shape{below(4), below(7)}};
    manifest.tensors.emplace_back().spec = {DType::kFloat16, parameters[p].shape};
  }
  return {std::move(manifest), FlatLayout(parameters, 1 + below(17), 1 + below(5), 1 + below(2))};
}

/// tensor * 1000 + element, or kZero, of every element of a storage.
std::vector<std::int64_t> spelled_out(const std::vector<StoragePiece>& storage, DType dtype) {
  std::vector<std::int64_t> out;
  for (const StoragePiece& piece : storage) {
    if (piece.tensor == StoragePiece::kZeros) {
      const auto item = static_cast<std::uint64_t>(element_bytes(dtype));
      REQUIRE(piece.zero_bytes > 0);
      REQUIRE(piece.zero_bytes % item == 0);
      out.insert(out.end(), piece.zero_bytes / item, kZero);
      continue;
    }
    REQUIRE(piece.chunk.flat_end <= piece.chunk.box.numel());
    for (std::int64_t i = 0; i < piece.chunk.numel(); ++i)
      out.push_back(static_cast<std::int64_t>(piece.tensor) * 1000 + piece.chunk.flat_begin + i);
  }
  return out;
}

}  // namespace

TEST_CASE("a rank's storage is its shard of the flat buffer, zeros where nothing lies") {
  constexpr unsigned kSeed = 2907;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const Scene scene = random_scene(random);
    // A parameter without state leaves zeros.
    const std::size_t absent = random() % (2 * scene.layout.segments().size());
    std::vector<std::int64_t> buffer(
        static_cast<std::size_t>(scene.layout.shards() * scene.layout.shard_numel()), kZero);
    for (std::size_t p = 0; p < scene.layout.segments().size(); ++p)
      for (std::int64_t i = 0; i < scene.layout.segments()[p].numel && p != absent; ++i)
        buffer[static_cast<std::size_t>(scene.layout.segments()[p].begin + i)] =
            static_cast<std::int64_t>(p + 1) * 1000 + i;
    for (std::int64_t rank = 0; rank < scene.layout.shards(); ++rank) {
      const auto storage =
          flat_storage(scene.manifest, scene.layout.pieces_of(rank), scene.layout.shard_numel(),
                       DType::kFloat16, [&](std::size_t p) {
                         return p == absent ? kNoTensor : static_cast<std::uint32_t>(p + 1);
                       });
      const auto first = buffer.begin() + rank * scene.layout.shard_numel();
      REQUIRE(spelled_out(storage, DType::kFloat16) ==
              std::vector<std::int64_t>(first, first + scene.layout.shard_numel()));
    }
  }
}

TEST_CASE("a reader's pieces of a parameter are what the writer put there") {
  std::mt19937_64 random(2908);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const Scene scene = random_scene(random);
    const FlatLayout& layout = scene.layout;
    std::vector<FlatRun> shards;
    std::vector<std::vector<std::int64_t>> stored;
    const auto lost = static_cast<std::int64_t>(random() % 24);
    for (std::int64_t r = 0; r < layout.shards(); ++r) {
      shards.push_back({static_cast<std::size_t>(r), 0, r * layout.shard_numel(),
                        (r + 1) * layout.shard_numel(), 0});
      stored.push_back(spelled_out(
          flat_storage(scene.manifest, layout.pieces_of(r), layout.shard_numel(), DType::kFloat16,
                       [](std::size_t p) { return static_cast<std::uint32_t>(p + 1); }),
          DType::kFloat16));
    }
    const FlatPlaces places(shards);
    for (std::size_t p = 0; p < layout.segments().size(); ++p) {
      const FlatSegment& segment = layout.segments()[p];
      std::vector<std::int64_t> seen(static_cast<std::size_t>(segment.numel), kZero);
      const auto pieces = pieces_of(places.cut(segment.begin, segment.end()), segment.shape,
                                    [&](const FlatRun& run) -> std::optional<TensorRef> {
                                      if (static_cast<std::int64_t>(run.rank) == lost)
                                        return std::nullopt;
                                      return TensorRef{static_cast<std::uint32_t>(run.rank), 7};
                                    });
      for (const ArchivePiece& piece : pieces) {
        REQUIRE(piece.tensor == 7);
        for (std::int64_t i = 0; i < piece.chunk.numel(); ++i)
          seen.at(static_cast<std::size_t>(piece.chunk.flat_begin + i)) =
              stored[piece.file].at(static_cast<std::size_t>(piece.first_element + i));
      }
      for (std::int64_t i = 0; i < segment.numel; ++i) {
        const bool gone = (segment.begin + i) / layout.shard_numel() == lost;
        REQUIRE(seen[static_cast<std::size_t>(i)] ==
                (gone ? kZero : static_cast<std::int64_t>(p + 1) * 1000 + i));
      }
      // One without elements still has a tensor that it is read from.
      if (segment.numel == 0 && lost >= layout.shards()) REQUIRE(pieces.size() == 1);
    }
  }
}

}  // namespace tessera::flat_tensors_test

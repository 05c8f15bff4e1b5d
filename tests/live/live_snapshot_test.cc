// The copy that a save in the background writes from, whoever makes it.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "lib/live/snapshot.h"

namespace live_snapshot_test {

using namespace tessera;

TEST_CASE("a snapshot by any number of threads holds every byte of runs and strided pieces") {
  constexpr std::int64_t kBytes = (9 << 20) + 5, kRows = 700, kColumns = 900;
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> run(kBytes), small(11);
  std::vector<float> columns(kRows * kColumns);
  for (auto& x : run) x = static_cast<std::uint8_t>(random());
  for (auto& x : small) x = static_cast<std::uint8_t>(random());
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<float>(i);
  LiveState state;
  state.add("run", {DType::kUInt8, {kBytes}, {}, run.data()});
  state.add("columns", {DType::kFloat32, {kRows, kColumns}, {1, kRows}, columns.data()});
  const auto index = state.add("small", {DType::kUInt8, {11}, {}, small.data()});
  state.edit([&](LiveContents& contents) { contents.tensors[index].copied_at_once = true; });
  std::vector<float> dense;
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kColumns; ++c)
      dense.push_back(columns[static_cast<std::size_t>(c * kRows + r)]);
  const ByteView expected[] = {std::as_bytes(std::span(run)), std::as_bytes(std::span(dense)),
                               std::as_bytes(std::span(small))};
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    std::exception_ptr thrown;
    const Bytes message = describe(state, state.structure()->bytes, agreements_of(state, thrown));
    MergedState merged = merge_states(std::vector{LiveDescription(message)}, 0, state);
    Snapshot snapshot;
    snapshot.plan(state, merged);
    snapshot.take_early(threads);
    snapshot.take(threads);
    snapshot.release();
    REQUIRE(merged.own.size() == std::size(expected));
    for (const OwnPiece& own : merged.own) {
      const Source& source = merged.manifest.chunks.source(own.chunk);
      CAPTURE(own.entry);
      REQUIRE(source.length == expected[own.entry].size());
      CHECK(std::memcmp(reinterpret_cast<const void*>(source.offset), expected[own.entry].data(),
                        source.length) == 0);
    }
  }
}

}  // namespace live_snapshot_test

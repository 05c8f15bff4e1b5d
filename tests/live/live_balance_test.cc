// What several ranks hold alike is written once, by those who have least to write.
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"

namespace live_balance_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kNumel = 16 << 10;  // 64 KiB

/// Bytes that each rank writes of `replicated` tensors that all hold, and `own[r]` of its own.
std::vector<std::uint64_t> written(int replicated, const std::vector<int>& own) {
  MemoryFileSystem fs;
  std::vector<float> memory(kNumel, 1);
  std::vector<std::uint64_t> bytes(kRanks);
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    LiveState state;
    const auto r = static_cast<std::size_t>(ranks.rank());
    for (int t = 0; t < replicated; ++t)
      state.add("all_" + std::to_string(t), {DType::kFloat32, {kNumel}, {}, memory.data()});
    for (int t = 0; t < own[r]; ++t)
      state.add_piece("own_" + std::to_string(r) + "_" + std::to_string(t),
                      {DType::kFloat32, {kNumel}},
                      {Chunk::whole_of({{0}, {kNumel}}), memory.data(), {}});
    bytes[r] = save("/run/a", state, ranks, saving(fs)).bytes_written;
  }));
  return bytes;
}

constexpr std::uint64_t kTensor = kNumel * 4;

/// With headers, metadata and the like.
bool is_about(std::uint64_t bytes, std::uint64_t tensors) {
  return bytes >= tensors * kTensor && bytes < tensors * kTensor + kTensor / 2;
}

}  // namespace

TEST_CASE("what all ranks hold is written once and shared out evenly") {
  for (const std::uint64_t bytes : written(12, {0, 0, 0, 0})) CHECK(is_about(bytes, 3));
}

TEST_CASE("ranks with more of their own write less of what all hold") {
  const std::vector<std::uint64_t> bytes = written(7, {5, 0, 1, 3});
  CHECK(is_about(bytes[0], 5));
  for (const std::size_t r : {1, 2, 3}) {
    CAPTURE(r);
    CHECK((is_about(bytes[r], 3) || is_about(bytes[r], 4)));
  }
  const std::uint64_t all = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  CHECK(is_about(all, 7 + 9));  // nothing twice
}

TEST_CASE("buffers, which ranks may hold apart, are all the first rank's") {
  constexpr int kBuffers = 5;
  MemoryFileSystem fs;
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    std::vector<float> memory(kNumel, static_cast<float>(ranks.rank()));
    LiveState state;
    for (int t = 0; t < kBuffers; ++t) {
      const std::string name = "buffer_" + std::to_string(t);
      LiveTensor buffer;
      buffer.spec = {DType::kFloat32, {kNumel}};
      buffer.pieces.push_back({Chunk::whole_of({{0}, {kNumel}}), memory.data(), {}});
      buffer.replicated = buffer.copied_at_once = true;
      state.add_tensor({key_item(name)}, std::move(buffer));
    }
    if (ranks.rank() == 0)  // which has most to write already
      state.add_piece("own", {DType::kFloat32, {kNumel}},
                      {Chunk::whole_of({{0}, {kNumel}}), memory.data(), {}});
    save("/run/a", state, ranks, saving(fs));
  }));
  std::vector<std::vector<float>> found(kBuffers + 1, std::vector<float>(kNumel, -1));
  LiveState state;
  for (int t = 0; t < kBuffers; ++t)
    state.add("buffer_" + std::to_string(t),
              {DType::kFloat32, {kNumel}, {}, found[static_cast<std::size_t>(t)].data()});
  state.add("own", {DType::kFloat32, {kNumel}, {}, found.back().data()});
  load_one(state, loading(fs));
  for (const auto& each : found) CHECK(each == std::vector<float>(kNumel, 0));
}

}  // namespace live_balance_test

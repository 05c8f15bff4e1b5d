// One flipped bit anywhere in a checkpoint's tensors is found by any number of ranks that load it,
// whatever the number that saved: records that ranks read parts of are proved whole.
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/open.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "lib/live/record_proof.h"
#include "tests/support/live_job.h"
#include "tests/support/sanitized.h"

namespace live_damage_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

/// A few tensors, each cut into ranges of its ravel (as flat parameters are) or rows, and one that
/// all ranks hold.
struct Parts {
  Parts(int rank, int world) {
    for (const auto& [name, shape, flat] :
         {std::tuple("flat", Shape({7, 5, 3}), true), std::tuple("large", Shape({300, 101}), true),
          std::tuple("rows", Shape({11, 6}), false), std::tuple("short", Shape({2, 9}), false)}) {
      const std::int64_t whole = flat ? shape.numel() : shape[0];
      const std::int64_t begin = whole * rank / world, end = whole * (rank + 1) / world;
      Chunk chunk{Box::whole(shape), begin, end};
      if (!flat) {
        Box box = Box::whole(shape);
        box.origin[0] = begin;
        box.shape = Shape({end - begin, shape[1]});
        chunk = Chunk::whole_of(box);
      }
      memory.emplace_back(static_cast<std::size_t>(chunk.numel()));
      if (chunk.numel() > 0)
        state.add_piece(name, {DType::kFloat32, shape}, {chunk, memory.back().data(), {}});
    }
    memory.emplace_back(40);
    state.add("shared", {DType::kFloat32, {40}, {}, memory.back().data()});
  }
  void set(float value) {
    for (std::vector<float>& each : memory) each.assign(each.size(), value);
  }
  bool is(float value) const {
    for (const std::vector<float>& each : memory)
      if (each != std::vector<float>(each.size(), value)) return false;
    return true;
  }
  std::vector<std::vector<float>> memory;
  LiveState state;
};

SaveOptions to(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  return options;
}

struct Place {
  std::string file;
  std::size_t at;
};

/// A byte of each stored chunk.
std::vector<Place> places(MemoryFileSystem& fs) {
  OpenedCheckpoint opened = open_checkpoint(fs, "/run/a");
  opened.locate_all({});
  std::vector<Place> out;
  for (const StoredTensor& tensor : opened.manifest.tensors)
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = opened.manifest.source(tensor, c);
      if (source.length == 0) continue;
      out.push_back(
          {"/run/a/" + opened.manifest.files[source.file].path, source.offset + source.length / 2});
    }
  return out;
}

}  // namespace

TEST_CASE("a flipped bit is refused by any number of ranks, and nothing is loaded") {
  int flips = 0;
  for (const int saved : {1, 2, 3}) {
    if (testing::kSanitized && saved != 2) continue;  // a third of the loads will do
    MemoryFileSystem fs;
    require_quiet(on_ranks(saved, [&](RankGroup& ranks) {
      Parts parts(ranks.rank(), saved);
      parts.set(1);
      save("/run/a", parts.state, ranks, to(fs));
    }));
    for (const Place& place : places(fs)) {
      const Bytes whole = fs.read_file(place.file);
      Bytes damaged = whole;
      damaged[place.at] ^= std::byte{1};
      fs.write_file(place.file, damaged);
      for (const int loading : {1, 2, 3, 5})
        for (const LoadSafety safety :
             {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
          INFO(saved << " ranks to " << loading << ", safety " << static_cast<int>(safety) << ", "
                     << place.file << " at " << place.at);
          std::atomic<int> changed = 0;
          const auto thrown = on_ranks(loading, [&](RankGroup& ranks) {
            Parts parts(ranks.rank(), loading);
            parts.set(7);
            LoadPolicy policy;
            policy.file_system = &fs;
            policy.safety = safety;
            try {
              load("/run/a", parts.state, ranks, policy);
            } catch (const Error& error) {
              const bool told = std::string(error.what()).find("partly") != std::string::npos;
              if (!parts.is(7) && !(told && safety == LoadSafety::kInPlace)) ++changed;
              throw;
            }
          });
          for (const std::string& message : thrown)
            REQUIRE_THAT(message, Contains("corrupt") && Contains("checksum"));
          REQUIRE(changed == 0);
          ++flips;
        }
      fs.write_file(place.file, whole);
    }
  }
  CHECK(flips > (testing::kSanitized ? 100 : 300));
}

TEST_CASE("records that ranks read whole are not read again") {
  MemoryFileSystem fs;
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    Parts parts(ranks.rank(), 3);
    save("/run/a", parts.state, ranks, to(fs));
  }));
  // Beside the tensors' bytes, of which each rank has all of the shared one.
  const auto read_again = [&](int loading) {
    std::atomic<std::uint64_t> bytes = 0;
    require_quiet(on_ranks(loading, [&](RankGroup& ranks) {
      Parts parts(ranks.rank(), loading);
      LoadPolicy policy;
      policy.file_system = &fs;
      bytes += load("/run/a", parts.state, ranks, policy).bytes_read;
    }));
    const std::int64_t floats = 7 * 5 * 3 + 300 * 101 + 11 * 6 + 2 * 9 + 40 * loading;
    return static_cast<std::int64_t>(bytes) - 4 * floats;
  };
  const std::int64_t third = 300 * 101 * 4 / 3;  // of the largest tensor, cut by two ranks
  CHECK(read_again(3) < third / 2);              // what stands around tensors
  CHECK(read_again(1) < third / 2);
  CHECK(read_again(2) >= third);
  CHECK(read_again(2) <= 3 * third);
}

TEST_CASE("each record falls to one rank, and all of them alike in bytes") {
  std::vector<std::set<std::uint64_t>> shares(3);
  std::vector<std::uint64_t> bytes(3);
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    std::vector<RecordToProve> mine;  // overlapping lists
    for (std::uint64_t i = static_cast<std::uint64_t>(ranks.rank()); i < 40; ++i)
      mine.push_back({i % 2, 1000 * i, 100 + i, 0, i});
    const auto r = static_cast<std::size_t>(ranks.rank());
    for (const RecordToProve& each : share_of_records(std::move(mine), ranks)) {
      shares[r].insert(each.offset);
      bytes[r] += each.length;
    }
  }));
  std::set<std::uint64_t> all;
  std::size_t count = 0;
  for (const auto& share : shares) {
    all.insert(share.begin(), share.end());
    count += share.size();
  }
  CHECK(all.size() == 40);
  CHECK(count == 40);
  CHECK(*std::ranges::max_element(bytes) - *std::ranges::min_element(bytes) <= 140);
}

}  // namespace live_damage_test

// One flipped bit anywhere in a checkpoint's tensors is found by any number of ranks that load it,
// whatever the number that saved: what ranks read of a record is folded into its checksum.
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <random>
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
    fs.remove_file("/run/a/tessera.manifest.json");  // would tell first, of files this small
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

// Eight tensors lie in one storage: overlapping, strided, one under two names. Whatever of them is
// loaded, and in whatever parts, a bit of that storage is missed by none.
TEST_CASE("a flipped bit is refused where tensors are views of one storage") {
  MemoryFileSystem fs;
  {
    std::ifstream sample(std::string(TESSERA_SOURCE_DIR) +
                             "/sample_checkpoints/torchsave/tied_views_zip/checkpoint/file.pt",
                         std::ios::binary);
    REQUIRE(sample);
    const std::string bytes{std::istreambuf_iterator<char>(sample), {}};
    fs.write_file("/views.pt", as_bytes(bytes));
  }
  OpenedCheckpoint opened = open_checkpoint(fs, "/views.pt");
  opened.locate_all({});
  const Manifest& manifest = opened.manifest;
  std::map<std::uint32_t, std::vector<std::uint32_t>> tensors_of;  // by record
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t)
    if (const std::uint32_t record = manifest.source(manifest.tensors[t], 0).record)
      tensors_of[record - 1].push_back(t);
  const Bytes whole = fs.read_file("/views.pt");
  std::mt19937_64 random(11);
  int flips = 0;
  for (const auto& [number, tensors] : tensors_of) {
    const Record& record = manifest.records[number];
    for (int i = 0; i < 60; ++i) {
      const int world = static_cast<int>(1 + random() % 3);
      const auto names = static_cast<std::uint32_t>(random());  // which, by bit
      const bool by_rows = random() % 2 == 0;
      Bytes damaged = whole;
      damaged[record.offset + random() % record.length] ^= std::byte{1};
      const auto thrown = [&](const Bytes& content) {
        fs.write_file("/views.pt", content);
        return on_ranks(world, [&](RankGroup& ranks) {
          LiveState state;
          std::list<Bytes> memory;
          for (std::size_t n = 0; n < tensors.size(); ++n) {
            const StoredTensor& tensor = manifest.tensors[tensors[n]];
            if (n > 0 && (names >> n & 1) == 0) continue;
            Box box = Box::whole(tensor.spec.shape);
            if (by_rows) {
              const std::int64_t rows = box.shape[0];
              box.origin[0] = rows * ranks.rank() / world;
              std::vector<std::int64_t> extents(box.shape.extents().begin(),
                                                box.shape.extents().end());
              extents[0] = rows * (ranks.rank() + 1) / world - box.origin[0];
              box.shape = Shape(extents);
            }
            memory.emplace_back(static_cast<std::size_t>(box.numel()) * 8);
            state.add_piece(tensor.name, tensor.spec,
                            {Chunk::whole_of(box), memory.back().data(), {}});
          }
          LoadPolicy policy;
          policy.file_system = &fs;
          policy.model = policy.optimizer = policy.other = PartPolicy::kAllowUnexpected;
          load("/views.pt", state, ranks, policy);
        });
      };
      INFO("record " << number << ", " << world << " ranks, names " << names << ", rows "
                     << by_rows);
      require_quiet(thrown(whole));
      for (const std::string& message : thrown(damaged))
        REQUIRE_THAT(message, Contains("checksum"));
      ++flips;
    }
  }
  CHECK(flips >= 60);
}

TEST_CASE("a flipped bit of a sealed file without records is refused as well") {
  MemoryFileSystem fs;
  std::vector<float> memory(1 << 20, 1);
  const auto state_of = [&](RankGroup& ranks, std::vector<float>& into) {
    const std::int64_t rows = 1024 * ranks.rank() / ranks.size(),
                       end = 1024 * (ranks.rank() + 1) / ranks.size();
    LiveState state;
    state.add_piece("large", {DType::kFloat32, {1024, 1024}},
                    {Chunk::whole_of({{rows, 0}, {end - rows, 1024}}), into.data(), {}});
    return state;
  };
  require_quiet(on_ranks(
      1, [&](RankGroup& ranks) { save("/run/a", state_of(ranks, memory), ranks, to(fs)); }));
  ConvertOptions options;
  options.source = "/run/a";
  options.destination = "/plain";
  options.to = "safetensors";
  REQUIRE(convert(fs, options).published);
  const std::string file = "/plain/model.safetensors";
  Bytes bytes = fs.read_file(file);
  bytes[bytes.size() / 2] ^= std::byte{1};
  fs.write_file(file, bytes);
  for (const int loading : {1, 3})
    for (const LoadSafety safety :
         {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
      const auto thrown = on_ranks(loading, [&](RankGroup& ranks) {
        std::vector<float> into(1 << 20, 7);
        LoadPolicy policy;
        policy.file_system = &fs;
        policy.safety = safety;
        try {
          load("/plain", state_of(ranks, into), ranks, policy);
        } catch (const Error&) {
          if (safety != LoadSafety::kInPlace && into != std::vector<float>(1 << 20, 7))
            throw std::runtime_error("changed");
          throw;
        }
      });
      for (const std::string& message : thrown)
        CHECK_THAT(message, Contains("corrupt") && Contains("changed after they were written"));
    }
}

TEST_CASE("what ranks read is proved without being read again") {
  MemoryFileSystem fs;
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    Parts parts(ranks.rank(), 3);
    save("/run/a", parts.state, ranks, to(fs));
  }));
  const auto bytes_read = [&](int loading, LoadSafety safety, bool check) {
    std::atomic<std::uint64_t> bytes = 0;
    require_quiet(on_ranks(loading, [&](RankGroup& ranks) {
      Parts parts(ranks.rank(), loading);
      LoadPolicy policy;
      policy.file_system = &fs;
      policy.safety = safety;
      policy.check_crc = check;
      bytes += load("/run/a", parts.state, ranks, policy).bytes_read;
    }));
    return bytes.load();
  };
  for (const int loading : {1, 2, 3, 5})
    for (const LoadSafety safety :
         {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
      INFO(loading << " ranks, safety " << static_cast<int>(safety));
      CHECK(bytes_read(loading, safety, true) == bytes_read(loading, safety, false));
    }
}

// Of a matrix that was saved whole each rank wants columns. Its rows are longer than a slab, so that
// a rank reads a run of each.
TEST_CASE("a flipped bit of a record that is read in many runs is found") {
  constexpr std::int64_t kColumns = 65536;
  const std::int64_t rows = GENERATE(40, 70);  // of 70, runs are too many to be told
  MemoryFileSystem fs;
  const auto state_of = [&](RankGroup& ranks, std::vector<float>& into) {
    const std::int64_t begin = kColumns * ranks.rank() / ranks.size();
    const Box box{{0, begin}, {rows, kColumns * (ranks.rank() + 1) / ranks.size() - begin}};
    into.assign(static_cast<std::size_t>(box.numel()), 1);
    LiveState state;
    state.add_piece("matrix", {DType::kFloat32, {rows, kColumns}},
                    {Chunk::whole_of(box), into.data(), {}});
    return state;
  };
  require_quiet(on_ranks(1, [&](RankGroup& ranks) {
    std::vector<float> memory;
    save("/run/a", state_of(ranks, memory), ranks, to(fs));
  }));
  fs.remove_file("/run/a/tessera.manifest.json");
  std::atomic<std::uint64_t> bytes_read;
  const auto load_columns = [&](bool check) {
    bytes_read = 0;
    return on_ranks(2, [&](RankGroup& ranks) {
      std::vector<float> memory;
      LoadPolicy policy;
      policy.file_system = &fs;
      policy.memory_limit_bytes = std::uint64_t{1} << 20;
      policy.check_crc = check;
      bytes_read += load("/run/a", state_of(ranks, memory), ranks, policy).bytes_read;
    });
  };
  require_quiet(load_columns(false));
  const std::uint64_t unchecked = bytes_read;
  require_quiet(load_columns(true));
  const std::uint64_t again = bytes_read - unchecked;
  if (rows > 64)
    CHECK(again == static_cast<std::uint64_t>(rows * kColumns) * sizeof(float));
  else
    CHECK(again == 0);
  const Place place = places(fs).front();
  Bytes bytes = fs.read_file(place.file);
  bytes[place.at] ^= std::byte{4};
  fs.write_file(place.file, bytes);
  for (const std::string& message : load_columns(true))
    CHECK_THAT(message, Contains("matrix") && Contains("checksum"));
}

TEST_CASE("a record that another rank names and this one does not find is not taken as proved") {
  MemoryFileSystem fs;
  require_quiet(on_ranks(2, [&](RankGroup& ranks) {
    Parts parts(ranks.rank(), 2);
    save("/run/a", parts.state, ranks, to(fs));
  }));
  OpenedCheckpoint opened = open_checkpoint(fs, "/run/a");
  opened.locate_all({});
  std::vector<RecordToProve> records;
  for (std::uint32_t t = 0; t < opened.manifest.tensors.size(); ++t) {
    const StoredTensor& tensor = opened.manifest.tensors[t];
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = opened.manifest.source(tensor, c);
      if (source.record == 0) continue;
      const Record& record = opened.manifest.records[source.record - 1];
      records.push_back({record.file,
                         record.offset,
                         record.length,
                         t,
                         tensor.first_chunk + std::uint64_t{c},
                         {}});
    }
  }
  REQUIRE(records.size() > 4);
  CHECK(prove_records(opened, records, {}, {}) > 0);
  const auto refused = [&](RecordToProve record) {
    CHECK_THROWS_WITH(prove_records(opened, std::vector{record}, {}, {}),
                      Contains("another rank sees another checkpoint"));
  };
  RecordToProve elsewhere = records[2];
  elsewhere.offset += 64;
  refused(elsewhere);
  RecordToProve longer = records[2];
  ++longer.length;
  refused(longer);
  RecordToProve no_chunk = records[2];
  no_chunk.chunk = opened.manifest.chunks.size();
  refused(no_chunk);
}

TEST_CASE("each record falls to one rank, and all of them alike in bytes") {
  std::vector<std::set<std::uint64_t>> shares(3);
  std::vector<std::uint64_t> bytes(3);
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    std::vector<RecordToProve> mine;  // overlapping lists
    for (std::uint64_t i = static_cast<std::uint64_t>(ranks.rank()); i < 40; ++i)
      mine.push_back({i % 2, 1000 * i, 100 + i, 0, i, {}});
    const auto r = static_cast<std::size_t>(ranks.rank());
    for (const RecordToProve& each : share_of_records(std::move(mine), {}, ranks)) {
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

TEST_CASE("what ranks have read of a record is folded, and its first reader compares it") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    Bytes content(1 + random() % 50);
    for (std::byte& each : content) each = static_cast<std::byte>(random());
    const int world = static_cast<int>(1 + random() % 4);
    std::vector<std::vector<CrcRun>> told(static_cast<std::size_t>(world));
    std::vector<bool> read(content.size());
    for (auto& runs : told)
      for (std::size_t at = random() % 20; at < content.size();) {
        const std::size_t length = 1 + random() % (content.size() - at);
        runs.push_back({at, length, crc32(0, ByteView(content).subspan(at, length))});
        std::fill_n(read.begin() + static_cast<std::ptrdiff_t>(at), length, true);
        at += length + 1 + random() % 9;
      }
    std::vector<std::vector<RecordToProve>> shares(told.size());
    require_quiet(on_ranks(world, [&](RankGroup& ranks) {
      const auto r = static_cast<std::size_t>(ranks.rank());
      shares[r] = share_of_records({{0, 7, content.size(), 0, 0, told[r]}}, {}, ranks);
    }));
    std::vector<RecordToProve> all;
    for (const auto& share : shares) std::ranges::copy(share, std::back_inserter(all));
    REQUIRE(all.size() == 1);
    std::uint64_t reached = 0, unread = content.size();
    for (const CrcRun& run : all[0].runs) {
      REQUIRE(run.offset >= reached);
      reached = run.offset + run.length;
      REQUIRE(run.crc == crc32(0, ByteView(content).subspan(run.offset, run.length)));
      unread -= run.length;
    }
    REQUIRE(all[0].unread_bytes() == unread);
    if (unread == 0) REQUIRE(shares[0].size() == 1);
    REQUIRE(unread >= static_cast<std::uint64_t>(std::ranges::count(read, false)));
  }
}

TEST_CASE("ranks that find other bytes at one place are refused") {
  const auto thrown = on_ranks(2, [&](RankGroup& ranks) {
    const CrcRun run{16, 8, static_cast<std::uint32_t>(40 + ranks.rank())};
    share_of_records({{0, 64, 32, 0, 0, {run}}}, {}, ranks);
  });
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("corrupt") && Contains("8 bytes of it were read twice"));
}

}  // namespace live_damage_test

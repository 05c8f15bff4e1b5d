// State that belongs to single ranks is kept, dropped or refused by name, never merged in silence.
#include "lib/ops/edit/rank_state.h"

#include <tessera/base/error.h>
#include <tessera/ops/rename.h>

#include <catch2/catch.hpp>

#include "lib/ops/edit/ties.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"

namespace rank_state_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Manifest with_entries(const std::vector<std::vector<std::string>>& paths) {
  Manifest manifest;
  manifest.world_size = 2;
  for (const auto& keys : paths) {
    StateEntry entry;
    for (const std::string& key : keys) entry.path.push_back({PathItem::Kind::kKey, 0, key});
    entry.name = dotted(entry.path);
    entry.value = Value::integer(7);
    manifest.state.entries.push_back(entry);
  }
  return manifest;
}

std::vector<std::string> names(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const StateEntry& entry : manifest.state.entries) out.push_back(entry.name);
  return out;
}

}  // namespace

TEST_CASE("rank state is known by a rank number in its path") {
  Manifest manifest = with_entries({{"rng", "rank_0"},
                                    {"rng", "rank1"},
                                    {"dataloader", "dp_rank_12", "position"},
                                    {"rank"},
                                    {"frank3"},
                                    {"step"}});
  std::vector<RankStateEntry> found = find_rank_state(manifest);
  REQUIRE(found.size() == 3);
  CHECK(found[0].rank == 0);
  CHECK(found[1].rank == 1);
  CHECK(found[2].rank == 12);
}

TEST_CASE("each policy does what it says") {
  Manifest start = with_entries({{"rng", "rank_0"}, {"rng", "rank_1"}, {"step"}});
  Manifest manifest = start;
  CHECK(apply_rank_state(manifest, RankStatePolicy::kDefault, {2}).empty());
  CHECK(names(manifest).size() == 3);
  try {
    apply_rank_state(manifest, RankStatePolicy::kDefault, {3});
    FAIL("kept rank state at another world size");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK(std::string(error.what()).find("rng.rank_0") != std::string::npos);
  }
  CHECK(apply_rank_state(manifest, RankStatePolicy::kKeep, {3}).empty());
  CHECK(names(manifest).size() == 3);
  CHECK(apply_rank_state(manifest, RankStatePolicy::kRank0, {3}) ==
        std::vector<std::string>{"rng.rank_1"});
  CHECK(names(manifest) == std::vector<std::string>{"rng.rank_0", "step"});
  manifest = start;
  CHECK(apply_rank_state(manifest, RankStatePolicy::kDrop, {2}).size() == 2);
  CHECK(names(manifest) == std::vector<std::string>{"step"});
}

TEST_CASE("a conversion says whose state is lost and which ranks have none") {
  MemoryFileSystem fs;
  fs.make_directories("/in");
  RankArchive archive;
  const Value generators = dict(
      {{"rank_0", archive.tensor(Shape{2}, {1, 2})}, {"rank_1", archive.tensor(Shape{2}, {3, 4})}});
  const Value model = dict({{"w", archive.tensor(Shape{2, 2}, {5, 6, 7, 8})}});
  fs.write_file("/in/s.pt", archive.render(dict({{"model", model}, {"rng", generators}})));
  const auto run = [&](std::int64_t ranks, RankStatePolicy policy) -> std::string {
    ConvertOptions options = convert_options("/in/s.pt", "/out", ranks, "torch-dcp");
    options.rank_state = policy;
    options.force = true;
    for (const Note& note : convert(fs, options).notes)
      if (note_code(note) == "RANKS") return note_severity(note) + ": " + note.message;
    return "";
  };
  const OpenedContent source = content_at(fs, "/in/s.pt");
  CHECK(run(2, RankStatePolicy::kDefault) == "");
  CHECK(content_at(fs, "/out").tensors == source.tensors);
  CHECK(run(2, RankStatePolicy::kKeep) == "");
  CHECK(run(4, RankStatePolicy::kKeep) ==
        "warning: ranks 2 to 3 of the result: new, without state of its own");
  CHECK(content_at(fs, "/out").tensors == source.tensors);
  CHECK(run(1, RankStatePolicy::kKeep) ==
        "warning: state of rank 1 is kept by name; the result has no such ranks");
  CHECK(run(4, RankStatePolicy::kRank0) ==
        "warning: state of rank 1 is left out, rank 0's is kept");
  CHECK(content_at(fs, "/out").tensors.at("rng.rank_0") == source.tensors.at("rng.rank_0"));
  CHECK_FALSE(content_at(fs, "/out").tensors.contains("rng.rank_1"));
  CHECK(run(2, RankStatePolicy::kDrop) == "warning: state of ranks 0 to 1 is left out");
  CHECK_FALSE(content_at(fs, "/out").tensors.contains("rng.rank_0"));
  for (const std::int64_t ranks : {2, 3}) {
    try {
      run(ranks, RankStatePolicy::kError);
      FAIL("state of single ranks went along though it was to be refused");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK(std::string(error.what()).find("rng.rank_0") != std::string::npos);
      const std::string said = error.what();
      CHECK((said.find("goes from 2 to 3") != said.npos) == (ranks == 3));
      CHECK(said.find("goes from 2 to 2") == said.npos);
    }
  }
}

TEST_CASE("name maps are read from lines and from JSON") {
  using Map = std::vector<std::pair<std::string, std::string>>;
  CHECK(parse_name_map("a b\n# note\n\n  c.d\te.f  \r\n") == Map{{"a", "b"}, {"c.d", "e.f"}});
  CHECK(parse_name_map(" {\"a\": \"b\"}") == Map{{"a", "b"}});
  CHECK(parse_name_map("\xEF\xBB\xBF"
                       "a b\n") == Map{{"a", "b"}});
  CHECK(parse_name_map("").empty());
  for (const char* bad : {"a", "a b c", "a b\na c", "{\"a\": 1}", "{\"a\": \"\"}", "{"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_name_map(bad), Error);
  }
}

TEST_CASE("equal bytes tie matrices, but not vectors and not constant matrices") {
  MemoryFileSystem fs;
  fs.make_directories("/s");
  Bytes data(4096);
  for (std::size_t i = 0; i < 1024; ++i) {
    data[i] = data[i + 1024] = static_cast<std::byte>(i * 7 + i / 256);
  }
  fs.write_file("/s/data", data);
  Manifest manifest;
  manifest.files.push_back({"data", data.size(), 0});
  auto add = [&](const std::string& name, const Shape& shape, std::uint64_t offset) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = {DType::kUInt8, shape};
    tensor.first_chunk = manifest.chunks.size();
    tensor.chunk_count = 1;
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = offset;
    source.length = static_cast<std::uint64_t>(shape.numel());
    manifest.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
    StateEntry entry;
    entry.name = name;
    entry.path = {{PathItem::Kind::kKey, 0, name}};
    entry.value = Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()));
    manifest.state.entries.push_back(entry);
    manifest.tensors.push_back(tensor);
  };
  add("embed", Shape{32, 32}, 0);
  add("head", Shape{32, 32}, 1024);    // the same bytes, stored twice
  add("norm.a", Shape{1024}, 0);       // the same place in another shape
  add("norm.b", Shape{1024}, 1024);    // equal vectors
  add("zero.a", Shape{32, 32}, 2048);  // equal constants
  add("zero.b", Shape{32, 32}, 3072);
  add("shared", Shape{1024}, 0);  // the same place as norm.a
  std::unique_ptr<Directory> directory = fs.open_directory("/s");
  auto ties = find_ties(manifest, *directory, {});
  CHECK(ties ==
        std::vector<std::pair<std::string, std::string>>{{"head", "embed"}, {"shared", "norm.a"}});
  drop_ties(manifest, ties);
  CHECK(names(manifest) ==
        std::vector<std::string>{"embed", "norm.a", "norm.b", "zero.a", "zero.b"});
}

}  // namespace rank_state_test

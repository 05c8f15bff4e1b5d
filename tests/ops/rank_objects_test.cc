// Megatron's values of single ranks (rng_state/shard_0.1_1.2): known by their names, told of where
// the mesh changes, and left out where --rank-state says so.
#include "lib/ops/edit/rank_objects.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/state/sharded_object.h"
#include "tests/support/archive_gather.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"

namespace rank_objects_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Manifest with_values(const std::vector<std::pair<std::string, Value>>& values) {
  Manifest manifest;
  for (const auto& [name, value] : values) {
    StateEntry entry;
    entry.name = name;
    entry.path = {{PathItem::Kind::kKey, 0, name}};
    entry.value = value;
    manifest.state.entries.push_back(entry);
  }
  return manifest;
}

/// Whether state of `name` at world size `before` is of another mesh than `mesh`.
bool changes(const std::string& name, std::int64_t before, const std::string& mesh,
             Value value = Value::list({Value::dict({})}), Value args = Value::dict({})) {
  Manifest manifest = with_values({{name, value}, {"args", args}});
  manifest.world_size = before;
  const Mesh after = Mesh::parse(mesh);
  const auto found = find_rank_objects(manifest, {after.world_size(), after});
  REQUIRE(found.size() == 1);
  return found[0].changes;
}

struct Run {
  std::vector<Note> notes;  // of RANKS alone
  std::vector<std::string> dropped;
  OpenedContent content;
};

Run run(const std::string& sample, const std::string& mesh, RankStatePolicy policy,
        const std::string& format = "") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, sample);
  ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
  if (!mesh.empty()) options.target.mesh = Mesh::parse(mesh);
  options.rank_state = policy;
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.published);
  Run done{{}, report.dropped, content_at(fs, "/out")};
  for (const Note& note : report.notes)
    if (note_code(note) == "RANKS") done.notes.push_back(note);
  return done;
}

constexpr const char* kFirst = "rng_state/shard_0_2";
constexpr const char* kSecond = "rng_state/shard_1_2";

}  // namespace

TEST_CASE("names of sharded objects tell a place in a grid") {
  const auto object = parse_sharded_object("a/rng_state/shard_0.1_2.4");
  REQUIRE(object);
  CHECK(object->key == "a/rng_state");
  CHECK(object->place == std::vector<std::int64_t>{0, 1});
  CHECK(object->grid == std::vector<std::int64_t>{2, 4});
  CHECK(object->number() == 1);
  CHECK(object->places() == 8);
  CHECK(parse_sharded_object("k/shard_1.3_2.4")->number() == 7);
  CHECK(parse_sharded_object("k/shard_1.3_2"));  // old cores left the last size out
  for (const std::string name :
       {"/shard_0_1", "k/shard_", "k/shard_0", "k/shard_0_", "k/shard__1", "k/shard_0_1x",
        "k/shard_-1_2", "k/shard_2_2", "k/shard_0_0", "k/shard_0._1.2", "k/shard_0_1.2",
        "k/shard_0.0_99999.99999999", "k/shard_99999999999_999999999999", "shard_0_1"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_sharded_object(name));
  }
}

TEST_CASE("objects of layers, and single ones, are no state of ranks") {
  const Value value = Value::list({Value()});
  const Manifest manifest =
      with_values({{"decoder.layers.mlp.linear_fc1._extra_state/shard_1_3", value},
                   {"decoder.layers.mlp.experts._extra_state/shard_1.0_3.8", value},
                   {"optimizer.distributed.dp_group_idx_1.optimizer/shard_0_1", value},
                   {"rng_state/shard_0.0_1.1", value},
                   {"iteration", Value::integer(5)},
                   {"rng_state/shard_0.1_1.2", value},
                   {"rerun_state_machine_state/shard_3_4", value}});
  const auto found = find_rank_objects(manifest, {});
  REQUIRE(found.size() == 2);
  CHECK(found[0].entry == 5);
  CHECK(found[0].family == "rng_state/shard_*_1.2");
  CHECK(found[1].number == 3);
}

TEST_CASE("a grid is that of the result, or of another mesh") {
  const std::string rng = "rng_state/shard_0.1_2.2", ep = "rng_state/shard_0.1.0_1.2.4";
  CHECK_FALSE(changes(rng, 4, "pp=2,tp=2"));
  CHECK_FALSE(changes(rng, 4, "dp=3,pp=2,tp=2"));  // copies of data-parallel ranks
  CHECK(changes(rng, 4, "pp=1,tp=4"));
  CHECK(changes(rng, 4, "pp=4,tp=1"));
  CHECK(changes(rng, 4, "dp=4"));
  CHECK_FALSE(changes(ep, 8, "dp=4,tp=2"));
  CHECK_FALSE(changes(ep, 8, "cp=2,dp=2,tp=2"));
  CHECK(changes(ep, 8, "dp=2,tp=2"));
  const std::string rerun = "rerun_state_machine_state/shard_1_2";
  CHECK_FALSE(changes(rerun, 2, "tp=2"));
  CHECK(changes(rerun, 2, "tp=2,dp=2"));
  const Value args =
      Value::dict({{Value::string("tensor_model_parallel_size"), Value::integer(2)}});
  const Value list = Value::list({Value::dict({})});
  CHECK(changes(rerun, 2, "dp=2", list, args));  // as many ranks, which do other things
  const std::string own = "loader/shard_1_2";
  CHECK_FALSE(changes(own, 4, "dp=2,tp=2"));
  CHECK_FALSE(changes(own, 2, "dp=2"));
  CHECK(changes(own, 2, "dp=4"));
}

TEST_CASE("generators that began apart are of as many data-parallel ranks") {
  const std::string rng = "rng_state/shard_0.1_1.2";
  const Value each = Value::list({Value::list({Value::dict({}), Value::dict({})})});
  CHECK_FALSE(changes(rng, 4, "dp=2,tp=2", each));
  CHECK_FALSE(changes(rng, 8, "cp=2,dp=2,tp=2", each));
  CHECK(changes(rng, 4, "dp=3,tp=2", each));
  const Value one = Value::list({Value::list({Value::dict({})})});
  CHECK_FALSE(changes(rng, 4, "dp=3,tp=2", one));
}

TEST_CASE("Megatron's generators are kept with a word where the mesh changes") {
  const std::string sample = "megatron/torch_dist_tp2_dp2";
  const Run same = run(sample, "dp=2,tp=2", RankStatePolicy::kDefault);
  CHECK(same.notes.empty());
  CHECK(same.content.values.contains(kSecond));
  CHECK(run(sample, "dp=3,tp=2", RankStatePolicy::kDefault).notes.empty());
  for (const RankStatePolicy policy : {RankStatePolicy::kDefault, RankStatePolicy::kKeep})
    for (const std::string mesh : {"tp=1", "tp=4", "pp=3,tp=2", "dp=4"}) {
      CAPTURE(mesh);
      const Run kept = run(sample, mesh, policy);
      CHECK(kept.dropped.empty());
      CHECK(kept.content.values.contains(kFirst));
      CHECK(kept.content.values.contains(kSecond));
      REQUIRE(kept.notes.size() == 1);
      CHECK(kept.notes[0].severity == Severity::kWarning);
      CHECK(kept.notes[0].message.find("rng_state/shard_*_2") != std::string::npos);
      CHECK(kept.notes[0].message.find("another mesh") != std::string::npos);
    }
}

TEST_CASE("the policy says what becomes of Megatron's generators") {
  const std::string sample = "megatron/torch_dist_tp2_dp2";
  for (const std::string mesh : {"tp=1", "dp=2,tp=2"}) {
    CAPTURE(mesh);
    const Run without = run(sample, mesh, RankStatePolicy::kDrop);
    CHECK(without.dropped == std::vector<std::string>{kFirst, kSecond});
    CHECK_FALSE(without.content.values.contains(kFirst));
    CHECK(without.content.values.contains("iteration"));
    REQUIRE(without.notes.size() == 1);
    CHECK(without.notes[0].message.find("left out") != std::string::npos);
    const Run first = run(sample, mesh, RankStatePolicy::kRank0);
    CHECK(first.dropped == std::vector<std::string>{kSecond});
    CHECK(first.content.values.contains(kFirst));
    CHECK(first.notes.size() == 1);
    std::string message;
    CHECK(test::code_of([&] { run(sample, mesh, RankStatePolicy::kError); }, &message) ==
          Code::kUnsupported);
    CHECK(message.find("rng_state/shard_*_2") != std::string::npos);
    CHECK((message.find("another mesh") != std::string::npos) == (mesh == "tp=1"));
  }
}

TEST_CASE("Megatron's generators go to other formats with a word and can be left out there") {
  const std::string sample = "megatron/torch_dist_tp2_dp2";
  for (const std::string format : {"safetensors", "torch-save", "torch-dcp"}) {
    CAPTURE(format);
    const Run kept = run(sample, "", RankStatePolicy::kDefault, format);
    CHECK(kept.notes.size() == 1);
    const Run without = run(sample, "", RankStatePolicy::kDrop, format);
    CHECK(without.notes.size() == 1);
    CHECK(without.dropped.size() == 2);
    CHECK(std::ranges::none_of(without.content.values, [](const auto& value) {
      return value.first.find("rng_state") != std::string::npos;
    }));
  }
  CHECK(run(sample, "dp=4", RankStatePolicy::kDefault, "torch-dcp").notes.size() == 1);
}

}  // namespace rank_objects_test

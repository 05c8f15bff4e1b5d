// verl's three files per rank, as PyTorch wrote them: sharded weights, torch.optim's own state,
// scheduler and random state. Under FSDP1 that optimizer state is runs of flat parameters that
// stand in no file: taken for state of single ranks, rank 0's would pass for everybody's.
#include <tessera/base/error.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/ops/convert.h>

#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_verl_test {
namespace {

using testing::SampleCase;

struct Verl {
  SampleCase sample;
  ReadOptions options;

  explicit Verl(const std::string& name, bool with_layout = true)
      : sample("../tests/format/data/verl/" + name) {
    if (with_layout)
      options.own.set(kFlatLayoutFlag,
                      test::read_whole(TESSERA_SOURCE_DIR "/tests/format/data/verl/" + name +
                                       "/expected.json"));
  }
  Manifest read() const {
    return testing::read_all(torch_rank_files_driver(), sample.place(), options);
  }
};

/// What PyTorch gathered. With use_orig_params, FSDP1's gathering on CPUs hands out one buffer
/// twice: what it calls exp_avg is exp_avg_sq.
void check_holds(const std::map<std::string, std::string>& content, const Verl& verl, bool orig) {
  std::size_t state = 0;
  for (const auto& [name, sum] : testing::expected_content(verl.sample.expected)) {
    if (orig && name.ends_with(".exp_avg")) continue;
    CAPTURE(name);
    REQUIRE(content.contains(name));
    CHECK(content.at(name) == sum);
    state += name.ends_with(".exp_avg_sq");
  }
  CHECK(state == 13);
}

}  // namespace

TEST_CASE("verl's optimizer of FSDP1 is put together by the record of its flat parameters") {
  for (const std::string name : {"fsdp1_w2", "fsdp1_w3", "fsdp1_orig_w2"}) {
    CAPTURE(name);
    const Verl verl(name);
    const bool orig = name.find("orig") != name.npos;
    const Manifest manifest = verl.read();
    check_holds(testing::content_of(manifest, *verl.sample.directory), verl, orig);
    const StateEntry* members = manifest.state.find("optim.param_groups.0.params");
    REQUIRE(members);
    REQUIRE(members->value.as_list().size() == 13);
    CHECK(members->value.as_list()[0].as_string() == "embed.weight");
    CHECK(manifest.state.find("extra_state.rng.cpu.rank_1"));
    for (const std::int64_t ranks : {1, 2, 5}) {
      TargetRequest request;
      request.world_size = ranks;
      const testing::WrittenCheckpoint written(torch_rank_files_driver(), manifest,
                                               *verl.sample.directory, request);
      const Manifest again = testing::read_all(torch_rank_files_driver(), written.place());
      check_holds(testing::content_of(again, *written.directory), verl, orig);
    }
  }
}

TEST_CASE("verl's optimizer of FSDP1 without a record is flat, never one rank's for all") {
  const Verl verl("fsdp1_w2", false);
  const Manifest manifest = verl.read();
  const auto warned = std::ranges::find(manifest.notes, "CK071", testing::note_code<Note>);
  REQUIRE(warned != manifest.notes.end());
  CHECK_THAT(warned->message, Catch::Contains("--flat-layout FILE"));
  CHECK(manifest.state.find("optim.state.0.exp_avg.rank_0") == nullptr);
  const StoredTensor* flat = manifest.find("optim.state.0.exp_avg");
  REQUIRE(flat);
  CHECK(flat->chunk_count == 2);
  CHECK(flat->spec.shape == Shape{24});  // 15 + 6 + 2 elements, and one of padding
  testing::content_of(manifest, *verl.sample.directory);
}

TEST_CASE("a record of another model does not name verl's flat optimizer") {
  const Verl verl("fsdp1_w2", false);
  ReadOptions options;
  options.own.set(kFlatLayoutFlag,
                  R"({"flat_params": {"_flat_param": {"fqns": ["w"], "shapes": [[7]]}}})");
  CHECK_THROWS_WITH(testing::read_all(torch_rank_files_driver(), verl.sample.place(), options),
                    Catch::Contains("\"w\"") && Catch::Contains("which this model does not have"));
}

TEST_CASE("verl's optimizer of FSDP2 is keyed by id and sharded as the weights are") {
  const Verl verl("fsdp2_w2", false);
  MemoryFileSystem fs;
  const std::string source = testing::load_sample(fs, "../tests/format/data/verl/fsdp2_w2");
  ConvertOptions options = testing::convert_options(source, "/named", 3, "torch-dcp");
  options.optim_keys = OptimKeys::kFqn;
  options.rank_state = RankStatePolicy::kDrop;
  options.verify = true;
  CHECK(convert(fs, options).verified);
  check_holds(testing::content_at(fs, "/named").tensors, verl, false);
}

}  // namespace tessera::torch_rank_files_verl_test

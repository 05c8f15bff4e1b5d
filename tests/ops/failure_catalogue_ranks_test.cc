// The failures people meet when the number of ranks changes: what their framework refuses is a
// reshard here, and where it cannot be one, the message says what is missing.
#include <tessera/format/torchsnapshot.h>

#include "tests/support/broken_checkpoint.h"

namespace failure_catalogue_ranks_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

TEST_CASE("failure 4: a ZeRO checkpoint of 4 ranks becomes one of 2 and of 7 with its optimizer") {
  for (const std::int64_t ranks : {2, 7}) {
    BrokenSample zero("deepspeed/zero1_w4");
    const OpenedContent before = content_at(zero.fs, zero.path);
    REQUIRE(zero.convert_to("deepspeed-zero", ranks).to_string() == Status{}.to_string());
    CHECK(open_checkpoint(zero.fs, "/result").manifest.world_size == ranks);
    CHECK(content_at(zero.fs, "/result").tensors == before.tensors);
  }
}

TEST_CASE("failure 5: flat shards of another world size are told to be flat, with their ranks") {
  BrokenSample local("torchsave/fsdp1_local_rankfiles_w3");
  CHECK_THAT(local.verify(), Contains("--flat-layout FILE"));
  const Status status = local.convert_to("hf");
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(said(status), Contains("saved with W=3") && Contains("it was flattened") &&
                               Contains("--flat-layout FILE"));
  const Status resharded = local.convert_to("torch-rank-files", 2);
  REQUIRE(resharded.to_string() == Status{}.to_string());
}

TEST_CASE("failure 18: lists that ranks keep in other lengths stay with their ranks") {
  MemoryFileSystem fs;
  const auto integer = [](int n) {
    return fmt::format(R"({{"type":"int","serialized_value":"{}","replicated":false}})", n);
  };
  const std::string text = fmt::format(
      R"({{"version":"0.1.0","world_size":2,"manifest":{{)"
      R"("0/c":{{"type":"dict","keys":["l","same"]}},"1/c":{{"type":"dict","keys":["l","same"]}},)"
      R"("0/c/l":{{"type":"list"}},"1/c/l":{{"type":"list"}},"0/c/l/0":{0},"1/c/l/0":{0},)"
      R"("1/c/l/1":{1},"0/c/same":{0},"1/c/same":{0}}}}})",
      integer(1), integer(2));
  fs.write_file("/source/.snapshot_metadata", as_bytes(text));
  const auto values = content_at(fs, "/source").values;
  CHECK(values.at("rank_0.c.l") == "[1]");
  CHECK(values.at("rank_1.c.l") == "[1,2]");
  CHECK(values.at("c.same") == "1");
  try {
    convert(fs, convert_options("/source", "/result", 3, "torch-dcp"));
    FAIL("state of single ranks went to another world size in silence");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK_THAT(said(error.status()),
               Contains("belong to single ranks") && Contains("--rank-state keep, drop or rank0"));
  }
  CHECK_FALSE(fs.stat("/result"));
}

TEST_CASE("failure 6: parallelism whose parts nothing describes is refused, not guessed") {
  BrokenSample zero("deepspeed/zero2_w2");
  zero.fs.rename("/source/global_step2/mp_rank_00_model_states.pt",
                 "/source/global_step2/mp_rank_01_model_states.pt");
  const Status status = zero.convert_to("torch-dcp");
  CHECK_FALSE(status.ok());
  CHECK_THAT(said(status), Contains("mp_rank_0"));
}

}  // namespace failure_catalogue_ranks_test

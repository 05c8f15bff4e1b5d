// What a stranger reads: nothing said twice, nothing left unsaid, no list that is empty for want of
// an answer.
#include <catch2/catch.hpp>

#include "tests/support/run_command.h"

namespace plain_words_test {

using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("what a conversion leaves out is said once") {
  const TemporaryFolder t;
  const CommandResult hf = convert({case_path("dcp/fsdp2_w4"), t / "hf", "--to", "hf"});
  INFO(hf.out << hf.err);
  REQUIRE(hf.exit == 0);
  CHECK(count_of(hf.out + hf.err, "39 tensors") == 1);
  CHECK_THAT(hf.err, Contains("balance: ") && Contains("left out: 39 tensors, 24 values"));
  CHECK_THAT(hf.out, Contains("of what was written, content equals the source"));
  const CommandResult whole =
      convert({case_path("dcp/fsdp2_w4"), t / "whole", "--to", "torch-dcp", "--verify"});
  CHECK_THAT(whole.out, Contains("verified") && !Contains("of what was written"));
  const CommandResult json =
      convert({case_path("dcp/fsdp2_w4"), t / "json", "--to", "hf", "--format", "json"});
  CHECK_THAT(json.out, Contains(R"("not_compared":["39 tensors and 24 values left out:)"));
}

TEST_CASE("what is left out or behind and has no count or size is given none") {
  const TemporaryFolder t;
  const CommandResult module =
      convert({case_path("torchsave/whole_module"), t / "module", "--to", "torch-dcp"});
  INFO(module.out << module.err);
  CHECK_THAT(module.err, Contains("left out: options, hooks and other attributes of modules"));
  const CommandResult shard = convert(
      {case_path("torchsave/hf_shards") + "/pytorch_model-00001-of-00002.bin", t / "shard", "--to",
       "torch-dcp"});
  INFO(shard.out << shard.err);
  CHECK_THAT(shard.err, Contains("left behind") && !Contains("0 B"));
}

TEST_CASE("ls --rank refuses where no file says who wrote it") {
  for (const char* name : {"deepspeed/zero3_w2", "megatron/legacy_tp2",
                           "torchsnapshot/model_optim_w2", "torch-checkpointing/plain_w2"}) {
    const CommandResult ls = inspect({"ls", case_path(name), "--rank", "1"});
    INFO(name << ls.out << ls.err);
    CHECK(ls.exit == 2);
    CHECK_THAT(ls.err, Contains("--rank 1: the names of its files do not say which rank"));
  }
  CHECK(inspect({"ls", case_path("dcp/fsdp2_w4"), "--rank", "1"}).exit == 0);
}

TEST_CASE("a checkpoint without an optimizer is said to have none, once") {
  const CommandResult optim = inspect({"optim", case_path("safetensors/hf_sharded")});
  CHECK(optim.exit == 0);
  CHECK(count_of(optim.out, "no optimizer state") == 1);
  CHECK_THAT(optim.out, !Contains("no findings"));
  const CommandResult trend =
      inspect({"trend", case_path("safetensors/hf_sharded"), "--tensor", "*", "--of", "update"});
  INFO(trend.out << trend.err);
  CHECK_THAT(trend.out, Contains("has optimizer state, which update is taken from") &&
                            !Contains("1 checkpoints"));
}

TEST_CASE("a slice without elements is said to be that") {
  const CommandResult show =
      inspect({"show", case_path("dcp/fsdp2_w4"), "model.embed.weight", "--slice", ":,99:100"});
  CHECK(show.exit == 0);
  CHECK_THAT(show.out, Contains("the slice holds no elements"));
}

TEST_CASE("a file named by a flag is no checkpoint that is corrupt") {
  const CommandResult ls = inspect({"ls", case_path("dcp/fsdp2_w4"), "--flat-layout", "/dev/null"});
  CHECK(ls.exit == 2);
  CHECK_THAT(ls.err, !Contains("corrupt"));
}

}  // namespace plain_words_test

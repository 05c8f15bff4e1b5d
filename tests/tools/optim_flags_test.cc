// --optim-keys and --prefer: what they accept, and what they do to a real checkpoint.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/support/run_command.h"
#include "tools/args/args.h"

namespace optim_flags_test {

using namespace tessera;
using namespace tessera::tools;
using Catch::Contains;

namespace {

Arguments parse(std::vector<std::string> words) { return parse_arguments(Tool::kConvert, words); }

}  // namespace

TEST_CASE("optimizer keys and preferred weights are one of their words") {
  const auto parsed = [](std::vector<std::string> words) {
    return parse(std::move(words)).convert;
  };
  CHECK(parsed({"s", "d", "--to", "torch-dcp", "--optim-keys", "fqn"}).optim_keys ==
        OptimKeys::kFqn);
  CHECK(parsed({"s", "d", "--to", "torch-dcp", "--optim-keys=id"}).optim_keys == OptimKeys::kId);
  CHECK(parsed({"s", "d", "--to", "torch-dcp", "--optim-keys=flat"}).optim_keys ==
        OptimKeys::kFlat);
  CHECK(parsed({"s", "d", "--to", "torch-dcp", "--optim-keys=keep"}).optim_keys ==
        OptimKeys::kKeep);
  CHECK(parsed({"s", "d", "--to", "hf", "--prefer", "master"}).prefer_master);
  CHECK_FALSE(parsed({"s", "d", "--to", "hf", "--prefer", "stored"}).prefer_master);
  CHECK_FALSE(parsed({"s", "d", "--to", "hf"}).prefer_master);
  CHECK_THROWS_AS(parse({"s", "d", "--to", "hf", "--prefer", "slave"}), Error);
  CHECK_THROWS_AS(parse({"s", "d", "--to", "hf", "--optim-keys", "name"}), Error);
}

TEST_CASE("ids become names and names become ids on the command line") {
  const testing::TemporaryFolder folder;
  const std::string source = testing::case_path("torchsave/adamw_zip");
  const auto named = testing::convert(
      {source, folder / "named", "--to", "torch-dcp", "--optim-keys", "fqn", "--verify"});
  INFO(named.err);
  REQUIRE(named.exit == 0);
  CHECK_THAT(testing::inspect({"ls", folder / "named"}).out,
             Contains("optim.state.embed.weight.exp_avg"));
  const auto back = testing::convert({folder / "named", folder / "back.pt", "--optim-keys", "id"});
  REQUIRE(back.exit == 0);
  CHECK(testing::inspect({"hash", folder / "back.pt", "--format", "json"})
            .out.find(R"("name":"optim.state.0.exp_avg")") != std::string::npos);
  CHECK(testing::inspect({"diff", source, folder / "back.pt"}).exit == 0);
}

TEST_CASE("ids become flattened keys and come back on the command line") {
  const testing::TemporaryFolder folder;
  const std::string source = testing::case_path("torchsave/adamw_zip");
  const auto flat =
      testing::convert({source, folder / "flat.pt", "--optim-keys", "flat", "--verify"});
  INFO(flat.err);
  REQUIRE(flat.exit == 0);
  CHECK_THAT(testing::inspect({"ls", folder / "flat.pt", "--format", "json"}).out,
             Contains(R"("optim.param_groups.embed.weight.lr")"));
  CHECK(testing::inspect({"diff", source, folder / "flat.pt"}).exit == 0);
  const auto back =
      testing::convert({folder / "flat.pt", folder / "back.pt", "--optim-keys", "id", "--verify"});
  INFO(back.err);
  REQUIRE(back.exit == 0);
  CHECK(testing::inspect({"diff", source, folder / "back.pt"}).exit == 0);
  const auto refused =
      testing::convert({source, folder / "x", "--to", "safetensors", "--optim-keys", "flat"});
  CHECK(refused.exit == 2);
  CHECK_THAT(refused.err, Contains("--optim-keys flat is for"));
}

TEST_CASE("an exported model takes its weights from the master copies when asked") {
  const testing::TemporaryFolder folder;
  const std::string source = testing::case_path("deepspeed/zero2_bf16_w2");
  const auto result = testing::convert({source, folder / "hf", "--to", "hf", "--prefer", "master"});
  INFO(result.err);
  REQUIRE(result.exit == 0);
  CHECK_THAT(result.err + result.out, Contains("come from their master copies"));
  const auto plain = testing::convert({testing::case_path("torchsave/adamw_zip"), folder / "x",
                                       "--to", "hf", "--prefer", "master"});
  CHECK(plain.exit == 5);
  CHECK_THAT(plain.err, Contains("no fp32 master copies"));
}

}  // namespace optim_flags_test

// Flags that single formats take, as people type them: exit statuses, several PATHs, --explain-path,
// --strict, and the numbers of stat.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace format_flags_command_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

void refused(const CommandResult& result, int exit, const std::string& flag) {
  INFO(result.out << result.err);
  CHECK(result.exit == exit);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains(flag));
}

}  // namespace

TEST_CASE("flags that the format at hand never takes are exit 2, values it does not take exit 5") {
  const TemporaryFolder t;
  const std::string dcp = case_path("dcp/fsdp2_w4"), out = t / "out";
  std::ofstream(t / "layout.json") << R"({"flat_params": {}})";
  refused(inspect({"ls", dcp, "--assume-plain"}), 2, "--assume-plain");
  refused(inspect({"ls", dcp, "--flat-layout", t / "layout.json"}), 2, "--flat-layout");
  for (const std::string to : {"deepspeed-zero", "fairscale-fsdp"}) {
    refused(convert({dcp, out, "--to", to, "--mesh", "dp=2", "--placements", "*=replicate"}), 2,
            "--placements");
    refused(convert({dcp, out, "--to", to, "--world-size", "2", "--replicate", "*"}), 2,
            "--replicate");
    refused(convert({dcp, out, "--to", to, "--mesh", "tp=2"}), 5, "--mesh tp=2");
  }
  refused(convert({dcp, out, "--to", "safetensors", "--world-size", "2"}), 5, "--world-size 2");
  refused(convert({dcp, out, "--to", "safetensors", "--zero-stage", "2"}), 2, "--zero-stage");
  refused(convert({dcp, out, "--to", "torch-dcp", "--max-shard-size", "1MB"}), 2,
          "--max-shard-size");
  refused(convert({dcp, out, "--to", "torch-dcp", "--as-index"}), 2, "--as-index");
  refused(convert({dcp, out, "--to", "megatron-dist", "--world-size", "2"}), 2, "--world-size");
  CHECK(t.names() == std::vector<std::string>{"layout.json"});
}

TEST_CASE("of several PATHs one at least takes the flag") {
  const std::string megatron = case_path("megatron/legacy_tp2"), dcp = case_path("dcp/fsdp2_w4");
  CHECK(inspect({"verify", "--quick", megatron, dcp, "--assume-plain"}).exit == 0);
  CHECK(inspect({"diff", dcp, megatron, "--assume-plain"}).exit == 1);
  refused(inspect({"verify", "--quick", dcp, case_path("torchsave/plain_zip"), "--assume-plain"}),
          2, "--assume-plain is for megatron-torch, not for torch-dcp or torch-save");
}

TEST_CASE("summary --explain-path prints what each rule said") {
  const TemporaryFolder t;
  std::filesystem::copy(case_path("dcp/fsdp2_w2"), t / "a",
                        std::filesystem::copy_options::recursive);
  const CommandResult below = inspect({"summary", t.path(), "--explain-path"});
  INFO(below.out << below.err);
  CHECK(below.exit == 0);
  CHECK_THAT(below.out,
             Contains("5.") && Contains("the one checkpoint below it") && Contains("torch-dcp"));
  const CommandResult direct = inspect({"summary", t / "a", "--explain-path", "--format", "json"});
  CHECK(direct.exit == 0);
  const Value document = parsed(direct.out);
  CHECK(schema_violations(published_schema("path"), document).empty());
  CHECK(document.find("rules")->as_list()[1].find("answer")->as_string() == "yes");
  CHECK(document.find("rules")->as_list()[2].find("answer")->as_string() == "not asked");
  std::filesystem::copy(t / "a", t / "b", std::filesystem::copy_options::recursive);
  const CommandResult several = inspect({"summary", t.path(), "--explain-path"});
  CHECK(several.exit == 3);
  CHECK_THAT(several.out, Contains("failed"));
  CHECK_THAT(several.err, Contains("2 checkpoints lie below"));
}

TEST_CASE("summary --explain-path takes nothing that selects in a checkpoint") {
  const std::string path = case_path("dcp/fsdp2_w2");
  for (const std::vector<std::string>& flag :
       std::vector<std::vector<std::string>>{{"--include", "model.*"},
                                             {"--exclude", "x"},
                                             {"--only", "model"},
                                             {"--root", "model"},
                                             {"--globals"}}) {
    std::vector<std::string> words{"summary", path, "--explain-path"};
    words.insert(words.end(), flag.begin(), flag.end());
    refused(inspect(words), 2, flag[0]);
  }
  CHECK(inspect({"summary", path, "--explain-path", "--from", "torch-dcp"}).exit == 0);
}

TEST_CASE("a flag of the other side is refused without contradicting itself") {
  const TemporaryFolder t;
  std::ofstream(t / "layout.json") << R"({"flat_params": {}})";
  refused(convert({case_path("dcp/fsdp2_w4"), t / "out", "--to", "torch-rank-files",
                   "--flat-layout", t / "layout.json"}),
          2, "--flat-layout is for reading torch-rank-files, not for torch-dcp");
}

TEST_CASE("stat --row-norms shows them of more tensors than are shown in full") {
  const CommandResult all = inspect({"stat", case_path("dcp/fsdp2_w4"), "--row-norms"});
  INFO(all.out);
  CHECK(all.exit == 0);
  CHECK_THAT(all.out, Contains("row norms"));
  CHECK(inspect({"stat", case_path("dcp/fsdp2_w4")}).out.find("row norms") == std::string::npos);
}

TEST_CASE("stat: chosen quantiles, bins, logarithmic histograms and norms of rows") {
  const std::string path = case_path("dcp/fsdp2_w4");
  const std::vector<std::string> words{"stat", path, "--include", "model.head.weight"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return inspect(all);
  };
  const auto tensor = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--format", "json"});
    const CommandResult result = with(more);
    CHECK(result.exit == 0);
    const Value document = parsed(result.out);
    CHECK(schema_violations(published_schema("stat"), document).empty());
    return document.find("tensors")->as_list().at(0);
  };
  const Value plain = tensor({});
  CHECK(plain.find("quantiles")->as_dict().size() == 7);
  CHECK(plain.find("histogram")->find("counts")->as_list().size() == 32);
  CHECK(plain.find("row_norms") == nullptr);
  const Value asked = tensor({"--quantiles", "0.5,0.999,0", "--bins", "5", "--row-norms"});
  REQUIRE(asked.find("quantiles")->as_dict().size() == 3);
  CHECK(*asked.find("quantiles")->find("0") == *plain.find("min"));
  CHECK(*asked.find("quantiles")->find("50") == *plain.find("quantiles")->find("50"));
  CHECK(asked.find("quantiles")->find("99.9") != nullptr);
  CHECK(asked.find("histogram")->find("counts")->as_list().size() == 5);
  const auto rows = static_cast<std::size_t>(plain.find("shape")->as_list()[0].as_int());
  CHECK(asked.find("row_norms")->as_list().size() == rows);
  CHECK(tensor({"--log-histogram"}).find("histogram")->find("scale")->as_string() == "log10");
  CHECK(tensor({"--histograms", "0"}).find("histogram")->is_none());
  CHECK_THAT(with({"--quantiles", "0.25", "--row-norms"}).out,
             Contains("25%:") && Contains("row norms"));
  refused(with({"--quantiles", "1.5"}), 2, "--quantiles");
  refused(with({"--bins", "0"}), 2, "--bins");
}

TEST_CASE("convert --strict: what lies beside the source and is left behind is exit 1") {
  const TemporaryFolder t;
  const std::string source = t / "run";
  std::filesystem::copy(case_path("safetensors/hf_sharded"), source,
                        std::filesystem::copy_options::recursive);
  const auto to = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words{source, t / name, "--to", "torch-dcp"};
    words.insert(words.end(), more.begin(), more.end());
    return convert(words);
  };
  CHECK(to("whole", {"--strict", "--verify"}).exit == 0);
  std::ofstream(source + "/scheduler.pt") << "state";
  CHECK(to("loose", {}).exit == 0);
  const CommandResult strict = to("strict", {"--strict"});
  INFO(strict.err);
  CHECK(strict.exit == 1);
  CHECK(std::filesystem::exists(t / "strict"));
  CHECK(to("part", {"--strict", "--only", "model"}).exit == 0);
}

}  // namespace format_flags_command_test

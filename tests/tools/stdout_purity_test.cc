// Under --format json and ndjson stdout is JSON and nothing else, for every verb, as the published
// schemas say.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace stdout_purity_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

void check_json(const CommandResult& result, const std::string& schema,
                bool may_be_negative = false) {
  INFO(result.err);
  REQUIRE((result.exit == 0 || (may_be_negative && result.exit == 1)));
  REQUIRE_FALSE(result.out.empty());
  CHECK(result.out.find('\n') == result.out.size() - 1);
  const Value document = parsed(result.out);
  for (const std::string& violation : schema_violations(published_schema(schema), document)) {
    FAIL_CHECK(schema << " " << violation);
  }
  REQUIRE(document.find("path"));
}

void check_ndjson(const CommandResult& result) {
  INFO(result.err);
  REQUIRE_FALSE(result.out.empty());
  REQUIRE(result.out.back() == '\n');
  const auto lines = split(std::string_view(result.out).substr(0, result.out.size() - 1), '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Value line = parsed(std::string(lines[i]));
    REQUIRE(line.find("type"));
    CHECK((line.find("type")->as_string() == "end") == (i + 1 == lines.size()));
  }
  CHECK(parsed(std::string(lines.back())).find("count")->as_int() ==
        static_cast<std::int64_t>(lines.size()) - 1);
}

void check_verb(std::vector<std::string> words, const std::string& schema,
                bool may_be_negative = false) {
  INFO(fmt::format("{}", fmt::join(words, " ")));
  words.insert(words.end(), {"--format", "json"});
  check_json(inspect(words), schema, may_be_negative);
  words.back() = "ndjson";
  check_ndjson(inspect(words));
}

const std::vector<std::string> kCases = {"dcp/fsdp2_w4",
                                         "dcp/fsdp1_local_w3",
                                         "dcp/objects_w2",
                                         "dcp/fsdp2_tp_2x2",
                                         "dcp-old/torch-2.2.2_dtensor_2x2",
                                         "torchsave/adamw_zip",
                                         "torchsave/bare_tensor_legacy",
                                         "safetensors/all_dtypes",
                                         "safetensors/hf_sharded"};

}  // namespace

TEST_CASE("summary, ls, hash and verify print their schema's JSON") {
  for (const std::string& name : kCases) {
    check_verb({"summary", case_path(name)}, "summary");
    check_verb({case_path(name)}, "summary");
    check_verb({"ls", case_path(name)}, "ls");
    check_verb({"ls", case_path(name), "--chunks", "--sort", "size", "--top", "3"}, "ls");
    check_verb({"hash", case_path(name)}, "hash");
    check_verb({"verify", case_path(name)}, "verify");
    check_verb({"verify", case_path(name), "--quick"}, "verify");
  }
  check_verb({"verify", case_path(kCases[0]), case_path(kCases[1])}, "verify");
  check_verb({"verify", case_path(kCases[0]), sample("hostile/bit_flip_crc.pt"),
              sample("hostile/dcp_hole")},
             "verify", true);
  check_verb({"summary", case_path("torchsave/adamw_zip"), "--globals"}, "summary");
}

TEST_CASE("stat, optim, show and diff print their schema's JSON") {
  for (const std::string& name : kCases) {
    check_verb({"stat", case_path(name)}, "stat", true);
    check_verb({"optim", case_path(name)}, "optim", true);
    check_verb({"diff", case_path(name), case_path(name)}, "diff");
  }
  const std::string path = case_path("dcp/fsdp2_w4");
  check_verb({"show", path, "model.head.weight"}, "show");
  check_verb({"show", path, "model.head.weight", "--slice", "0:2,:3"}, "show");
  check_verb({"show", path, "optim.param_groups.0.lr"}, "show");
  check_verb({"show", path, "model"}, "show");
  check_verb({"optim", path, path}, "optim", true);
  check_verb({"diff", path, case_path("dcp/fsdp2_w2_model_only")}, "diff", true);
}

TEST_CASE("a folder with several checkpoints prints the run schema") {
  const TemporaryFolder t;
  for (const std::string step : {"step-1", "step-20", "step-3"}) {
    CHECK(reshard({case_path("dcp/fsdp2_w4"), t / step, "--world-size", "2"}).exit == 0);
  }
  const CommandResult result = inspect({t.path(), "--format", "json"});
  check_json(result, "run");
  const Value rows = *parsed(result.out).find("checkpoints");
  REQUIRE(rows.as_list().size() == 3);
  CHECK(rows.as_list()[1].find("step")->as_int() == 3);
  check_ndjson(inspect({t.path(), "--format", "ndjson"}));
  CHECK(inspect({t.path()}).out.find("step-20") != std::string::npos);
}

TEST_CASE("reshard and convert print what they wrote, or would write") {
  const TemporaryFolder t;
  const std::string path = case_path("dcp/fsdp2_w4");
  check_json(reshard({path, t / "plan", "--world-size", "3", "--dry-run", "--format", "json"}),
             "plan");
  CHECK(t.names().empty());
  check_json(reshard({path, t / "three", "--world-size", "3", "--format", "json"}), "convert");
  check_json(reshard({path, t / "proved", "--world-size", "2", "--verify", "--format", "json"}),
             "convert");
  check_json(convert({path, t / "one.pt", "--format", "json"}), "convert");
  check_json(convert({path, t / "m.safetensors", "--root", "model", "--format", "json"}),
             "convert");
  check_ndjson(convert({path, t / "two.pt", "--format", "ndjson"}));
  const CommandResult human = convert({path, t / "three.pt"});
  CHECK(human.exit == 0);
  CHECK(human.out.find("three.pt") != std::string::npos);
  // Planned bytes are the real ones.
  const Value plan = parsed(
      reshard({path, t / "again", "--world-size", "3", "--dry-run", "--format", "json"}).out);
  const Value done =
      parsed(reshard({path, t / "again", "--world-size", "3", "--format", "json"}).out);
  CHECK(plan.find("bytes")->as_int() == done.find("bytes")->as_int());
}

TEST_CASE("what cannot fit is refused with exit 6 before work, by a dry run too") {
  const TemporaryFolder t;
  const std::string path = case_path("dcp/fsdp2_w4");
  const std::vector<std::string> words = {path, t / "out", "--world-size", "3", "--format", "json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return reshard(more);
  };
  const Value plan = parsed(with({"--dry-run"}).out);
  CHECK(plan.find("free_bytes")->as_int() > 0);
  CHECK(plan.find("peak_memory_bound")->as_int() ==
        plan.find("metadata_bytes")->as_int() + plan.find("staged_bytes_bound")->as_int());
  CHECK(plan.find("peak_memory_bound")->as_int() > 0);
  for (const bool dry : {true, false}) {
    const CommandResult refused =
        dry ? with({"--mem-limit", "1024TiB", "--dry-run"}) : with({"--mem-limit", "1024TiB"});
    INFO(refused.err);
    CHECK(refused.exit == 6);
    CHECK(refused.err.find("lower --mem-limit") != std::string::npos);
    CHECK(refused.out.empty());
    CHECK(t.names().empty());
  }
  // Room for what is written, to the byte.
  const Value done = parsed(with({}).out);
  std::int64_t written = 0;
  for (const auto& file : std::filesystem::directory_iterator(t / "out"))
    if (file.path().filename() != "tessera.manifest.json")
      written += static_cast<std::int64_t>(file.file_size());
  CHECK(plan.find("bytes")->as_int() == written);
  CHECK(done.find("bytes")->as_int() == written);
}

TEST_CASE("show --npy - writes a NumPy file to stdout and nothing else") {
  const CommandResult result =
      inspect({"show", case_path("dcp/fsdp2_w4"), "model.head.weight", "--npy", "-"});
  REQUIRE(result.exit == 0);
  CHECK(result.out.substr(1, 5) == "NUMPY");
  const TemporaryFolder t;
  const std::string file = t / "w.npy";
  CHECK(inspect({"show", case_path("dcp/fsdp2_w4"), "model.head.weight", "--npy", file}).exit == 0);
  CHECK(inspect({"show", case_path("dcp/fsdp2_w4"), "model.head.weight", "--npy", file}).exit == 2);
}

}  // namespace stdout_purity_test

// ckpt-inspect audit and trend: forms, exit status, the page, a hundred checkpoints in time.
// (tests/report looks at the page in a browser.)
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"
#include "tests/support/training_run.h"

namespace audit_command_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Five checkpoints of a small training in `folder`; `edit` may change what is saved.
void save_run(
    const std::string& folder,
    const std::function<void(int, TrainingRun&)>& edit = [](int, TrainingRun&) {}) {
  TrainingRun run(1, 2, 32);
  for (int i = 1; i <= 5; ++i) {
    run.train(10);
    TrainingRun saved = run;
    edit(i, saved);
    const Bytes bytes = saved.checkpoint();
    std::ofstream(fmt::format("{}/step_{}.pt", folder, saved.step), std::ios::binary)
        << as_text(bytes);
  }
}

Value valid_document(const CommandResult& result, const std::string& schema) {
  INFO(result.err);
  REQUIRE_FALSE(result.out.empty());
  const Value document = parsed(result.out);
  for (const std::string& violation : schema_violations(published_schema(schema), document))
    FAIL_CHECK(schema << " " << violation);
  return document;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("audit prints its schema's document, and exits by its findings") {
  const TemporaryFolder t;
  save_run(t.path());
  for (const bool deep : {false, true}) {
    std::vector<std::string> words = {"audit", t.path(), "--format", "json", "--strict"};
    if (deep) words.push_back("--deep");
    const CommandResult result = inspect(words);
    const Value document = valid_document(result, "audit");
    CHECK(result.exit == 0);
    CHECK(document.find("ok")->as_bool());
    CHECK(document.find("checkpoints")->as_list().size() == 5);
    CHECK(document.find("newest_sound")->as_string() == "step_50.pt");
    CHECK(document.find("layers")->as_list().empty() == !deep);
    CHECK(document.find("sampling")->is_none() == !deep);
  }
  const std::string human = inspect({"audit", t.path(), "--deep"}).out;
  CHECK_THAT(human, Contains("resume from step_50.pt") && Contains("model.layers.1") &&
                        Contains("could go"));
  const CommandResult lines = inspect({"audit", t.path(), "--deep", "--format", "ndjson"});
  CHECK(count(lines.out, "{\"type\":\"checkpoint\"") == 5);
  CHECK_THAT(lines.out, Contains("{\"type\":\"layer\"") && Contains("{\"type\":\"end\""));
}

TEST_CASE("a negative audit is exit 1, a warning only with --strict") {
  const TemporaryFolder bad, odd;
  save_run(bad.path(), [](int i, TrainingRun& run) {
    if (i >= 3) run["lm_head.weight"].w[0] = NAN;
  });
  const CommandResult result = inspect({"audit", bad.path(), "--deep", "--format", "json"});
  CHECK(result.exit == 1);
  CHECK_FALSE(valid_document(result, "audit").find("ok")->as_bool());
  CHECK(inspect({"audit", bad.path()}).exit == 0);
  save_run(odd.path(), [](int i, TrainingRun& run) { run.stores_optimizer = i != 5; });
  CHECK(inspect({"audit", odd.path()}).exit == 0);
  CHECK(inspect({"audit", odd.path(), "--strict"}).exit == 1);
  CHECK(inspect({"audit", odd / "none"}).exit == 3);
}

TEST_CASE("trend prints points, and a picture of one tensor") {
  const TemporaryFolder t;
  save_run(t.path());
  for (const std::string of : {"norm", "v_max", "update"}) {
    const std::vector<std::string> words = {
        "trend", t.path(), "--tensor", "model.layers.*.mlp.weight", "--of", of};
    std::vector<std::string> json = words;
    json.insert(json.end(), {"--format", "json"});
    const Value document = valid_document(inspect(json), "trend");
    CHECK(document.find("measure")->as_string() == of);
    CHECK(document.find("points")->as_list().size() == (of == "update" ? 8 : 10));
    CHECK(inspect(words).exit == 0);
  }
  const CommandResult one = inspect({"trend", t.path(), "--tensor", "model.lm_head.weight"});
  CHECK(count(one.out, "\n") > 12);
  CHECK_THAT(one.out, Contains("steps 10 to 50"));
  CHECK(inspect({"trend", t.path()}).exit == 2);
  CHECK(inspect({"trend", t.path(), "--tensor", "nothing"}).exit == 2);
  CHECK(inspect({"trend", t.path(), "--tensor", "*", "--of", "mean"}).exit == 2);
}

TEST_CASE("the page of an audit is written once, whole, and has its document") {
  const TemporaryFolder t;
  std::filesystem::create_directory(t / "run");
  save_run(t / "run");
  const std::string page = t / "page.html";
  const CommandResult made = inspect({"audit", t / "run", "--deep", "--html", page});
  CHECK(made.exit == 0);
  CHECK_THAT(made.err, Contains("wrote"));
  const std::string before = text_of(page);
  CHECK(count(before, "<script") == 3);
  CHECK_THAT(before,
             Contains("Content-Security-Policy") && Contains("\"schema\":\"tessera.audit/1\""));
  CHECK(inspect({"audit", t / "run", "--html", page}).exit == 2);
  CHECK(text_of(page) == before);
  CHECK(inspect({"audit", t / "run", "--deep", "--html", page, "--force"}).exit == 0);
  CHECK(text_of(page) == before);
}

TEST_CASE("hostile names in a run drive no terminal") {
  const TemporaryFolder t;
  const std::string folder = t / "run\x1b[2J";
  std::filesystem::create_directory(folder);
  save_run(folder, [](int i, TrainingRun& run) {
    run.tensors()[1].name = "evil\x1b]0;x\x07\n</script><b>.weight";
    if (i > 3) run.tensors()[1].w[0] = NAN;
  });
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"audit", folder, "--deep"}, {"trend", folder, "--tensor", "*"}}) {
    const CommandResult result = inspect(words);
    INFO(result.out);
    CHECK(result.out.find('\x1b') == std::string::npos);
    CHECK(result.out.find('\a') == std::string::npos);
    CHECK(result.out.find("evil") != std::string::npos);
  }
}

TEST_CASE("a hundred sealed checkpoints are audited in a second") {
  const QuickFolder t;
  REQUIRE(reshard({case_path("dcp/fsdp2_w4"), t / "step_1", "--world-size", "4"}).exit == 0);
  for (int i = 2; i <= 100; ++i)
    std::filesystem::copy(t / "step_1", t / fmt::format("step_{}", i),
                          std::filesystem::copy_options::recursive);
  const CommandResult result = inspect({"audit", t.path(), "--format", "json"});
  const Value document = parsed(result.out);
  REQUIRE(document.find("checkpoints")->as_list().size() == 100);
  for (const Value& row : document.find("checkpoints")->as_list())
    CHECK(row.find("sealed")->as_bool());
  INFO("100 sealed checkpoints: " << result.seconds << " s");
  CHECK(result.seconds < 3);  // 1 s on a machine that does nothing else
}

}  // namespace audit_command_test

// Small things that somebody meets in the first hours: folders that are not there yet, narrow screens,
// labels, steps of renamed folders, files of other tools.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"
#include "tools/render/render.h"
#include "tools/render/screen.h"

namespace first_hours_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("the folders that a result lies in are made") {
  const TemporaryFolder t;
  CHECK(reshard({case_path("dcp/fsdp2_w4"), t / "a/b/w3", "--world-size", "3"}).exit == 0);
  CHECK(convert({case_path("dcp/fsdp2_w4"), t / "c/d/m.safetensors", "--only", "model"}).exit == 0);
  CHECK(inspect({t / "a/b/w3"}).exit == 0);
}

TEST_CASE("a table has no column for pictures that nobody drew") {
  const std::string many = inspect({"stat", case_path("dcp/fsdp2_w4")}).out;
  CHECK_THAT(many, Contains("zeros") && !Contains("histogram"));
  const std::string drawn = inspect({"stat", case_path("dcp/fsdp2_w4"), "--histograms", "100"}).out;
  CHECK_THAT(drawn, Contains("histogram"));
}

TEST_CASE("40 columns are enough for the summary and the table of a run") {
  const TemporaryFolder t;
  for (const char* step : {"step-100", "step-200"})
    std::filesystem::copy(case_path("dcp/fsdp2_w2"), t / step,
                          std::filesystem::copy_options::recursive);
  CommandOptions narrow;
  narrow.environment["COLUMNS"] = "40";
  narrow.directory = t.path();
  for (const std::string path : {".", "step-100"}) {
    std::istringstream lines(inspect({path}, narrow).out);
    for (std::string line; std::getline(lines, line);) {
      INFO(path << ": " << line);
      CHECK(tools::display_width(line) <= 40);
    }
  }
}

TEST_CASE("no listing passes 40 columns, and names keep all of their letters") {
  const TemporaryFolder t;
  const std::string name = "model.layers.11.post_attention_layernorm.weight";
  for (const char* file : {"a", "b"}) {
    std::string content = safetensors_of("{\"" + name +
                                             "\":{\"dtype\":\"F32\",\"shape\":[4,4],"
                                             "\"data_offsets\":[0,64]}}",
                                         std::string(64, '\0'));
    if (*file == 'b') content.back() = '?';
    std::ofstream(t / file + std::string(".safetensors"), std::ios::binary) << content;
  }
  CommandOptions narrow;
  narrow.environment["COLUMNS"] = "40";
  narrow.directory = t.path();
  const std::string case_of = std::filesystem::absolute(case_path("dcp/fsdp2_w4")).string();
  std::filesystem::create_directory_symlink(case_of, t / "c");
  const std::vector<std::vector<std::string>> all{
      {"ls", "a.safetensors"},
      {"ls", "a.safetensors", "--chunks"},
      {"tree", "a.safetensors"},
      {"stat", "a.safetensors"},
      {"show", "a.safetensors", name},
      {"diff", "a.safetensors", "b.safetensors"},
      {"ls", "c"},
      {"tree", "c"},
      {"stat", "c"},
      {"optim", "c"},
      {"optim", "c", "c"},
      {"diff", "a.safetensors", "c"},
      {"diff", "a.safetensors", "b.safetensors", "--by", "layer"}};
  for (const std::vector<std::string>& words : all) {
    const std::string out = inspect(words, narrow).out;
    std::istringstream lines(out);
    std::string joined;
    for (std::string line; std::getline(lines, line); joined += line) {
      INFO(words[0] << ": " << line);
      CHECK((tools::display_width(line) <= 40 || line.starts_with("hint: ")));
    }
    INFO(words[0] << "\n" << out);
    const bool in_parts = words[0] == "tree" || words.back() == "layer" || words[0] == "optim";
    if (words[1] == "a.safetensors" && !in_parts) CHECK_THAT(joined, Contains(name));
  }
}

TEST_CASE("a file that is refused as unsafe is not called damaged") {
  const TemporaryFolder t;
  for (const char* name : {"step-1.pt", "step-2.pt"})
    std::filesystem::copy(sample("hostile/reduce_os_system.pt"), t / name);
  const std::string run = inspect({t.path()}).out;
  CHECK_THAT(run, Contains("2 unsafe") && Contains("unsafe: step-1.pt, step-2.pt") &&
                      !Contains("damaged"));
  const CommandResult one = inspect({"ls", t / "step-1.pt"});
  CHECK(one.exit == 4);
  CHECK_THAT(one.err, StartsWith("ckpt-inspect: unsafe: ") && !Contains("corrupt"));
  const std::string globals = inspect({"summary", "--globals", t / "step-1.pt"}).out;
  CHECK_THAT(globals, Contains("UNSAFE: loading it elsewhere would run code"));
}

TEST_CASE("facts of the summary wrap before they are cut") {
  CommandOptions narrow;
  narrow.environment["COLUMNS"] = "40";
  const std::string text = inspect({case_path("dcp/fsdp2_w2")}, narrow).out;
  const std::size_t first = text.find('\n');  // above it stands the path
  const std::string facts = text.substr(first, text.find("optimizer") - first);
  CHECK_THAT(facts, Contains("other values") && Contains(".distcp") && !Contains("…"));
}

TEST_CASE("a folder that was renamed shows the step that it holds") {
  const TemporaryFolder t;
  for (const char* step : {"step-7000", "step-8000"})
    std::filesystem::copy(sample("megatron/torch_dist_tp1_dp1/checkpoint/iter_0000100"), t / step,
                          std::filesystem::copy_options::recursive);
  CHECK_THAT(inspect({t / "step-7000"}).out, Contains("100 (iteration)"));
  CHECK_THAT(inspect({t.path()}).out, Contains("7000 (holds 100)"));
}

TEST_CASE("a label keeps all of its letters") {
  using tools::fact_line;
  const tools::Screen narrow{40, false, false};
  CHECK(fact_line("global_step", "7 (global_step)", narrow) == "  global_step 7 (global_step)\n");
  CHECK(fact_line("step", "7", narrow) == "  step       7\n");
  const std::string long_text(60, 'x');
  CHECK(tools::display_width(fact_line("a label that is long", long_text, narrow)) <= 41);
}

TEST_CASE("an archive of NumPy is called what it is") {
  const TemporaryFolder t;
  std::filesystem::copy(TESSERA_SOURCE_DIR "/tests/tools/data/a.npz", t / "a.npz");  // numpy.savez
  const CommandResult result = inspect({t / "a.npz"});
  CHECK(result.exit == 5);
  CHECK_THAT(result.err, Contains("NumPy"));
}

}  // namespace first_hours_test

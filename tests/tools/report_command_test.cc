// ckpt-inspect report: what it refuses, what it leaves, and that nothing of a checkpoint can end its data.
// (tests/report looks at the page in a browser.)
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace report_command_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("report writes a page once, whole, and says how large it is") {
  const TemporaryFolder t;
  const std::string source = case_path("dcp/fsdp2_w4");
  const std::string page = t.path() + "/page.html";
  const CommandResult made = inspect({"report", source, "-o", page, "--format", "json"});
  REQUIRE(made.exit == 0);
  const Value document = parsed(made.out);
  CHECK(schema_violations(published_schema("report"), document).empty());
  CHECK(document.find("bytes")->as_int() == static_cast<std::int64_t>(text_of(page).size()));
  CHECK(text_of(page).find("Content-Security-Policy") != std::string::npos);
  const std::string before = text_of(page);
  const CommandResult again = inspect({"report", source, "-o", page});
  CHECK(again.exit == 2);
  CHECK_THAT(again.err, Catch::Contains("exists"));
  CHECK(text_of(page) == before);
  CHECK(inspect({"report", source, "-o", page, "--force", "--stats"}).exit == 0);
  CHECK(text_of(page).size() > before.size());
  CHECK(inspect({"report", source, "-o", "-"}).out == before);
}

TEST_CASE("a page on stdout is the page, or in the document") {
  const std::string source = case_path("dcp/fsdp2_w4");
  const std::string page = inspect({"report", source, "-o", "-"}).out;
  CHECK(page.starts_with("<!DOCTYPE html>"));
  const Value document = parsed(inspect({"report", source, "-o", "-", "--format", "json"}).out);
  CHECK(schema_violations(published_schema("report"), document).empty());
  CHECK(document.find("page")->as_string() == page);
  CHECK(document.find("bytes")->as_int() == static_cast<std::int64_t>(page.size()));
}

TEST_CASE("a damaged checkpoint has a page that says so, and its metadata is read once") {
  const TemporaryFolder t;
  const std::string copy = t.path() + "/copy", page = t.path() + "/page.html";
  std::filesystem::copy(case_path("dcp/fsdp2_w4"), copy, std::filesystem::copy_options::recursive);
  std::filesystem::remove(copy + "/__2_0.distcp");
  const CommandResult made = inspect({"report", copy, "-o", page});
  CHECK(made.exit == 4);
  CHECK_THAT(made.err, Catch::Contains("__2_0.distcp"));
  CHECK_THAT(text_of(page), Catch::Contains("__2_0.distcp"));
  const Value quick = parsed(inspect({"verify", copy, "--quick", "--format", "json"}).out);
  REQUIRE(!quick.find("findings")->as_list().empty());
  for (const Value& finding : quick.find("findings")->as_list())
    CHECK_THAT(text_of(page), Catch::Contains(finding.find("code")->as_string()));
  std::filesystem::remove(page);
  const CommandResult json = inspect({"report", copy, "-o", page, "--format", "json"});
  CHECK(json.exit == 4);
  CHECK(json.out.empty());
  CHECK_FALSE(std::filesystem::exists(page));
  CHECK(inspect({"report", copy, "-o", page, "--stats"}).exit == 4);
  CHECK_FALSE(std::filesystem::exists(page));
}

TEST_CASE("stat, optim and diff print the same and write their page beside it") {
  const TemporaryFolder t;
  const std::string a = case_path("dcp/fsdp2_w4"), b = case_path("dcp/fsdp2_w2");
  int at = 0;
  for (const std::vector<std::string>& words : {std::vector<std::string>{"stat", a},
                                                {"stat", a, "--format", "json"},
                                                {"optim", a},
                                                {"optim", a, b, "--format", "json"},
                                                {"diff", a, b},
                                                {"diff", a, b, "-q"},
                                                {"diff", a, a, "--format", "json"}}) {
    INFO(words[0] << " " << words.size());
    const std::string page = t.path() + "/" + std::to_string(at++) + ".html";
    const CommandResult without = inspect(words);
    std::vector<std::string> with = words;
    with.insert(with.end(), {"--html", page});
    const CommandResult made = inspect(with);
    CHECK(made.exit == without.exit);
    CHECK(made.out == without.out);
    CHECK_THAT(made.err, Catch::Contains("wrote " + page));
    const std::string section = words[0] == "stat"    ? "tensors"
                                : words[0] == "optim" ? "optimizer"
                                                      : "compare";
    CHECK_THAT(text_of(page), Catch::Contains("\"opens\":\"" + section + "\""));
    CHECK(inspect(with).exit == 2);  // it is there
    with.emplace_back("--force");
    CHECK(inspect(with).exit == without.exit);
  }
  const CommandResult refused = inspect({"stat", a, "--html", "-"});
  CHECK(refused.exit == 2);
  CHECK(refused.out.empty());
}

TEST_CASE("pictures are SVG that names what they show") {
  const TemporaryFolder t;
  const std::string a = case_path("dcp/fsdp2_w4");
  const std::string other = t.path() + "/other.safetensors";
  REQUIRE(convert({a, other, "--only", "model", "--dtype", "bf16"}).exit == 0);
  REQUIRE(convert({other, t.path() + "/again.safetensors", "--dtype", "fp32"}).exit == 0);
  const auto picture = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "report");
    words.insert(words.end(), {"-o", "-"});
    const CommandResult made = inspect(words);
    CHECK(made.exit == 0);
    CHECK(made.out.starts_with("<svg xmlns="));
    CHECK(made.out.ends_with("</svg>\n"));
    CHECK(count(made.out, "<title>") == count(made.out, "</title>"));
    CHECK(count(made.out, "<text") == count(made.out, "</text>"));
    CHECK(made.out.find("nan") == std::string::npos);
    return made.out;
  };
  const std::string modules = picture({a, "--svg", "modules"});
  CHECK_THAT(modules,
             Catch::Contains("<title>model: 1.5 KiB</title>") && Catch::Contains("optim.state"));
  const Value optim = parsed(inspect({"optim", a, "--format", "json"}).out);
  const std::string updates = picture({a, "--svg", "updates"});
  for (const Value& row : optim.find("optimizers")->as_list()[0].find("updates")->as_list())
    CHECK_THAT(updates, Catch::Contains("<title>" + row.find("name")->as_string() + ": "));
  const std::string change =
      picture({a, t.path() + "/again.safetensors", "--only", "model", "--svg", "change"});
  CHECK(count(change, "<rect") > 10);
  const std::string histogram =
      picture({a, "--include", "model.embed.weight", "--svg", "histogram"});
  CHECK_THAT(histogram, Catch::Contains("model.embed.weight  float32 [11, 6]") &&
                            Catch::Contains("magnitudes"));
  const std::string file = t.path() + "/m.svg";
  CHECK(inspect({"report", a, "--svg", "modules", "-o", file}).exit == 0);
  CHECK(text_of(file) == modules);
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{a, "--svg", "change"},
        {a, a, "--svg", "modules"},
        {a, "--svg", "histogram"},
        {a, "--svg", "modules", "--stats"},
        {case_path("safetensors/hf_sharded"), "--svg", "updates"},
        {a, "--svg", "nothing"}}) {
    std::vector<std::string> words = refused;
    words.insert(words.begin(), "report");
    words.insert(words.end(), {"-o", "-"});
    const CommandResult result = inspect(words);
    CHECK(result.exit == 2);
    CHECK(result.out.empty());
  }
}

TEST_CASE("report refuses before it writes") {
  const TemporaryFolder t;
  CHECK(inspect({"report", case_path("dcp/fsdp2_w4")}).exit == 2);
  CHECK(inspect({"report", t.path() + "/none", "-o", t.path() + "/page.html"}).exit == 3);
  CHECK(inspect({"report", case_path("dcp/fsdp2_w4"), "-o", t.path() + "/no/page.html"}).exit == 3);
  CHECK(std::filesystem::is_empty(std::filesystem::path(t.path())));
}

TEST_CASE("no name ends the data of a page") {
  const TemporaryFolder t;
  const std::string header =
      R"({"</script><script>alert(1)</script><!--":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + "x";
  const std::string source = t.path() + "/m.safetensors", page = t.path() + "/page.html";
  std::ofstream(source, std::ios::binary) << file;
  REQUIRE(inspect({"report", source, "-o", page, "--stats"}).exit == 0);
  const std::string text = text_of(page);
  CHECK(count(text, "<script") == 3);
  CHECK(count(text, "</script>") == 3);
  CHECK_THAT(text, Catch::Contains("\\u003c/script>\\u003cscript>alert(1)"));
  const std::string svg = inspect({"report", source, "--svg", "modules", "-o", "-"}).out;
  CHECK(count(svg, "<script") == 0);
  CHECK_THAT(svg, Catch::Contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
}

}  // namespace report_command_test

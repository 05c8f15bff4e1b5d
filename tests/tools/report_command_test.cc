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
}

}  // namespace report_command_test

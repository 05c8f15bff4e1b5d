// ckpt-inspect explain, and the pages that are printed from the same table.
#include <tessera/encoding/json.h>
#include <tessera/state/findings.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/support/cli_oracle.h"
#include "tests/support/json_schema.h"
#include "tests/support/run_command.h"

namespace explain_command_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

std::string text_of(const std::string& relative) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/" + relative);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("explain prints a code with its cause and cure") {
  const CommandResult one = inspect({"explain", "ck011"});
  CHECK(one.exit == 0);
  CHECK(one.err.empty());
  const FindingInfo& row = finding_info(Finding::kShortFile);
  CHECK_THAT(one.out, Contains("CK011  error") && Contains(std::string(row.meaning)) &&
                          Contains("exit with 1") && Contains("disk was full") &&
                          Contains("Restore the file"));
  CHECK_THAT(one.out, !Contains("`"));
}

TEST_CASE("explain without a code lists every code once") {
  const CommandResult all = inspect({"explain"});
  CHECK(all.exit == 0);
  for (const FindingInfo& row : all_findings()) {
    if (row.finding == Finding::kNone) continue;
    const std::string head = "\n" + std::string(row.code) + " ";
    INFO(row.code);
    const std::size_t at = ("\n" + all.out).find(head);
    REQUIRE(at != std::string::npos);
    CHECK(("\n" + all.out).find(head, at + 1) == std::string::npos);
  }
}

TEST_CASE("explain has a document") {
  const CommandResult json = inspect({"explain", "OP007", "PATH", "--format", "json"});
  CHECK(json.exit == 0);
  const Value document = parsed(json.out);
  CHECK(schema_violations(published_schema("explain"), document).empty());
  const Value* rows = document.find("findings");
  REQUIRE(rows != nullptr);
  REQUIRE(rows->as_list().size() == 2);
  CHECK(rows->as_list()[0].find("code")->as_string() == "OP007");
  CHECK(rows->as_list()[0].find("level")->is_none());
}

TEST_CASE("an unknown code is exit 3 with the nearest") {
  const CommandResult near = inspect({"explain", "ck012x"});
  CHECK(near.exit == 3);
  CHECK(near.out.empty());
  CHECK_THAT(near.err, Contains("CK012") && Contains("lists every code"));
  const CommandResult far = inspect({"explain", "nonsense"});
  CHECK(far.exit == 3);
  CHECK_THAT(far.err, !Contains("did you mean"));
}

TEST_CASE("the pages of codes end with what --generate prints") {
  for (const std::string page : {"verify-codes", "optim-codes", "audit-codes"}) {
    const std::string mark =
        "<!-- From here on printed by: ckpt-inspect --generate " + page + " -->\n\n";
    const std::string text = text_of("docs/" + page + ".md");
    const std::size_t at = text.find(mark);
    REQUIRE(at != std::string::npos);
    CHECK(text.substr(at + mark.size()) == inspect({"--generate", page}).out);
  }
}

}  // namespace explain_command_test

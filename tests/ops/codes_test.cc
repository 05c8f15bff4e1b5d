// Sources name findings by their enumerators, and the pages of codes list what the table has.
#include <tessera/state/findings.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace codes_test {

using tessera::all_findings;
using tessera::Finding;
using tessera::FindingInfo;

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

bool is_numbered(const FindingInfo& row, std::string_view family) {
  return row.code.starts_with(family) && row.code.size() == family.size() + 3;
}

/// Codes of the table's rows on the page, in the page's order.
std::vector<std::string> listed(const std::string& page) {
  const std::string text = text_of(fs::path(TESSERA_SOURCE_DIR) / "docs" / page);
  const std::regex row("\n\\| ([A-Z]+\\d*) \\|");
  std::vector<std::string> codes;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
    codes.push_back((*it)[1]);
  return codes;
}

}  // namespace

TEST_CASE("codes are unique, found in any case, and explained") {
  std::set<std::string_view> codes;
  for (const FindingInfo& row : all_findings()) {
    INFO(row.code);
    CHECK(codes.insert(row.code).second);
    if (row.finding == Finding::kNone) continue;
    CHECK(tessera::find_finding(row.code) == row.finding);
    CHECK_FALSE(row.meaning.empty());
    CHECK(row.meaning.find('|') == std::string_view::npos);  // a cell of a table
    CHECK(row.cause.ends_with('.'));
    CHECK(row.cure.ends_with('.'));
    CHECK(row.severities.starts_with(tessera::severity_name(row.severity)));
  }
  CHECK(tessera::find_finding("ck011") == Finding::kShortFile);
  CHECK_FALSE(tessera::find_finding("CK11"));
  CHECK_FALSE(tessera::find_finding(""));
}

TEST_CASE("no source spells the code of a finding, or a severity, as text", "[wide]") {
  const std::regex comment("//[^\n]*");
  const std::regex code("\"(CK|OP|ST|AU)\\d{3}\"");
  const std::regex severity("\\{[^{}\n]*\"(info|warning|error)\",|severity (==|!=) \"");
  std::size_t files = 0;
  for (const char* tree : {"lib", "include", "tools", "fsdp_core"})
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / tree)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cc" && extension != ".h") continue;
      if (entry.path().parent_path().filename() == "finding_rows") continue;
      ++files;
      INFO(entry.path());
      const std::string text = std::regex_replace(text_of(entry.path()), comment, "");
      CHECK_FALSE(std::regex_search(text, code));
      CHECK_FALSE(std::regex_search(text, severity));
    }
  CHECK(files > 500);
}

TEST_CASE("the pages of codes list every code once") {
  std::vector<std::string> verify, optim, audit;
  for (const FindingInfo& row : all_findings()) {
    const bool is_optim = is_numbered(row, "OP") || is_numbered(row, "ST");
    const bool is_audit = is_numbered(row, "AU");
    if (row.finding != Finding::kNone)
      (is_audit ? audit : is_optim ? optim : verify).emplace_back(row.code);
  }
  std::vector<std::string> page = listed("verify-codes.md");
  std::ranges::sort(page);
  std::ranges::sort(verify);
  CHECK(page == verify);
  CHECK(listed("optim-codes.md") == optim);
  CHECK(listed("audit-codes.md") == audit);
}

}  // namespace codes_test

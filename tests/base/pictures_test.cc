// Drawings and tables in headers' comments are laid out by hand. A formatter that reflows comments
// joins their rows into prose; what that leaves behind is looked for in every header.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace pictures_test {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLimit = 100;        // columns, as in .clang-format
constexpr std::size_t kNearly = 85;        // a row this long may have been broken to fit
constexpr std::size_t kPictureIndent = 3;  // columns between the slashes and a picture

/// A line that is a comment and nothing else.
struct Row {
  std::size_t indent = 0;  // spaces behind the slashes
  std::size_t length = 0;  // of the whole line
  std::string text;
  std::vector<std::size_t> columns;  // where cells begin, behind two spaces or more
};

std::optional<Row> row_of(const std::string& line) {
  const std::size_t slashes = line.find_first_not_of(' ');
  if (slashes == std::string::npos || line.compare(slashes, 2, "//") != 0) return std::nullopt;
  std::size_t at = line.find_first_not_of('/', slashes);
  Row row;
  row.length = line.size();
  if (at == std::string::npos) return row;
  const std::size_t begin = line.find_first_not_of(' ', at);
  if (begin == std::string::npos) return row;
  row.indent = begin - at;
  row.text = line.substr(begin);
  for (std::size_t i = begin + 3; i < line.size(); ++i)  // a comment on a line of code is no cell
    if (line[i] != ' ' && line[i] != '/' && line[i - 1] == ' ' && line[i - 2] == ' ')
      row.columns.push_back(i);
  return row;
}

/// Whether the first word of `row` would not have fitted behind `before`.
bool broken_to_fit(const Row& before, const Row& row) {
  const std::size_t word = std::min(row.text.find(' '), row.text.size());
  return before.length >= kNearly && before.length <= kLimit && before.length + 1 + word > kLimit;
}

bool share_a_column(const Row& a, const Row& b) {
  return std::any_of(a.columns.begin(), a.columns.end(), [&](std::size_t column) {
    return std::find(b.columns.begin(), b.columns.end(), column) != b.columns.end();
  });
}

/// One or two words of prose: "the", "next folder".
bool is_remnant(const Row& row) {
  const auto first = static_cast<unsigned char>(row.text.front());
  return std::count(row.text.begin(), row.text.end(), ' ') < 2 && row.text.back() != ';' &&
         (std::isalnum(first) != 0 || first == '"');
}

bool is_item(const Row& row) { return row.indent == 1 && row.text.starts_with("- "); }

/// Whether `row` begins with what was the end of the row before it.
bool was_joined(const Row& before, const Row& row, const Row* after) {
  if (before.text.empty() || row.text.empty()) return false;
  if (is_item(before) && row.indent == 1 && !is_item(row)) return true;
  if (before.indent < kPictureIndent || before.indent != row.indent) return false;
  if (!broken_to_fit(before, row)) return false;
  if (!before.columns.empty()) return !share_a_column(before, row);
  const bool goes_on = after != nullptr && !after->text.empty() && after->indent >= row.indent;
  return is_remnant(row) && goes_on;
}

/// Numbers of the lines, from 1, that begin with the end of another row.
std::vector<std::size_t> joined_rows(std::istream& header) {
  std::vector<std::optional<Row>> rows;
  for (std::string line; std::getline(header, line);) rows.push_back(row_of(line));
  std::vector<std::size_t> found;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (!rows[i - 1] || !rows[i]) continue;
    const Row* after = i + 1 < rows.size() && rows[i + 1] ? &*rows[i + 1] : nullptr;
    if (was_joined(*rows[i - 1], *rows[i], after)) found.push_back(i + 1);
  }
  return found;
}

std::vector<std::size_t> joined_rows_of(const std::string& text) {
  std::istringstream header(text);
  return joined_rows(header);
}

}  // namespace

TEST_CASE("no header's picture has joined rows") {
  const fs::path root = TESSERA_SOURCE_DIR;
  int headers = 0;
  for (const char* folder : {"include", "lib", "tools", "fsdp_core", "tests", "fuzz"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".h") continue;
      ++headers;
      std::ifstream in(entry.path());
      for (const std::size_t line : joined_rows(in))
        FAIL_CHECK(entry.path().lexically_relative(root).string()
                   << ":" << line << ": this comment line begins with the end of the one above");
    }
  CHECK(headers > 300);
}

TEST_CASE("joined rows of a picture are found") {
  CHECK(joined_rows_of(R"(
//   all-gather       each rank sends its shard to every other one, straight between the tensors
//   reduce-scatter   all-to-all in pieces of at most 1 MiB per peer (two halves: one arrives while
//   the
//                    other is summed), then a sum in rank order
//   all-reduce       a reduce-scatter of slices and an all-gather of them; small ones in one
//   exchange broadcast        a binomial tree
)") == std::vector<std::size_t>{4, 7});
  CHECK(joined_rows_of(R"(
//   2. a pointer: the file `latest` or `latest_checkpointed_iteration.txt`, named or found in the
//   folder
//   3. parts of one state: accelerate's optimizer_N with pytorch_model_fsdp_N, or with rank files
)") == std::vector<std::size_t>{3});
  CHECK(joined_rows_of(R"(
// - An explicit table of opcodes (protocols 0 to 5, without buffers and extension registry calls);
// anything else is kCorrupt.
)") == std::vector<std::size_t>{3});
}

TEST_CASE("rows that stand as they were drawn are left alone") {
  CHECK(joined_rows_of(R"(
//   reduce-scatter   all-to-all in pieces of at most 1 MiB per peer (two halves: one arrives while
//                    the other is summed), then a sum in rank order
//   all-reduce       a reduce-scatter of slices and an all-gather of them; small ones in one pass
//   broadcast        a binomial tree
//
//   std::vector<float> weight(8 * 3), bias(3), and_more(4);                // memory of the job
//   tessera::LiveState state;
//   tessera::save("run/step_100", state, ranks);
//
// - The first item of a list that is long enough to be continued on the line that comes behind
//   it.
// - The second.
)")
            .empty());
}

}  // namespace pictures_test

// Columns, clipping, numbers and block characters: what keeps human output inside the screen.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/growth.h"
#include "tools/render/number_text.h"
#include "tools/render/screen.h"
#include "tools/render/table.h"

namespace text_layout_test {

using namespace tessera::tools;
using tessera::testing::processor_seconds;

TEST_CASE("widths count columns, not bytes") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("é…█") == 3);
  CHECK(display_width("漢字") == 4);
  CHECK(display_width("e\xcc\x81") == 1);  // a combining accent
  CHECK(display_width("\xff") == 1);       // not UTF-8: still one cell
  CHECK(pad_left("é", 3) == "  é");
  CHECK(pad_right("漢", 3) == "漢 ");
}

TEST_CASE("clipping keeps both ends and the width") {
  CHECK(clip_middle("short", 10) == "short");
  const std::string clipped = clip_middle("layers.10.attention.query.weight", 20);
  CHECK(display_width(clipped) == 20);
  CHECK(clipped.starts_with("layers"));
  CHECK(clipped.ends_with(".weight"));
  CHECK(clip_end("abcdef", 4) == "abc…");
  for (int width = 0; width < 12; ++width) {
    CHECK(display_width(clip_middle("漢字漢字漢字漢字", width)) <= width);
    CHECK(display_width(clip_end("漢字漢字漢字漢字", width)) <= width);
  }
}

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

}  // namespace

TEST_CASE("tables never cut a name and never pass the width") {
  Table table({{"name", false, 1}, {"n", true}});
  table.add({std::string(200, 'x'), "12"});
  table.add({"b", "3,456"});
  const std::string text = table.render({60, false}, "  ");
  for (const std::string& line : lines_of(text)) {
    CHECK(display_width(line) <= 60);
    CHECK(line.starts_with("  "));
  }
  CHECK(std::ranges::count(text, 'x') == 200);
  CHECK(text.find("\x1b") == std::string::npos);
  CHECK(lines_of(Table({{"name", false, 1}}).render({60, false})).size() == 1);
  Table painted({{"a"}});
  painted.add({Cell("x", Tint::kRed)});
  CHECK(painted.render({60, true}).find("\x1b[31mx\x1b[0m") != std::string::npos);
}

TEST_CASE("columns that say the same and what names share are said once before anything is cut") {
  const auto table = [](std::size_t rows) {
    Table out({{"name", false, 1}, {"type"}, {"bytes", true}, {"files", false, 2}});
    for (std::size_t i = 0; i < rows; ++i)
      out.add({fmt::format("model.model.layers.{}.self_attn.q_proj.weight", i), "bfloat16",
               fmt::format("{} KiB", i), "model-00001-of-00002.safetensors"});
    return out;
  };
  for (const int width : {120, 80, 60, 40}) {
    CAPTURE(width);
    const std::string text = table(300).render({width, false});
    std::set<std::string> names;
    for (const std::string& line : lines_of(text)) {
      CHECK(display_width(line) <= width);
      if (const auto at = line.find(".self_attn"); at != line.npos)
        names.insert(line.substr(0, line.find(' ', at)));
    }
    CHECK(names.size() == 300);  // each row is still another one
    CHECK(text.find("…") == text.npos);
    CHECK((text.find("names below model.model.layers.") != text.npos) == (width < 120));
    CHECK((text.find("type bfloat16") != text.npos) == (width < 120));
  }
  // All fits: nothing is folded. Two rows are not worth a line. A pipe gets cells as they are.
  CHECK(table(300).render({160, false}).find("all rows") == std::string::npos);
  CHECK(table(2).render({80, false}).find("all rows") == std::string::npos);
  CHECK(table(300).render({80, false, true}).find("all rows") == std::string::npos);
}

TEST_CASE("a column that may be left out gives its room once") {
  Table table({{"name", false, 1}, {"step", true}, {"age", true, 0, true}, {"state"}});
  for (const char* step : {"100 (holds 4)", "200 (holds 4)", "300"})
    table.add({"step-" + std::string(step, 3), step, "46 min", *step == '1' ? "whole" : "damaged"});
  std::istringstream lines(table.render({32, false, false}, "  "));
  for (std::string line; std::getline(lines, line);) CHECK(display_width(line) <= 32);
}

TEST_CASE("text wraps at spaces") {
  CHECK(wrap("one two three", 8, "") == "one two\nthree\n");
  CHECK(wrap("a verylongword b", 6, " ") == " a\n veryl\n ongwo\n rd b\n");
  CHECK(wrap("layers.0.mlp.down_proj.weight", 16, "") == "layers.0.mlp.\ndown_proj.weight\n");
  CHECK(wrap("a.verylongword", 6, "") == "a.very\nlongwo\nrd\n");
  CHECK(wrap("", 10, "").empty());
}

TEST_CASE("numbers read well") {
  CHECK(count_text(0) == "0");
  CHECK(count_text(999) == "999");
  CHECK(count_text(1000) == "1,000");
  CHECK(count_text(1234567) == "1,234,567");
  CHECK(counted(1, "file") == "1 file");
  CHECK(counted(2000, "file") == "2,000 files");
  CHECK(real_text(std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(real_text(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(real_text(std::optional<double>()) == "-");
  CHECK(percent_text(1.0 / 3) == "33.3 %");
  CHECK(percent_text(1e-6) == "<0.1 %");
  CHECK(seconds_text(0.421) == "0.42 s");
  CHECK(seconds_text(125) == "2 min 05 s");
  CHECK(seconds_text(3 * 3600 + 7 * 60) == "3 h 07 min");
  CHECK(shape_text(std::vector<std::int64_t>{}) == "scalar");
  CHECK(shape_text(std::vector<std::int64_t>{8, 3}) == "[8, 3]");
}

TEST_CASE("pictures of numbers") {
  CHECK(bar(0, 4).empty());
  CHECK(bar(1, 4) == "████");
  CHECK(bar(1e-9, 4) == "▏");
  CHECK(bar(0.5, 4) == "██");
  CHECK(sparkline(std::vector<std::int64_t>{0, 1, 8, 4, 100}) == " ▁▁▁█");
  CHECK(sparkline(std::vector<std::int64_t>{0, 0}) == "  ");
  const auto gathered = rebinned(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, 3);
  CHECK(gathered == std::vector<std::int64_t>{3, 7, 11});
  const auto lines = histogram_lines(std::vector<std::int64_t>{0, 1, 4}, 2);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "  █");
  CHECK(lines[1] == " ▄█");
}

TEST_CASE("a word of millions of letters wraps in a moment") {
  const std::string word(4'000'000, 'x');
  std::string lines;
  CHECK(processor_seconds([&] { lines = wrap(word, 80, "  "); }) < 5);
  CHECK(lines.size() == word.size() + 3 * ((word.size() + 77) / 78));
}

}  // namespace text_layout_test

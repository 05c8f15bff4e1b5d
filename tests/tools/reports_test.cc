// Reports as people read them: bounded in lines and columns, and harmless to a terminal whatever
// the names are.
#include <catch2/catch.hpp>
#include <sstream>

#include "tools/render/render.h"

namespace reports_test {

using namespace tessera;
using namespace tessera::tools;

namespace {

const std::string kHostileName = "evil\x1b[2Jname\n\x07" + std::string(300, 'n');

int longest_line(const std::string& text) {
  std::istringstream lines(text);
  int longest = 0;
  for (std::string line; std::getline(lines, line);)
    longest = std::max(longest, display_width(line));
  return longest;
}
long line_count(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

SummaryReport large_summary() {
  SummaryReport r;
  r.path = r.display = kHostileName;
  r.format = "torch-dcp";
  r.dialect = kHostileName;
  r.detected_by = std::string(400, 'd');
  r.complete = false;
  r.world_size = 4096;
  for (int i = 0; i < 50; ++i) {
    const std::string name = kHostileName + std::to_string(i);
    r.problems.push_back(name);
    r.numbers.push_back({name, i + 0.5, name});
    r.by_kind.push_back({name, 5, 7, 1000u * static_cast<unsigned>(50 - i)});
    r.by_dtype.push_back({name, 5, 7, 1000});
    r.roots.push_back({name, "other", 1, 1, 1});
    r.optimizers.push_back({name,
                            "AdamW",
                            name,
                            name,
                            {"exp_avg", "exp_avg_sq"},
                            3,
                            {{0, 1, 0.1, 0.2}, {1, 1, {}, {}}}});
    r.tied.push_back({name, name});
    r.provenance.emplace_back(name, name);
    r.globals.push_back({name, GlobalUse::Verdict::kOpaque, name});
    r.notes.push_back({Finding::kUnopenable, Severity::kWarning, name, name, name});
  }
  return r;
}

LsTensor sharded(std::vector<std::int64_t> shape, std::vector<std::vector<std::int64_t>> boxes) {
  LsTensor t;
  t.name = "w";
  t.dtype = "float32";
  t.shape = shape;
  t.numel = 1;
  for (const std::int64_t n : shape) t.numel *= n;
  for (const auto& box : boxes) {
    ChunkRow row;
    row.offsets.assign(box.begin(), box.begin() + static_cast<long>(shape.size()));
    row.lengths.assign(box.begin() + static_cast<long>(shape.size()), box.end());
    row.source = "extent";
    t.table.push_back(row);
  }
  t.chunks = static_cast<std::uint32_t>(boxes.size());
  return t;
}

}  // namespace

TEST_CASE("a summary stays within 40 lines and the width, whatever is in it") {
  for (const int width : {60, 100, 160}) {
    const std::string text = render_summary(large_summary(), false, {width, false});
    CHECK(line_count(text) <= 40);
    CHECK(longest_line(text) <= width);
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\a') == std::string::npos);
  }
  CHECK(line_count(render_summary(large_summary(), true, {100, false})) > 50);
}

TEST_CASE("a summary shows bytes by kind as bars, largest full") {
  SummaryReport r;
  r.by_kind = {{"exp_avg", 2, 2, 200}, {"param", 1, 1, 100}};
  const std::string text = render_summary(r, false, {100, false});
  CHECK(text.find("exp_avg  ████████████████████████████  66.7 %") != std::string::npos);
  CHECK(text.find("param    ██████████████                33.3 %") != std::string::npos);
}

TEST_CASE("the bars of a summary give way where the line is short") {
  SummaryReport r;
  r.by_kind = {{"distributed optimizer's shards", 20'000, 200'000, std::uint64_t{3} << 40},
               {"param", 1, 1, 100}};
  for (const int width : {60, 70, 100})
    CHECK(longest_line(render_summary(r, false, {width, false})) <= width);
}

TEST_CASE("hostile names drive no terminal in any listing") {
  LsReport ls;
  ls.path = kHostileName;
  ls.tensors.push_back(sharded({4}, {{0, 2}, {2, 2}}));
  ls.tensors[0].name = kHostileName;
  ls.tensors[0].files = {kHostileName};
  ls.values.emplace_back(kHostileName, Value::string("\x1b[31m" + std::string(500, 'v')));
  ls.notes.push_back(
      {Finding::kUnopenable, Severity::kWarning, kHostileName, kHostileName, kHostileName});
  DiffReport diff;
  diff.equal = false;
  TensorDiff values;
  values.name = kHostileName;
  values.first_a = values.first_b = "\x1b";
  diff.tensors = {values};
  diff.values.push_back({kHostileName, ValueDiff::What::kDiffers, Value::string("\x1b"), Value()});
  HashReport hash;
  hash.tensors.push_back({kHostileName, "float32", {4}, std::string(64, 'a')});
  const Screen screen{100, false};
  const auto render_ls = [&](bool chunks) {
    std::string text;
    const LsSource rows{ls.tensors.size(), [&](std::size_t i) { return ls.tensors[i]; }};
    write_ls(ls, rows, chunks, screen, [&](std::string_view piece) { text += piece; });
    return text;
  };
  for (const std::string& text :
       {render_ls(false), render_ls(true), render_diff(diff, nullptr, 5, screen),
        render_hash(hash, screen)}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\a') == std::string::npos);
    CHECK(longest_line(text) <= 100 + 16);  // the two roots of hash are wider than nothing else
  }
}

TEST_CASE("the chunk map draws one, two and flat cuts") {
  const Screen plain{100, false};
  CHECK(chunk_map(sharded({8, 3}, {{0, 0, 8, 3}}), plain).empty());
  const std::string rows = chunk_map(sharded({4, 3}, {{0, 0, 2, 3}, {2, 0, 2, 3}}), plain);
  CHECK(rows == "  00000000000000001111111111111111\n  dim 0, 4 long\n");
  const std::string grid =
      chunk_map(sharded({2, 4}, {{0, 0, 1, 2}, {0, 2, 1, 2}, {1, 0, 1, 2}, {1, 2, 1, 2}}), plain);
  CHECK(grid ==
        "  00000000000000001111111111111111\n"
        "  22222222222222223333333333333333\n"
        "  dim 0 down (2), dim 1 across (4)\n");
  LsTensor hole = sharded({4}, {{0, 1}, {2, 2}});
  CHECK(chunk_map(hole, plain).find("00000000........1111111111111111") != std::string::npos);
  LsTensor flat = sharded({2, 5}, {{0, 0, 2, 5}, {0, 0, 2, 5}});
  flat.table[0].is_flat = flat.table[1].is_flat = true;
  flat.table[0].flat_end = 4;
  flat.table[1].flat_begin = 4;
  flat.table[1].flat_end = 10;
  CHECK(chunk_map(flat, plain).find("000000000000111111111111111111") != std::string::npos);
  const LsTensor many = [] {
    std::vector<std::vector<std::int64_t>> boxes;
    for (std::int64_t i = 0; i < 300; ++i) boxes.push_back({i, 1});
    return sharded({300}, boxes);
  }();
  CHECK(longest_line(chunk_map(many, plain)) <= 66);
}

TEST_CASE("stat draws a histogram in full for few tensors, a line each for many") {
  StatReport report;
  TensorStat t;
  t.name = "w";
  t.dtype = "float32";
  t.shape = {8};
  t.count = t.finite = 8;
  t.min = -1;
  t.max = 1;
  t.mean = 0;
  t.std = 0.5;
  t.histogram = Histogram{false, -1, 1, 0, {1, 3, 3, 1}};
  report.tensors = {t};
  CHECK(render_stat(report, {100, false}).find("    ▂▆▆▂") == std::string::npos);
  CHECK(render_stat(report, {100, false}).find("██") != std::string::npos);
  report.tensors.assign(5, t);
  const std::string table = render_stat(report, {100, false});
  CHECK(table.find("▃██▃") != std::string::npos);
  CHECK(longest_line(table) <= 100);
}

}  // namespace reports_test

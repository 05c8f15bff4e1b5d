// Numbers about values, against NumPy and PyTorch (tests/ops/data/make_fixtures.py).
#include <tessera/ops/stat.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/inspect_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/safetensors_file.h"

namespace stat_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

StatOptions with_histograms() {
  StatOptions options;
  options.histograms_up_to = 100;
  return options;
}

StatReport stat_fixture(const StatOptions& options = {}) {
  OpenedCheckpoint opened = open_path(fixture("stat/tensors.pt"));
  return stat_checkpoint(opened, options);
}

const TensorStat& named(const StatReport& report, const std::string& name) {
  for (const TensorStat& stat : report.tensors)
    if (stat.name == name) return stat;
  FAIL("no " << name);
  return report.tensors.front();
}

void check_number(const char* what, const Value* want, std::optional<double> got) {
  INFO(what);
  REQUIRE(got.has_value() == (want != nullptr));
  if (!want) return;
  CHECK(std::abs(*got - want->as_real()) <= 1e-12 * std::abs(want->as_real()));
}

void check_count(const char* what, const Value& want, std::int64_t got) {
  INFO(what);
  CHECK(got == want.find(what)->as_int());
}

void check_first(const char* what, const Value& want, std::optional<std::int64_t> got) {
  INFO(what);
  const Value& first = *want.find(what);
  CHECK(got == (first.is_none() ? std::nullopt : std::optional(first.as_int())));
}

void check_tensor(const TensorStat& got, const Value& want) {
  INFO(got.name);
  check_count("count", want, got.count);
  check_count("finite", want, got.finite);
  check_count("nan", want, got.nan);
  check_count("pos_inf", want, got.pos_inf);
  check_count("neg_inf", want, got.neg_inf);
  check_count("zeros", want, got.zeros);
  check_count("subnormal", want, got.subnormal);
  check_count("outside_bf16", want, got.outside_bf16);
  check_count("outside_fp16", want, got.outside_fp16);
  check_first("first_nan", want, got.first_nan);
  check_first("first_inf", want, got.first_inf);
  check_number("min", want.find("min"), got.min);
  check_number("max", want.find("max"), got.max);
  check_number("mean", want.find("mean"), got.mean);
  check_number("std", want.find("std"), got.std);
  check_number("l1", want.find("l1"), got.l1);
  check_number("l2", want.find("l2"), got.l2);
  check_number("abs_max", want.find("abs_max"), got.abs_max);
}

void check_list(const std::vector<double>& got, const Value& want, double tolerance) {
  REQUIRE(got.size() == want.as_list().size());
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(std::abs(got[i] - want.as_list()[i].as_real()) <=
          tolerance * std::max(1e-300, std::abs(want.as_list()[i].as_real())));
}

}  // namespace

TEST_CASE("every number equals NumPy's") {
  const Value expected = json_file(fixture("stat/expected.json"));
  StatOptions options;
  options.row_norms = true;
  const StatReport report = stat_fixture(options);
  REQUIRE(report.tensors.size() == expected.as_dict().size());
  for (const auto& [name, want] : expected.as_dict()) {
    const TensorStat& got = named(report, name.as_string());
    check_tensor(got, want);
    if (const Value* quantiles = want.find("quantiles"))
      check_list(got.quantiles, *quantiles, 1e-12);
    if (const Value* rows = want.find("row_norms")) check_list(got.row_norms, *rows, 1e-12);
  }
}

TEST_CASE("histograms count what NumPy counts") {
  const Value expected = json_file(fixture("stat/expected.json"));
  const StatReport report = stat_fixture(with_histograms());
  for (const auto& [name, want] : expected.as_dict()) {
    const Value* counts = want.find("histogram");
    if (!counts || counts->is_none()) continue;
    INFO(name.as_string());
    const TensorStat& got = named(report, name.as_string());
    REQUIRE(got.histogram);
    std::vector<std::int64_t> numpy;
    for (const Value& count : counts->as_list()) numpy.push_back(count.as_int());
    CHECK(got.histogram->counts == numpy);
    CHECK(got.histogram->low == *got.min);
    CHECK(got.histogram->high == *got.max);
  }
}

TEST_CASE("neither threads nor a small memory limit change a number") {
  const Value expected = json_file(fixture("stat/expected.json"));
  StatOptions options;
  options.transfer.threads = 3;
  options.transfer.memory_limit_bytes = 96 << 10;  // the large tensor takes several blocks
  const StatReport report = stat_fixture(options);
  for (const auto& [name, want] : expected.as_dict()) {
    check_tensor(named(report, name.as_string()), want);
    if (const Value* quantiles = want.find("quantiles"))
      check_list(named(report, name.as_string()).quantiles, *quantiles, 1e-12);
  }
}

TEST_CASE("tensors inside of values are said to be unmeasured") {
  MemoryFileSystem fs;
  RankArchive archive;
  const Value tensor = archive.tensor(Shape{2}, {1, 2});
  fs.make_directories("/in");
  fs.write_file("/in/state.pt",
                archive.render(dict({{"w", archive.tensor(Shape{1}, {3})},
                                     {"pair", Value::list({tensor}, Value::Kind::kTuple)}})));
  OpenedCheckpoint opened = open_checkpoint(fs, "/in/state.pt");
  const StatReport report = stat_checkpoint(opened);
  CHECK(report.tensors.size() == 1);
  REQUIRE(report.notes.size() == 1);
  CHECK(report.notes[0].message == "1 tensor inside of values, first in \"pair\", is not measured");
}

TEST_CASE("NaN and Inf are findings with tensor and first element") {
  const StatReport report = stat_fixture();
  CHECK_FALSE(report.ok());
  const auto codes = by_code(report.findings);
  CHECK(codes.at("ST001") == std::vector<std::string>{"special", "only_nan"});
  CHECK(codes.at("ST002") == std::vector<std::string>{"special"});
  for (const Note& note : report.findings) {
    if (note.tensor != "special") continue;
    CHECK(note.message.find(note_code(note) == "ST001"
                                ? "first at element 7"
                                : "first at element 3") != std::string::npos);
  }
}

TEST_CASE("seeded NaN, Inf: one finding each in the optimizer fixtures") {
  for (const auto& [file, code, tensor] :
       {std::tuple("nan", "ST001", "optim.state.0.exp_avg"),
        std::tuple("inf", "ST002", "optim.state.1.exp_avg_sq")}) {
    OpenedCheckpoint opened = open_path(fixture(std::string("optim/") + file + ".pt"));
    const StatReport report = stat_checkpoint(opened);
    CHECK_FALSE(report.ok());
    CHECK(by_code(report.findings).at(code) == std::vector<std::string>{tensor});
  }
  OpenedCheckpoint healthy = open_path(fixture("optim/healthy.pt"));
  CHECK(stat_checkpoint(healthy).ok());
}

TEST_CASE("Inf in a single number beside the model is no error: a best score begins so") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  RankArchive archive;
  const Value model = dict({{"0.weight", archive.tensor({2}, {1, 2})}});
  const Value callbacks = dict({{"kth_value", archive.tensor(Shape{}, {kInf})}});
  MemoryFileSystem fs;
  fs.make_directories("/in");
  fs.write_file("/in/a.pt",
                archive.render(dict({{"state_dict", model}, {"callbacks", callbacks}})));
  OpenedCheckpoint score = open_checkpoint(fs, "/in/a.pt");
  const StatReport report = stat_checkpoint(score);
  CHECK(report.ok());
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].severity == Severity::kInfo);
  RankArchive other;
  const Value weights = dict({{"0.weight", other.tensor({2}, {1, kInf})}});
  fs.write_file("/in/b.pt", other.render(dict({{"state_dict", weights}})));
  OpenedCheckpoint weight = open_checkpoint(fs, "/in/b.pt");
  CHECK_FALSE(stat_checkpoint(weight).ok());
}

TEST_CASE("constant and all-zero are told apart") {
  const StatReport report = stat_fixture();
  CHECK(named(report, "constant").constant);
  CHECK_FALSE(named(report, "constant").all_zero);
  CHECK(named(report, "zeros").all_zero);
  CHECK_FALSE(named(report, "scalar").constant);
  CHECK_FALSE(named(report, "empty").all_zero);
  CHECK_FALSE(named(report, "int8").constant);
  const auto codes = by_code(report.findings);
  CHECK(codes.at("ST003") == std::vector<std::string>{"zeros"});
  CHECK(codes.at("ST004") == std::vector<std::string>{"constant"});
}

TEST_CASE("types without arithmetic are listed as skipped") {
  MemoryFileSystem fs;
  const std::string header = R"({"x":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}})";
  fs.write_file("/x.safetensors", as_bytes(safetensors_of(header, "abc")));
  OpenedCheckpoint opened = open_checkpoint(fs, "/x.safetensors");
  const StatReport report = stat_checkpoint(opened);
  REQUIRE(report.tensors.size() == 1);
  CHECK_FALSE(report.tensors[0].skipped.empty());
  CHECK(report.tensors[0].count == 6);
  CHECK_FALSE(report.tensors[0].mean);
  CHECK(report.ok());
}

TEST_CASE("logarithmic histograms keep zeros apart") {
  CHECK_FALSE(named(stat_fixture(), "int8").histogram);  // of more than three tensors none
  StatOptions options = with_histograms();
  options.log_histogram = true;
  const StatReport report = stat_fixture(options);
  const TensorStat& stat = named(report, "int8");
  REQUIRE(stat.histogram);
  CHECK(stat.histogram->logarithmic);
  std::int64_t sum = stat.histogram->zeros;
  for (std::int64_t n : stat.histogram->counts) sum += n;
  CHECK(sum == stat.finite);
  CHECK(stat.histogram->zeros == stat.zeros);
}

TEST_CASE("both histograms of one pass are those of two") {
  StatOptions linear = with_histograms(), logarithmic = linear, both = linear;
  logarithmic.log_histogram = true;
  both.both_histograms = true;
  const StatReport one = stat_fixture(linear), other = stat_fixture(logarithmic);
  std::size_t compared = 0;
  for (const TensorStat& stat : stat_fixture(both).tensors) {
    INFO(stat.name);
    const auto same = [](const std::optional<Histogram>& a, const std::optional<Histogram>& b) {
      REQUIRE(a.has_value() == b.has_value());
      if (!a) return false;
      CHECK(a->logarithmic == b->logarithmic);
      CHECK(a->low == b->low);
      CHECK(a->high == b->high);
      CHECK(a->zeros == b->zeros);
      CHECK(a->counts == b->counts);
      return true;
    };
    compared += same(stat.histogram, named(one, stat.name).histogram);
    compared += same(stat.log_histogram, named(other, stat.name).histogram);
    CHECK(stat.quantiles == named(one, stat.name).quantiles);
  }
  CHECK(compared > 8);
}

}  // namespace stat_test

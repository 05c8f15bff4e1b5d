// Second moments that stand out in one checkpoint, and parameters that NaN has taken the next
// update from.
#include "lib/ops/inspect/optim_outliers.h"

#include <tessera/ops/optim.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/inspect_case.h"
#include "tests/support/note_text.h"

namespace optim_outliers_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Moments of four layers with five parameters each, within a factor of 10,000 of each other.
std::vector<SecondMoment> ordinary() {
  std::vector<SecondMoment> moments;
  const std::pair<const char*, double> kinds[] = {{"attn.q.weight", 1e-8},
                                                  {"attn.k.weight", 3e-8},
                                                  {"mlp.up.weight", 1e-6},
                                                  {"mlp.down.weight", 2e-7},
                                                  {"norm.weight", 1e-4}};
  for (int layer = 0; layer < 4; ++layer)
    for (const auto& [name, size] : kinds)
      moments.push_back({"layers." + std::to_string(layer) + "." + name, "exp_avg_sq",
                         size * (layer + 1), "element 0 ([0])"});
  moments.push_back({"embed.weight", "exp_avg_sq", 1e-3, "element 0 ([0])"});
  return moments;
}

std::vector<std::string> named(const std::vector<SecondMoment>& moments) {
  std::vector<std::string> names;
  for (const Note& note : find_outliers(moments)) {
    CHECK(note_code(note) == "OP020");
    names.push_back(note.tensor);
  }
  return names;
}

}  // namespace

TEST_CASE("moments within what gradients differ by do not stand out") {
  CHECK(named(ordinary()).empty());
  CHECK(named({}).empty());
  CHECK(named({{"w", "exp_avg_sq", 1e9, ""}}).empty());  // there is nothing to compare it with
}

TEST_CASE("a moment that is far from its layer's and from its kind's is named") {
  for (std::size_t i = 0; i < ordinary().size(); ++i) {
    std::vector<SecondMoment> moments = ordinary();
    moments[i].max *= 1e12;
    INFO(moments[i].fqn);
    CHECK(named(moments) == std::vector<std::string>{moments[i].fqn});
  }
}

TEST_CASE("of two parameters the larger stands out, and never the smaller") {
  CHECK(named({{"0.weight", "sum", 1e-6, ""}, {"1.weight", "sum", 1e3, ""}}) ==
        std::vector<std::string>{"1.weight"});
  CHECK(named({{"0.weight", "sum", 1e-2, ""}, {"1.weight", "sum", 1e2, ""}}).empty());
}

TEST_CASE("a layer that is far off as a whole is far off for its kinds") {
  std::vector<SecondMoment> moments = ordinary();
  for (SecondMoment& moment : moments)
    if (moment.fqn.starts_with("layers.2.")) moment.max *= 1e12;
  CHECK(named(moments).size() == 5);
}

TEST_CASE("zeros and moments of other names are no measure") {
  std::vector<SecondMoment> moments = ordinary();
  for (SecondMoment& moment : moments) moment.max = 0;
  moments[3].max = 1e-3;
  CHECK(named(moments).empty());
  moments[4] = {moments[4].fqn, "square_avg", 1e12, ""};
  CHECK(named(moments).empty());
}

TEST_CASE("a parameter with NaN or Inf in its state ranks first and has no update") {
  for (const auto& [name, parameter] :
       {std::pair("nan", "first.weight"), std::pair("inf", "first.bias")}) {
    INFO(name);
    OpenedCheckpoint opened = open_path(fixture(std::string("optim/") + name + ".pt"));
    const OptimReport report = inspect_optimizer(opened, nullptr);
    REQUIRE_FALSE(report.optimizers[0].updates.empty());
    const UpdateRow& first = report.optimizers[0].updates[0];
    CHECK(first.fqn == parameter);
    CHECK(std::isnan(first.update_norm));
    CHECK(std::isnan(first.ratio));
    for (std::size_t i = 1; i < report.optimizers[0].updates.size(); ++i)
      CHECK(std::isfinite(report.optimizers[0].updates[i].update_norm));
    OpenedCheckpoint a = open_path(fixture(std::string("optim/") + name + ".pt"));
    OpenedCheckpoint b = open_path(fixture(std::string("optim/") + name + ".pt"));
    CHECK(inspect_optimizer(a, &b).optimizers[0].updates[0].fqn == parameter);
  }
}

TEST_CASE("findings stand by severity and code") {
  OpenedCheckpoint opened = open_path(fixture("optim/nan.pt"));
  const OptimReport report = inspect_optimizer(opened, nullptr);
  const auto rank = [](const Note& note) {
    return std::pair(note.severity == Severity::kError     ? 0
                     : note.severity == Severity::kWarning ? 1
                                                           : 2,
                     note_code(note));
  };
  for (std::size_t i = 1; i < report.findings.size(); ++i)
    CHECK(rank(report.findings[i - 1]) <= rank(report.findings[i]));
}

}  // namespace optim_outliers_test

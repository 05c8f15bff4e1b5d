// An optimizer with a group for each parameter, as layer-wise learning rates make them: what it
// costs grows with the groups, not with their square.
#include <fmt/format.h>
#include <tessera/ops/optim.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <utility>

#include "tests/support/growth.h"
#include "tests/support/hostile_bytes.h"

namespace optim_groups_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string text(const std::string& t) {
  return "X" + le(static_cast<std::uint32_t>(t.size())) + t;
}
std::string number(int n) { return "J" + le(std::int32_t{n}); }

/// Four floats at 4 * k of the only storage.
std::string tensor(int k, int count) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
         text("0") + text("cpu") + number(4 * count) + "tQ" + number(4 * k) + "(" + number(4) +
         "t(" + number(1) + "t\x89" + "ccollections\nOrderedDict\n)RtR";
}

/// {"model": {...}, "optimizer": {"state": {...}, "param_groups": [...]}}
std::string checkpoint_of(int count) {
  std::string weights, state, groups;
  for (int k = 0; k < count; ++k) {
    weights += text(fmt::format("l.{}.w", k)) + tensor(k, count);
    state += number(k) + "}(" + text("step") + number(5) + text("exp_avg") + tensor(k, count) + "u";
    groups += "}(" + text("lr") + number(1) + text("params") + "](" + number(k) + "eu";
  }
  const std::string pickle = std::string("\x80\x04", 2) + "}(" + text("model") + "}(" + weights +
                             "u" + text("optimizer") + "}(" + text("state") + "}(" + state + "u" +
                             text("param_groups") + "](" + groups + "euu.";
  return torch_zip_of(pickle, std::string(static_cast<std::size_t>(count) * 16, '\1'));
}

/// {"model": {...}, "optimizers": [...]}, one for each parameter.
std::string optimizers_of(int count) {
  std::string weights, optimizers;
  for (int k = 0; k < count; ++k) {
    weights += text(fmt::format("l.{}.w", k)) + tensor(k, count);
    optimizers += "}(" + text("state") + "}(" + number(0) + "}(" + text("step") + number(5) +
                  text("exp_avg") + tensor(k, count) + "uu" + text("param_groups") + "](}(" +
                  text("lr") + number(1) + text("params") + "](" + number(0) + "eueu";
  }
  const std::string pickle = std::string("\x80\x04", 2) + "}(" + text("model") + "}(" + weights +
                             "u" + text("optimizers") + "](" + optimizers + "eu.";
  return torch_zip_of(pickle, std::string(static_cast<std::size_t>(count) * 16, '\1'));
}

/// Processor seconds to inspect the optimizers of a file, and what was found.
std::pair<double, OptimReport> inspected(const std::string& file) {
  MemoryFileSystem fs;
  fs.write_file("/g.pt", as_bytes(file));
  OpenedCheckpoint opened = open_checkpoint(fs, "/g.pt");
  OptimReport report;
  const double seconds =
      processor_seconds([&] { report = inspect_optimizer(opened, nullptr, {}); });
  return {seconds, std::move(report)};
}

double seconds_of(int count) {
  const auto [seconds, report] = inspected(checkpoint_of(count));
  REQUIRE(report.optimizers.size() == 1);
  CHECK(report.optimizers[0].groups.size() == static_cast<std::size_t>(count));
  return seconds;
}

double seconds_of_optimizers(int count) {
  const auto [seconds, report] = inspected(optimizers_of(count));
  CHECK(report.optimizers.size() == static_cast<std::size_t>(count));
  return seconds;
}

}  // namespace

TEST_CASE("what optim costs grows with the groups, not with their square", "[wide]") {
  constexpr double kMost = 1.3;
  CHECK(growth_exponent(1000, 8000, seconds_of, 20, kMost) < kMost);
}

TEST_CASE("the archive is not opened again for each of many optimizers", "[wide]") {
  constexpr double kMost = 1.7;  // opened for each: 2
  CHECK(growth_exponent(50, 800, seconds_of_optimizers, 20, kMost) < kMost);
}

}  // namespace optim_groups_test

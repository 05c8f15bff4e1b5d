// Overlap as a number: the runtime's schedule on a virtual clock, against what no schedule can beat, and
// against figures that others measured.
#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/fsdp/simulate.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>

#include "fsdp_core/simulate/timeline.h"
#include "tests/fsdp/torch_and_catch.h"

namespace simulate_step_test {

using namespace tessera;
using namespace tessera::fsdp;

namespace {

/// Seconds of compute are flops, seconds on a link are bytes but for the ring's (n-1)/n.
SimulatedJob job_of(int ranks) {
  SimulatedJob job;
  job.ranks = ranks;
  job.ranks_per_node = 8;
  job.intra = {1, 0};
  job.inter = {1, 0};
  job.flops_per_second = 1;
  job.parameter_bytes = job.reduce_bytes = 2;
  job.options.forward_prefetch = true;
  job.root = {.name = "root", .bytes = 0.1, .flops = 1};
  return job;
}

SimulatedUnit unit(double bytes, double flops) {
  SimulatedUnit out;
  out.name = "unit";
  out.bytes = bytes;
  out.flops = flops;
  return out;
}

SimulatedJob uniform(int ranks, double bytes, double flops, int count = 24) {
  SimulatedJob job = job_of(ranks);
  for (int i = 0; i < count; ++i) job.units.push_back(unit(bytes, flops));
  return job;
}

SimulatedJob without_prefetch(SimulatedJob job) {
  job.options.forward_prefetch = false;
  job.options.backward_prefetch = BackwardPrefetch::kNone;
  job.options.separate_reduce_scatter_group = false;
  return job;
}

/// 6 encoder and 6 decoder layers on 4 nodes of 8 A100, as PyTorch's pull request 106080 measured their
/// collectives; what a layer computes is fitted.
SimulatedJob transformer(bool hybrid) {
  SimulatedJob job = job_of(32);
  job.options.separate_reduce_scatter_group = false;
  job.root = {.name = "root"};
  if (hybrid) {
    job.options.strategy = ShardingStrategy::kHybridShard;
    job.replicas = 4;
  }
  for (int layer = 0; layer < 12; ++layer) {
    const bool decoder = layer >= 6;
    SimulatedUnit one = unit(decoder ? 1.0e9 : 0.56e9, decoder ? 9.3e-3 : 5.5e-3);
    one.gather_seconds = one.reduce_seconds =
        hybrid ? (decoder ? 5e-3 : 3e-3) : (decoder ? 40e-3 : 23e-3);
    one.all_reduce_seconds = decoder ? 55e-3 : 30e-3;
    job.units.push_back(one);
  }
  return job;
}

SimulatedJob asynchronous(double rate_beside) {
  SimulatedJob job = transformer(true);
  job.inter_rate_beside_intra = rate_beside;
  for (std::size_t layer = 0; layer < 12; ++layer) {
    const bool decoder = layer >= 6;
    if (decoder) job.units[layer].gather_seconds = job.units[layer].reduce_seconds = 6.2e-3;
    job.units[layer].all_reduce_seconds = decoder ? 49e-3 : 23e-3;
  }
  return job;
}

std::string error_of(const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("tessera-model-{}.json", ::getpid());
  std::ofstream(file) << text;
  std::string out;
  try {
    simulate(read_job(file));
  } catch (const Error& error) {
    out = error.what();
  }
  std::filesystem::remove(file);
  return out;
}

}  // namespace

TEST_CASE("work on one link at the same time shares it", "[simulate][clock]") {
  Timeline timeline;
  const int first = timeline.add({.name = "a", .fixed = 1, .work = 4, .after = {}});
  timeline.add({.name = "b", .lane = 1, .fixed = 3, .work = 1, .after = {}});
  timeline.add({.name = "c", .lane = 2, .work = 2, .link = Timeline::kInter, .after = {}});
  timeline.add({.name = "d", .fixed = 1, .after = {first}});
  timeline.play(1);
  const auto& all = timeline.operations();
  // a alone from 1 to 3, beside b until b is done at 5, alone again.
  CHECK(all[1].end == Approx(5));
  CHECK(all[0].end == Approx(6));
  CHECK(all[2].end == Approx(2));
  CHECK(all[3].begin == Approx(6));
  CHECK(all[3].end == Approx(7));
}

TEST_CASE("an inter-node collective may be slower beside intra-node ones", "[simulate][clock]") {
  Timeline timeline;
  timeline.add({.name = "intra", .work = 2, .after = {}});
  timeline.add({.name = "inter", .lane = 1, .work = 2, .link = Timeline::kInter, .after = {}});
  timeline.play(0.5);
  CHECK(timeline.operations()[0].end == Approx(2));
  CHECK(timeline.operations()[1].end == Approx(3));
}

TEST_CASE("equal jobs take equal time to the last bit", "[simulate]") {
  SimulatedJob job = uniform(64, 0.4, 0.5);
  job.units[3].bytes = 0.77;
  const SimulatedStep one = simulate(job), other = simulate(job);
  CHECK(one.seconds == other.seconds);
  CHECK(one.peak_bytes == other.peak_bytes);
  CHECK(chrome_trace(one) == chrome_trace(other));
}

TEST_CASE("the schedule of uniform units is as good as any - and without prefetching it is not",
          "[simulate][overlap]") {
  const int ranks = GENERATE(8, 32, 256, 1024);
  // Bytes for flops: little to hide, as much in backward as it computes, more than it computes.
  const double bytes = GENERATE(0.3, 0.95, 2.5);
  const SimulatedJob job = uniform(ranks, bytes, 1);
  const SimulatedStep step = simulate(job);
  CAPTURE(ranks, bytes, step.to_string());
  CHECK(step.quality() >= 0.97);
  CHECK(step.quality() <= 1 + 1e-9);
  if (bytes < 1) CHECK(1 - step.exposed_seconds / step.collective_seconds >= 0.9);
  const double without = simulate(without_prefetch(job)).seconds / step.seconds;
  CHECK(without >= (bytes < 0.5 ? 1.15 : 1.0));
}

TEST_CASE("the schedule of unequal units is nearly as good as any", "[simulate][overlap]") {
  const int ranks = GENERATE(8, 32, 256);
  const int seed = GENERATE(1, 2, 3, 4, 5, 6);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> bytes(0.1, 1.0), flops(0.5, 1.5);
  SimulatedJob job = job_of(ranks);
  for (int i = 0; i < 24; ++i) {
    const double b = bytes(random);
    job.units.push_back(unit(b, flops(random)));
  }
  const SimulatedStep step = simulate(job);
  CAPTURE(ranks, seed, step.to_string());
  CHECK(step.quality() >= 0.93);
  CHECK(simulate(without_prefetch(job)).seconds / step.seconds >= 1.15);
}

TEST_CASE("a gather does not queue behind a reduction of another communicator",
          "[simulate][overlap]") {
  SimulatedJob job = uniform(8, 1, 0.75);
  job.reduce_bytes = 4;
  job.options.backward_prefetch = BackwardPrefetch::kNone;
  const double apart = simulate(job).seconds;
  job.options.separate_reduce_scatter_group = false;
  const double one = simulate(job).seconds;
  CAPTURE(apart, one);
  CHECK(one / apart >= 1.15);
}

TEST_CASE("a gather issued before a reduction has the link for itself where options say nothing",
          "[simulate][overlap]") {
  SimulatedJob job = uniform(8, 1, 0.75);
  job.options.backward_prefetch = BackwardPrefetch::kPost;
  const double unset = simulate(job).seconds;
  job.options.separate_reduce_scatter_group = true;
  CHECK(simulate(job).seconds / unset >= 1.15);
}

TEST_CASE("a gather stream for each group hides fast groups' gathers behind slow ones'",
          "[simulate][overlap]") {
  // Every second unit is sharded within its node, and its gather takes as long as that of the others
  // between nodes: on one stream each waits for the other, over another link.
  SimulatedJob job = job_of(16);
  job.inter = {0.25, 0};
  job.options.max_prefetch_count = 2;
  job.options.separate_reduce_scatter_group = false;
  for (int i = 0; i < 24; ++i) {
    job.units.push_back(unit(i % 2 ? 2.14 : 0.5, 0.05));
    if (i % 2) job.units.back().ranks = 8;
  }
  const double one = simulate(job).seconds;
  job.options.unshard_stream_per_group = true;
  const double each = simulate(job).seconds;
  CAPTURE(one, each);
  CHECK(one / each >= 1.2);
}

TEST_CASE("a gather stream for each group never costs much", "[simulate][overlap]") {
  const int seed = GENERATE(range(1, 11));
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> some(0.1, 1.5);
  SimulatedJob job = job_of(16);
  job.inter = {0.5, 0};
  job.options.max_prefetch_count = 1 + seed % 3;
  job.options.separate_reduce_scatter_group = false;
  for (int i = 0; i < 16; ++i) {
    const double bytes = some(random);
    job.units.push_back(unit(bytes, some(random)));
    if (random() % 2) job.units.back().ranks = 8;
  }
  const double one = simulate(job).seconds;
  job.options.unshard_stream_per_group = true;
  const double each = simulate(job).seconds;
  CAPTURE(seed, one, each);
  CHECK(one / each >= 0.99);
}

namespace {

/// Backward begins with units that are all bytes, whose reductions then pass beside those that are all
/// compute, if these do not have to wait.
SimulatedJob bytes_before_compute() {
  SimulatedJob job = job_of(8);
  job.options.strategy = ShardingStrategy::kShardGradOp;
  for (int i = 0; i < 12; ++i) job.units.push_back(i < 6 ? unit(0.1, 1) : unit(2, 0.1));
  return job;
}

}  // namespace

TEST_CASE("several reductions on their way let compute go on", "[simulate][overlap]") {
  SimulatedJob job = bytes_before_compute();
  const SimulatedStep one = simulate(job);
  job.options.reduce_scatter_max_input_buffers = 2;
  const SimulatedStep two = simulate(job);
  job.options.reduce_scatter_max_input_buffers = 8;
  const SimulatedStep eight = simulate(job);
  CAPTURE(one.seconds, two.seconds, eight.seconds);
  CHECK(one.seconds / eight.seconds >= 1.2);
  CHECK(one.seconds >= two.seconds);
  CHECK(two.seconds >= eight.seconds);
  // Each has its unit's gradients in memory: bounded by their number.
  CHECK(two.peak_bytes >= one.peak_bytes);
  CHECK(two.peak_bytes <= one.peak_bytes + 1.05 * 2);
}

TEST_CASE("several reductions on their way never cost much", "[simulate][overlap]") {
  const int seed = GENERATE(range(1, 11));
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> some(0.1, 1.5);
  SimulatedJob job = job_of(seed % 2 ? 8 : 32);
  if (seed % 3 == 0) job.options.strategy = ShardingStrategy::kShardGradOp;
  for (int i = 0; i < 16; ++i) {
    const double bytes = some(random);
    job.units.push_back(unit(bytes, some(random)));
  }
  const double one = simulate(job).seconds;
  job.options.reduce_scatter_max_input_buffers = 2 + seed % 3;
  const double several = simulate(job).seconds;
  CAPTURE(seed, one, several);
  CHECK(one / several >= 0.99);
}

TEST_CASE("fully sharded, hybrid and hybrid with its all-reduce beside take what was measured",
          "[simulate][measured]") {
  const double full = simulate(transformer(false)).seconds;
  SimulatedJob serial = transformer(true);
  serial.serial_all_reduce = true;
  const double hybrid = simulate(serial).seconds / full;
  // Measured alone: 49 ms; beside reduce-scatters: 100 ms.
  const double beside = simulate(asynchronous(0.49)).seconds / full;
  const double cross_nic = simulate(asynchronous(0.9)).seconds / full;
  CAPTURE(full, hybrid, beside, cross_nic);
  CHECK(full == Approx(1.160).epsilon(0.05));
  CHECK(hybrid == Approx(0.573).epsilon(0.05));
  CHECK(beside == Approx(0.515).epsilon(0.05));
  CHECK(cross_nic == Approx(0.479).epsilon(0.05));
}

TEST_CASE("memory at the peak grows with what is gathered ahead", "[simulate][memory]") {
  SimulatedJob job = uniform(8, 1, 1, 12);
  std::vector<double> peaks;
  for (const int ahead : {1, 2, 3}) {
    job.options.max_prefetch_count = ahead;
    peaks.push_back(simulate(job).peak_bytes);
  }
  job.options.max_prefetch_count = 1;
  job.options.limit_all_gathers = false;
  const double unlimited = simulate(job).peak_bytes;
  CAPTURE(peaks, unlimited);
  // Two units and gradients of two, and the root's.
  CHECK(peaks[0] == Approx(4.2).epsilon(0.08));
  CHECK(peaks[1] - peaks[0] == Approx(1).epsilon(0.1));
  CHECK(peaks[2] - peaks[1] == Approx(1).epsilon(0.1));
  CHECK(unlimited > 10);
  // Activations come on top.
  job.options.limit_all_gathers = true;
  for (SimulatedUnit& each : job.units) each.activation_bytes = 10;
  CHECK(simulate(job).peak_bytes > 120);
}

TEST_CASE("a timeline is a trace for browsers and a picture", "[simulate][output]") {
  const SimulatedStep step = simulate(uniform(8, 0.5, 1, 4));
  const std::string text = chrome_trace(step);
  const Value trace = parse_json(std::as_bytes(std::span(text)));
  const Value* events = trace.find("traceEvents");
  REQUIRE(events != nullptr);
  // 5 forwards and backwards, 5 + 4 gathers, 5 reductions, and the names of 3 streams.
  CHECK(events->as_list().size() == 10 + 9 + 5 + 3);
  const std::string svg = to_svg(step);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.find("reduce-scatter unit") != std::string::npos);
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("a model file says what is wrong with it", "[simulate][file]") {
  CHECK(error_of(R"({"ranks": 16, "units": [{"count": 3, "bytes": 1e8, "flops": 1e12}]})") == "");
  CHECK_THAT(error_of(R"({"rank": 8})"), Catch::Contains("\"rank\" is no field of a model file"));
  CHECK_THAT(error_of(R"({"units": [{"bytes": -1}]})"),
             Catch::Contains("\"units[0].bytes\" is no number of at least 0"));
  CHECK_THAT(error_of(R"({"strategy": "ZERO"})"), Catch::Contains("no sharding strategy"));
  CHECK_THAT(error_of(R"({"ranks": 6, "units": [{"bytes": 1, "ranks": 4}]})"),
             Catch::Contains("6 ranks are not groups of 4"));
  CHECK_THAT(error_of(R"({"units": [{"count": 99999, "bytes": 1}]})"),
             Catch::Contains("are more than"));
  CHECK_THAT(error_of("{"), Catch::Contains("tessera-model"));
  CHECK_THROWS_WITH(read_job("/no/such/model.json"), Catch::Contains("cannot be read"));
}

}  // namespace simulate_step_test

// Our reduce-scatter over Gloo (all-to-all and an ordered sum) against Gloo's own, in the same run:
// ranks are threads, each measured in turn over the same connections' kind, the median of the
// rounds.
//
//   fsdp_reduce_scatter [WORLD_SIZE...]      2 4 8 by default
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tessera/fsdp/world.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace fsdp = tessera::fsdp;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kRounds = 9;
constexpr double kPromise = 1.8;
constexpr fsdp::CommTag kTag{"bench", fsdp::CommPhase::kBackward};

struct Size {
  const char* name;  // bytes of each rank's input
  std::int64_t bytes;
  int calls;  // per round
};
constexpr std::array<Size, 6> kSizes = {{{"64 KiB", 64 << 10, 60},
                                         {"256 KiB", 256 << 10, 40},
                                         {"1 MiB", 1 << 20, 20},
                                         {"4 MiB", 4 << 20, 6},
                                         {"16 MiB", 16 << 20, 2},
                                         {"64 MiB", 64 << 20, 1}}};

c10::intrusive_ptr<c10d::Backend> stock_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Times {
  std::vector<double> ours, stock;  // microseconds per call, one entry a round
};

void measure(fsdp::World& world, c10d::Backend& stock, const Size& size, Times& times) {
  const auto comm = world.communicator();
  const std::int64_t shard_numel = size.bytes / 4 / world.size();
  at::Tensor shard = at::ones({shard_numel});
  at::Tensor full = at::ones({shard_numel * world.size()});
  const auto timed = [&](const auto& call) {
    comm->barrier(kTag);
    const auto start = Clock::now();
    for (int i = 0; i < size.calls; ++i) call();
    comm->barrier(kTag);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / size.calls;
  };
  const auto ours = [&] { comm->reduce_scatter_into(shard, full, fsdp::Reduce::kSum, kTag); };
  const auto theirs = [&] { stock._reduce_scatter_base(shard, full)->wait(); };
  ours();
  theirs();
  for (int round = 0; round < kRounds; ++round) {
    const double a = timed(ours), b = timed(theirs);
    if (world.rank() != 0) continue;
    times.ours.push_back(a);
    times.stock.push_back(b);
  }
}

/// All sizes among `ranks` threads; whether the promise is kept at each.
bool report(int ranks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<Times, kSizes.size()> results;
  fsdp::WorldOptions options;
  options.backend = "gloo";
  fsdp::run_threads(
      ranks,
      [&](fsdp::World& world) {
        const auto stock = stock_gloo(store, world.rank(), world.size());
        for (std::size_t i = 0; i < kSizes.size(); ++i)
          measure(world, *stock, kSizes[i], results[i]);
      },
      options);
  bool kept = true;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < results[i].ours.size(); ++round)
      ratios.push_back(results[i].stock[round] / results[i].ours[round]);
    std::sort(ratios.begin(), ratios.end());
    const double ratio = median(ratios);
    fmt::print("{:>6} {:>10} {:>10.0f} {:>10.0f} {:>7.2f}x ({:.2f} - {:.2f})\n", ranks,
               kSizes[i].name, median(results[i].ours), median(results[i].stock), ratio,
               ratios.front(), ratios.back());
    kept = kept && ratio >= kPromise;
  }
  return kept;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) worlds.push_back(std::atoi(argv[i]));
  if (worlds.empty()) worlds = {2, 4, 8};
  fmt::print("reduce-scatter of fp32 among threads, microseconds per call, median of {} rounds\n",
             kRounds);
  fmt::print("{:>6} {:>10} {:>10} {:>10} {:>8} (min - max)\n", "ranks", "input", "ours", "stock",
             "faster");
  bool kept = true;
  for (const int ranks : worlds) kept = report(ranks) && kept;
  fmt::print("promised: {} times at every size: {}\n", kPromise, kept ? "kept" : "NOT KEPT");
  return kept ? 0 : 1;
}

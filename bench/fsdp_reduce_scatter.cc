// Our reduce-scatter over Gloo (all-to-all and an ordered sum) against Gloo's own, in the same run:
// ranks are threads, each measured in turn over the same connections' kind, the median of the
// rounds.
//
//   fsdp_reduce_scatter [WORLD_SIZE=4]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tessera/fsdp/world.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
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
  const char* name;
  std::int64_t shard_numel;
  int calls;  // per round
};
constexpr Size kSizes[] = {{"256", 256, 200}, {"16 Ki", 1 << 14, 100}, {"1 Mi", 1 << 20, 5}};

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
  at::Tensor shard = at::ones({size.shard_numel});
  at::Tensor full = at::ones({size.shard_numel * world.size()});
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

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int size = argc > 1 ? std::atoi(argv[1]) : 4;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::map<std::string, Times> results;
  fsdp::WorldOptions options;
  options.backend = "gloo";
  for (const Size& s : kSizes) results[s.name];
  fsdp::run_threads(
      size,
      [&](fsdp::World& world) {
        const auto stock = stock_gloo(store, world.rank(), world.size());
        for (const Size& s : kSizes) measure(world, *stock, s, results[s.name]);
      },
      options);
  fmt::print("reduce-scatter of fp32 among {} threads, microseconds per call, median of {}\n", size,
             kRounds);
  fmt::print("{:>16} {:>10} {:>10} {:>8}\n", "elements a rank", "ours", "stock", "faster");
  bool kept = true;
  for (const Size& s : kSizes) {
    const double ours = median(results[s.name].ours), stock = median(results[s.name].stock);
    fmt::print("{:>16} {:>10.0f} {:>10.0f} {:>7.1f}x\n", s.name, ours, stock, stock / ours);
    kept = kept && stock / ours >= kPromise;
  }
  fmt::print("promised: {} times at every size: {}\n", kPromise, kept ? "kept" : "NOT KEPT");
  return kept ? 0 : 1;
}

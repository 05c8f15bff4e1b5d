// What a step costs. The figures' names are those of peer_fsdp2.py.
#include <algorithm>
#include <chrono>
#include <memory>

#include "tests/gpu_kit/device.h"
#include "tests/gpu_kit/models.h"
#include "tests/gpu_kit/parts.h"

namespace tessera::gpu_kit {

namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

fsdp::Options one_of_eight(const fsdp::World& world, c10::Device device) {
  fsdp::Options options;
  options.mesh = world.mesh();
  options.device = device;
  return options;
}

// ---- 100 small units ----

struct StepCost {
  double host_us = 0;  // until the host has launched it
  double wall_us = 0;  // until it has run
  double gpu_us = 0;   // that it takes where it is launched long before it runs
};

/// Forward and backward.
StepCost cost_of(const std::function<void()>& step, c10::Device device, int steps) {
  for (int i = 0; i < 5; ++i) step();
  StepCost cost;
  std::vector<double> host, wall, gpu;
  for (int i = 0; i < steps; ++i) {
    synchronise(device);
    const auto start = Clock::now();
    step();
    host.push_back(us_since(start));
    synchronise(device);
    wall.push_back(us_since(start));
  }
  cost.host_us = median(host);
  cost.wall_us = median(wall);
  for (int i = 0; i < 3; ++i) {
    Stopwatch watch(device);
    keep_busy(device, static_cast<int>(std::min(2 * cost.host_us + 1000, 400e3)));
    watch.start();
    step();
    watch.stop();
    gpu.push_back(1e3 * watch.milliseconds());
  }
  cost.gpu_us = median(gpu);
  return cost;
}

StepCost cost_of_units(Many& net, c10::Device device, int steps) {
  const torch::Tensor x = torch::randn({4, 32}, torch::TensorOptions(device).requires_grad(true));
  return cost_of(
      [&] {
        net->forward(x).sum().backward();
        for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
      },
      device, steps);
}

void add_cost(Report& report, const std::string& name, const StepCost& cost, const StepCost& plain,
              int units) {
  report.figure("launch " + name + ": host us per unit", (cost.host_us - plain.host_us) / units,
                "us");
  report.figure("launch " + name + ": wall us per step", cost.wall_us, "us");
  report.figure("launch " + name + ": GPU us per step, launched ahead", cost.gpu_us, "us");
  report.figure("launch " + name + ": GPU idle", std::max(0.0, 1 - cost.gpu_us / cost.wall_us),
                "of the step");
}

void measure_launching(Report& report, c10::Device device) {
  const int units = device.is_cpu() ? 10 : 100, steps = device.is_cpu() ? 3 : 15;
  Many plain(units);
  plain->to(device);
  const StepCost base = cost_of_units(plain, device, steps);
  add_cost(report, "plain", base, {}, units);
  for (const auto layout : {fsdp::MemoryLayout::kFlat, fsdp::MemoryLayout::kPerParameter})
    for (const auto check : {fsdp::Check::kCheap, fsdp::Check::kOff}) {
      const std::string name =
          fmt::format("ours {}{}", layout == fsdp::MemoryLayout::kFlat ? "flat" : "per parameter",
                      check == fsdp::Check::kOff ? " unchecked" : "");
      report.run("launch " + name, [&] {
        const fsdp::World world = fsdp::fake_world(0, 8);
        fsdp::Options options = one_of_eight(world, device);
        options.layout = layout;
        options.check = check;
        Many net(units);
        for (SmallUnit& unit : net->units) fsdp::fully_shard(unit, options);
        fsdp::fully_shard(net, options);
        add_cost(report, name, cost_of_units(net, device, steps), base, units);
      });
    }
}

// ---- memory ----

/// Twelve equal units of one of eight ranks: at the worst moment of a backward the parameters of
/// two units and the gradients of one exist, beside what is kept and one matrix's gradient.
void measure_memory(Report& report, c10::Device device) {
  const std::int64_t width = device.is_cpu() ? 64 : 2048;
  constexpr int kUnits = 12, kRanks = 8;
  const fsdp::World world = fsdp::fake_world(0, kRanks);
  const fsdp::Options options = one_of_eight(world, device);
  Stack net(kUnits, width);
  for (auto& layer : net->layers) fsdp::fully_shard(layer, options);
  fsdp::fully_shard(net, options);
  const torch::Tensor x = torch::randn({8, width}, torch::TensorOptions(device));
  const auto step = [&] {
    net->forward(x).sum().backward();
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
  };
  for (int i = 0; i < 3; ++i) step();
  synchronise(device);
  reset_peak_memory(device);
  const DeviceMemory before = device_memory(device);
  for (int i = 0; i < 5; ++i) step();
  synchronise(device);
  const DeviceMemory after = device_memory(device);
  const double unit = 4.0 * static_cast<double>(width * width);
  const double kept = kUnits * unit / kRanks;
  const double least = 2 * kept + 2 * unit + unit + unit;  // with the shards' gradients
  report.figure("memory: peak allocated", static_cast<double>(after.peak_allocated), "bytes");
  report.figure("memory: peak reserved", static_cast<double>(after.peak_reserved), "bytes");
  report.figure("memory: least of the schedule", least, "bytes");
  report.figure("memory: allocations of the device in 5 steps",
                static_cast<double>(after.device_allocations - before.device_allocations), "calls");
}

// ---- a GPT in bf16 ----

struct Batch {
  torch::Tensor ids, targets;
};

double tokens_per_second(Gpt& model, torch::optim::Optimizer& optimizer, const Batch& batch,
                         c10::Device device, int steps, bool low) {
  std::vector<double> wall;
  for (int i = 0; i < steps + 3; ++i) {
    synchronise(device);
    const auto start = Clock::now();
    for (int each = 0; each < 2; ++each) {  // two in a row: the host may run ahead
      optimizer.zero_grad();
      const torch::Tensor logits = model->forward(batch.ids);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(
          (low ? logits.to(torch::kFloat) : logits).view({-1, logits.size(-1)}),
          batch.targets.view(-1));
      loss.backward();
      optimizer.step();
    }
    synchronise(device);
    if (i >= 3) wall.push_back(us_since(start) / 2);
  }
  return static_cast<double>(batch.ids.numel()) / (median(wall) * 1e-6);
}

void measure_gpt(Report& report, c10::Device device, int ranks, fsdp::MemoryLayout layout) {
  GptSize size;
  std::int64_t rows = 8;
  if (device.is_cpu()) size = {2, 32, 2, 64, 16}, rows = 2;
  const fsdp::World world = ranks == 1 ? fsdp::World() : fsdp::fake_world(0, ranks);
  fsdp::Options options = one_of_eight(world, device);
  options.layout = layout;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.reduce_dtype = torch::kFloat;
  torch::manual_seed(0);
  Gpt model(size);
  for (GptBlock& block : model->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(model, options);
  fsdp::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  const auto indices = torch::TensorOptions(torch::kLong).device(device);
  const Batch batch{torch::randint(size.vocabulary, {rows, size.context}, indices),
                    torch::randint(size.vocabulary, {rows, size.context}, indices)};
  reset_peak_memory(device);
  const std::string name = fmt::format(
      "GPT bf16 ours {}, {} rank{}", layout == fsdp::MemoryLayout::kFlat ? "flat" : "per parameter",
      ranks, ranks == 1 ? "" : "s");
  report.figure(name + ": tokens/s",
                tokens_per_second(model, optimizer, batch, device, device.is_cpu() ? 1 : 8, true),
                "tokens/s");
  report.figure(name + ": peak allocated",
                static_cast<double>(device_memory(device).peak_allocated), "bytes");
}

}  // namespace

void measure_speed(Report& report, c10::Device device) {
  report.run("memory", [&] { measure_memory(report, device); });
  report.run("launch", [&] { measure_launching(report, device); });
  for (const int ranks : {1, 8})
    for (const auto layout : {fsdp::MemoryLayout::kFlat, fsdp::MemoryLayout::kPerParameter})
      report.run(fmt::format("GPT, {} ranks, layout {}", ranks, static_cast<int>(layout)),
                 [&] { measure_gpt(report, device, ranks, layout); });
}

}  // namespace tessera::gpu_kit

// Checkpoints of state that is on the device, by one process.
#include <chrono>

#include "tests/gpu_kit/device.h"
#include "tests/gpu_kit/models.h"
#include "tests/gpu_kit/parts.h"

namespace tessera::gpu_kit {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Sharded {
  Sharded(const GptSize& size, c10::Device device, int seed) {
    torch::manual_seed(seed);
    model = Gpt(size);
    fsdp::Options options;
    options.mesh = world.mesh();
    options.device = device;
    for (GptBlock& block : model->blocks) fsdp::fully_shard(block, options);
    fsdp::fully_shard(model, options);
    optimizer =
        std::make_unique<fsdp::FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3));
  }
  double step(const torch::Tensor& ids) {
    optimizer->zero_grad();
    const torch::Tensor logits = model->forward(ids);
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), ids.view(-1));
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }
  LiveState state() { return fsdp::state_dict(model, *optimizer); }

  fsdp::World world;
  Gpt model{nullptr};
  std::unique_ptr<fsdp::FusedAdamW> optimizer;
};

/// One copy of so many bytes from the device to pinned memory.
double copy_seconds(std::int64_t bytes, c10::Device device) {
  const torch::Tensor there =
      torch::zeros({bytes}, torch::TensorOptions(device).dtype(torch::kByte));
  torch::Tensor here =
      torch::zeros({bytes}, torch::TensorOptions(torch::kByte).pinned_memory(!device.is_cpu()));
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    synchronise(device);
    const auto start = Clock::now();
    here.copy_(there, /*non_blocking=*/true);
    synchronise(device);
    least = std::min(least, seconds_since(start));
  }
  return least;
}

}  // namespace

void measure_state(Report& report, c10::Device device, const std::filesystem::path& scratch) {
  GptSize size{12, 1024, 16, 8192, 256};  // 0.16 G parameters: 1.9 GB with their moments
  if (device.is_cpu()) size = {2, 32, 2, 64, 16};
  const std::string folder = (scratch / "tessera-kit-state").string();
  std::filesystem::remove_all(folder);
  const torch::Tensor ids =
      torch::randint(size.vocabulary, {4, size.context}, torch::TensorOptions(torch::kLong))
          .to(device);
  Sharded first(size, device, 1), second(size, device, 2);
  first.step(ids);
  SaveOptions options;
  options.force = true;
  options.threads = 2;
  const auto resumes = [&](const char* how) {
    load(folder, second.state(), second.world.ranks());
    const double ours = first.step(ids), theirs = second.step(ids);
    expect(ours == theirs, fmt::format("loss after a {}: {:.9g} and {:.9g}", how, ours, theirs));
  };
  double bytes = 0;
  report.run("save and load", [&] {
    auto start = Clock::now();
    bytes =
        static_cast<double>(save(folder, first.state(), first.world.ranks(), options).total_bytes);
    report.figure("save: bytes", bytes, "bytes");
    report.figure("save: seconds", seconds_since(start), "s");
    start = Clock::now();
    load(folder, second.state(), second.world.ranks());
    synchronise(device);
    report.figure("load: seconds", seconds_since(start), "s");
    resumes("save");
  });
  for (const char* round : {"first", "second"})
    report.run(fmt::format("save in the background, {}", round), [&] {
      const double copy = copy_seconds(static_cast<std::int64_t>(bytes), device);
      synchronise(device);
      const auto start = Clock::now();
      PendingSave pending = save_async(folder, first.state(), first.world.ranks(), options);
      const double stall = seconds_since(start);
      pending.wait();
      report.figure(fmt::format("save_async {}: stall", round), stall, "s");
      report.figure(fmt::format("save_async {}: stall / one copy to pinned memory", round),
                    stall / copy, "");
      resumes("save in the background");
    });
  std::filesystem::remove_all(folder);
}

}  // namespace tessera::gpu_kit

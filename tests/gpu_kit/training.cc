#include "tests/gpu_kit/training.h"

#include <algorithm>

#include "fsdp_core/runtime/strategy.h"
#include "tests/gpu_kit/report.h"

namespace tessera::gpu_kit {

using fsdp::ShardingStrategy;

namespace {

constexpr double kLearningRate = 0.05, kClip = 0.1;

/// Steps that keep small differences small; Adam's first is the sign of the gradient.
torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(kLearningRate).momentum(0.9); }

Net model_of(const Training& training) {
  Net net = make_net(training.spare);
  net->recompute = training.recompute;
  if (training.freeze_blocks)
    for (Block& block : net->blocks)
      for (torch::Tensor& parameter : block->parameters()) parameter.set_requires_grad(false);
  return net;
}

torch::Tensor loss_of(Net& net, const Data& data) {
  return torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
}

std::vector<std::pair<std::string, torch::Tensor>> copies_of(Net& net) {
  std::vector<std::pair<std::string, torch::Tensor>> out;
  for (const auto& parameter : net->named_parameters())
    out.emplace_back(parameter.key(), parameter.value().detach().cpu().clone());
  return out;
}

double mean_over_ranks(const torch::Tensor& loss, const fsdp::World& world) {
  const torch::Tensor value = loss.detach().to(torch::kDouble).reshape({1});
  if (world.size() > 1) world.communicator()->all_reduce(value, fsdp::Reduce::kAverage, {});
  return value.item<double>();
}

Net sharded(RankContext& context, const Training& training) {
  fsdp::Options options = training.options;
  options.mesh = mesh_for(context.world, options.strategy);
  options.device = context.device;
  Net net = model_of(training);
  if (training.moved) net->to(context.device);  // else it moves shard by shard
  shard(net, options);
  const c10::Device home = options.cpu_offload.offload_params ? torch::kCPU : context.device;
  for (const auto& parameter : net->named_parameters())
    expect(parameter.value().device() == home,
           fmt::format("{} is on {}", parameter.key(), parameter.value().device().str()));
  if (training.compress) fsdp::register_comm_hook(net, fsdp::bf16_compress_hook());
  return net;
}

/// The loss of the last microbatch.
torch::Tensor backwards(RankContext& context, const Training& training, Net& net) {
  const bool partial = std::ranges::count(training.microbatches, Sync::kShards) > 0;
  torch::Tensor loss;
  for (std::size_t m = 0; m < training.microbatches.size(); ++m) {
    const Sync sync = training.microbatches[m];
    std::optional<fsdp::NoSync> none;
    if (sync == Sync::kNone) none.emplace(net);
    if (partial) fsdp::set_requires_all_reduce(net, sync != Sync::kShards);
    be_late(context.device);
    loss = loss_of(net, microbatch(static_cast<int>(m), context.world, context.device));
    be_late(context.device);
    loss.backward();
  }
  return loss;
}

}  // namespace

fsdp::DeviceMesh mesh_for(const fsdp::World& world, ShardingStrategy strategy) {
  if (!fsdp::strategy_of(strategy).hybrid()) return world.mesh();
  const int replicas = world.size() % 2 == 0 ? 2 : 1;
  return fsdp::DeviceMesh(world, {replicas, world.size() / replicas}, {"replicate", "shard"});
}

std::string text_of(const fsdp::Options& options) {
  return fmt::format("{} {}{}{}", fsdp::strategy_name(options.strategy),
                     options.layout == fsdp::MemoryLayout::kFlat ? "flat" : "per parameter",
                     options.mixed_precision.param_dtype ? " bf16" : "",
                     options.cpu_offload.offload_params ? " offload" : "");
}

Trained train_plain(const Training& training) {
  Net net = model_of(training);
  torch::optim::SGD optimizer(net->parameters(), sgd());
  Trained out;
  for (int step = 0; step < training.steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    for (std::size_t m = 0; m < training.microbatches.size(); ++m) {
      loss = loss_of(net, microbatch(static_cast<int>(m)));
      loss.backward();
    }
    if (training.clip_p)
      torch::nn::utils::clip_grad_norm_(net->parameters(), kClip, *training.clip_p);
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  out.parameters = copies_of(net);
  return out;
}

Trained train_ranks(RankContext& context, const Training& training) {
  Net net = sharded(context, training);
  std::optional<torch::optim::SGD> optimizer;
  if (training.step_in_backward)
    fsdp::optimizer_in_backward(net, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), sgd());
    });
  else
    optimizer.emplace(net->parameters(), sgd());
  Trained out;
  for (int step = 0; step < training.steps; ++step) {
    if (optimizer) optimizer->zero_grad();
    const torch::Tensor loss = backwards(context, training, net);
    if (training.clip_p) fsdp::clip_grad_norm_(net, kClip, *training.clip_p);
    be_late(context.device);
    if (optimizer) optimizer->step();
    out.losses.push_back(mean_over_ranks(loss, context.world));
  }
  const fsdp::SummonFullParams full(net);
  out.parameters = copies_of(net);
  return out;
}

void expect_same(const Trained& ours, const Trained& plain, double tolerance) {
  for (std::size_t step = 0; step < plain.losses.size(); ++step)
    expect_close(ours.losses.at(step), plain.losses[step], tolerance,
                 fmt::format("loss of step {}", step));
  for (std::size_t p = 0; p < plain.parameters.size(); ++p) {
    const auto& [name, value] = plain.parameters[p];
    expect(ours.parameters.at(p).first == name, "parameter " + name + " is missing");
    const double off = (ours.parameters[p].second - value).abs().max().item<double>();
    expect_close(off, 0, tolerance, "distance of " + name);
  }
}

void expect_bit_equal(const Trained& ours, const Trained& theirs) {
  for (std::size_t step = 0; step < theirs.losses.size(); ++step)
    expect(ours.losses.at(step) == theirs.losses[step],
           fmt::format("loss of step {}: {:.17g} when late, else {:.17g}", step, ours.losses[step],
                       theirs.losses[step]));
  for (std::size_t p = 0; p < theirs.parameters.size(); ++p)
    expect(torch::equal(ours.parameters.at(p).second, theirs.parameters[p].second),
           theirs.parameters[p].first + " differs when late");
}

void expect_trains_as_plain(RankContext& context, const Training& training) {
  // bf16 keeps 8 bits.
  const double tolerance = training.low() || training.compress ? 5e-2 : 1e-4;
  expect_same(train_ranks(context, training), train_plain(training), tolerance);
}

}  // namespace tessera::gpu_kit

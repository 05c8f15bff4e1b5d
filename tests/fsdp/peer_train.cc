// One rank of the training that tests/interop/fsdp2_parity_test.py runs in PyTorch too: the same
// model, weights and data by the same formula. Rank 0 prints JSON: the mean loss of each step and
// the parameters at the end. With "muon" matrices are Muon's, other parameters AdamW's, and nothing is
// clipped (muon_test.py).
//
//   fsdp_peer_train flat|rows full_shard|shard_grad_op|hybrid fp32|bf16 STEPS [muon]
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/fsdp/models.h"

namespace fsdp = tessera::fsdp;

namespace {

/// Exact in both languages: thousandths between -0.5 and 0.5, then rounded to fp32 once.
torch::Tensor formula(at::IntArrayRef shape, std::int64_t salt) {
  const torch::Tensor index = torch::arange(c10::multiply_integers(shape), torch::kLong);
  return (((index * 7919 + salt * 104729) % 1000 - 500).to(torch::kDouble) / 1000)
      .to(torch::kFloat)
      .view(shape);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) return 2;
  const bool muon = argc == 6;
  const std::string layout = argv[1], strategy = argv[2], precision = argv[3];
  torch::set_num_threads(1);
  fsdp::World world = fsdp::init_from_env();
  fsdp::test::Net net(3, 19, 33, 5);
  {
    const torch::NoGradGuard no_grad;
    std::int64_t salt = 0;
    for (const auto& parameter : net->named_parameters())
      parameter.value().copy_(formula(parameter.value().sizes(), ++salt) * 0.5);
  }
  fsdp::Options options;
  options.mesh = strategy == "hybrid"
                     ? fsdp::DeviceMesh(world, {2, world.size() / 2}, {"replicate", "shard"})
                     : world.mesh();
  options.strategy = strategy == "hybrid"          ? fsdp::ShardingStrategy::kHybridShard
                     : strategy == "shard_grad_op" ? fsdp::ShardingStrategy::kShardGradOp
                                                   : fsdp::ShardingStrategy::kFullShard;
  options.layout = layout == "rows" ? fsdp::MemoryLayout::kPerParameter : fsdp::MemoryLayout::kFlat;
  if (precision == "bf16") {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  }
  fsdp::test::shard(net, options);
  std::vector<torch::Tensor> matrices, others = net->parameters();
  if (muon) {
    others.clear();
    fsdp::split_matrices(net, matrices, others);
  }
  torch::optim::AdamW optimizer(others, torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
  std::optional<fsdp::Muon> of_matrices;
  if (muon) of_matrices.emplace(net, matrices, fsdp::MuonOptions(0.02));
  const int rows = 24 / world.size();
  const torch::Tensor x = formula({24, 19}, 101).narrow(0, world.rank() * rows, rows);
  const torch::Tensor y = formula({24, 5}, 102).narrow(0, world.rank() * rows, rows);
  std::string out = "{\"losses\": [";
  for (int step = 0; step < std::atoi(argv[4]); ++step) {
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    const torch::Tensor loss = torch::mse_loss(net->forward(x).to(torch::kFloat), y);
    loss.backward();
    if (!muon) fsdp::clip_grad_norm_(net, 1.0);
    if (muon) of_matrices->step();
    optimizer.step();
    out += fmt::format("{}{:.17g}", step ? ", " : "",
                       fsdp::test::mean_loss(loss, world.communicator().get()));
  }
  out += "], \"parameters\": {";
  const fsdp::SummonFullParams full(net);
  bool first = true;
  for (const auto& parameter : net->named_parameters()) {
    out += fmt::format("{}\"{}\": [", first ? "" : ", ", parameter.key());
    first = false;
    const torch::Tensor flat = parameter.value().detach().reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i)
      out += fmt::format("{}{:.9g}", i ? ", " : "", flat[i].item<float>());
    out += "]";
  }
  if (world.rank() == 0) fmt::print("{}}}}}\n", out);
}

// Muon on shards against Muon on the whole matrices of a plain model, written down here as PyTorch has it
// (tests/interop/muon_test.py holds both against torch.optim.Muon itself).
#include <fmt/format.h>
#include <stdlib.h>
#include <tessera/tessera.h>

#include <filesystem>
#include <map>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace optim_muon_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

struct PlainMuon {
  std::map<std::string, Tensor> momentum;

  void step(Net& net, const MuonOptions& o) {
    const torch::NoGradGuard no_grad;
    for (auto& param : net->named_parameters()) {
      if (param.value().dim() != 2) continue;
      const Tensor& grad = param.value().grad();
      Tensor& buffer = momentum[param.key()];
      if (!buffer.defined()) buffer = torch::zeros_like(param.value());
      buffer.lerp_(grad, 1 - o.momentum());
      Tensor x = (o.nesterov() ? grad.lerp(buffer, o.momentum()) : buffer).to(torch::kBFloat16);
      const auto rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
      if (rows > columns) x = x.t();
      x = x / x.norm().clamp_min(o.eps());
      const auto [a, b, c] = o.ns_coefficients();
      for (int i = 0; i < o.ns_steps(); ++i) {
        const Tensor gram = x.matmul(x.t());
        x = torch::addmm(x, torch::addmm(gram, gram, gram, b, c), x, a);
      }
      if (rows > columns) x = x.t();
      const double ratio = o.adjust_lr_fn() == "match_rms_adamw"
                               ? 0.2 * std::sqrt(std::max(rows, columns))
                               : std::sqrt(std::max(1.0, rows / columns));
      param.value().mul_(1 - o.lr() * o.weight_decay());
      param.value().add_(x, -o.lr() * ratio);
    }
  }
};

struct Trained {
  explicit Trained(World& world, MemoryLayout layout, const MuonOptions& options,
                   bool columns = false) {
    Options sharding;
    sharding.mesh = world.mesh();
    sharding.layout = layout;
    if (columns)
      sharding.shard_placement_fn = [](const std::string&, const Tensor& whole) {
        return whole.dim() == 2 && whole.size(1) % 2 == 0 ? 1 : 0;
      };
    shard(net, sharding);
    std::vector<Tensor> matrices;
    split_matrices(net, matrices, others);
    muon = std::make_unique<Muon>(net, matrices, options);
  }
  void backward(int step) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    const Data data = make_data(24, 10, 5);
    torch::mse_loss(net->forward(data.x * (step + 1)), data.y).backward();
  }
  Net net = make_net(2, 10, 14, 5);
  std::vector<Tensor> others;
  std::unique_ptr<Muon> muon;
};

}  // namespace

TEST_CASE("Muon on shards steps matrices as Muon on the whole does", "[optim][muon]") {
  const int ranks = GENERATE(1, 2, 3);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool nesterov = GENERATE(true, false);
  const bool rms = GENERATE(true, false);
  const bool columns = layout == MemoryLayout::kPerParameter && ranks == 2 && rms;
  MuonOptions options(0.02);
  options.nesterov(nesterov).adjust_lr_fn(rms ? "match_rms_adamw" : "");
  run_threads(ranks, [&](World& world) {
    Trained ours(world, layout, options, columns);
    Net plain = make_net(2, 10, 14, 5);
    PlainMuon theirs;
    for (int step = 0; step < 4; ++step) {
      ours.backward(step);
      for (auto& parameter : plain->parameters()) parameter.mutable_grad().reset();
      const Data data = make_data(24, 10, 5);
      torch::mse_loss(plain->forward(data.x * (step + 1)), data.y).backward();
      ours.muon->step();
      theirs.step(plain, options);
    }
    const SummonFullParams full(ours.net);
    for (const auto& param : ours.net->named_parameters()) {
      const Tensor& want = plain->named_parameters()[param.key()];
      // One rank: the very same operations. Several: their gradients are sums in another order, and a
      // bf16 may round to the other side.
      const double off = (param.value() - want).abs().max().item<double>();
      RANK_CHECK(off <= (ranks == 1 ? 0 : 1e-3), fmt::format("{} is off by {}", param.key(), off));
    }
  });
}

TEST_CASE("one matrix at a time is gathered, in bf16", "[optim][muon]") {
  run_threads(2, [&](World& world) {
    Trained ours(world, MemoryLayout::kFlat, MuonOptions(0.02));
    ours.backward(0);
    world.communicator()->reset_counts();
    std::int64_t largest = 0, calls = 0;
    bool low = true;
    world.communicator()->observe([&](const CommRecord& record) {
      largest = std::max(largest, record.numel);
      low = low && record.dtype == at::kBFloat16;
      ++calls;
    });
    ours.muon->step();
    world.communicator()->observe({});
    RANK_CHECK(low);
    RANK_CHECK(calls >= 6);
    RANK_CHECK(largest <= 2 * 14 * 10, std::to_string(largest));
  });
}

TEST_CASE("momentum is saved by name and goes on on other ranks", "[optim][muon][state]") {
  std::string scratch = (std::filesystem::temp_directory_path() / "tessera-muon-XXXXXX").string();
  REQUIRE(::mkdtemp(scratch.data()) != nullptr);
  const MuonOptions options = MuonOptions(0.02).momentum(0.9);
  std::vector<Tensor> expected;
  run_threads(1, [&](World& world) {
    Trained job(world, MemoryLayout::kFlat, options);
    torch::optim::AdamW adam(job.others, torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      if (step == 2)
        tessera::save(scratch + "/middle", state_dict(job.net, {*job.muon, adam}), world.ranks());
      job.backward(step);
      job.muon->step();
      adam.step();
    }
    for (const Tensor& parameter : job.net->parameters())
      expected.push_back(parameter.detach().clone());
  });
  run_threads(3, [&](World& world) {
    Trained job(world, MemoryLayout::kPerParameter, MuonOptions(0.5));
    torch::optim::AdamW adam(job.others, torch::optim::AdamWOptions(1e-2));
    const tessera::LoadResult result =
        tessera::load(scratch + "/middle", state_dict(job.net, {*job.muon, adam}), world.ranks());
    RANK_CHECK(static_cast<MuonOptions&>(job.muon->param_groups()[0].options()).momentum() == 0.9);
    RANK_CHECK(static_cast<MuonOptions&>(job.muon->param_groups()[0].options()).lr() == 0.02);
    for (int step = 2; step < 4; ++step) {
      job.backward(step);
      job.muon->step();
      adam.step();
    }
    const SummonFullParams full(job.net);
    const auto params = job.net->parameters();
    for (std::size_t i = 0; i < params.size(); ++i)
      RANK_CHECK(
          (params[i] - expected[i].view(params[i].sizes())).abs().max().item<double>() < 2e-3,
          fmt::format("parameter {}", i));
  });
  std::filesystem::remove_all(scratch);
}

TEST_CASE("what Muon cannot step is refused", "[optim][muon]") {
  Net net = make_net(1, 6, 8, 3);
  fully_shard(net);
  CHECK_THROWS_WITH(Muon(net, net->parameters()), Catch::Contains("is no matrix"));
  std::vector<Tensor> matrices, others;
  split_matrices(net, matrices, others);
  CHECK(matrices.size() == 4);
  CHECK(others.size() == 4);
  CHECK_THROWS_WITH(Muon(net, matrices, MuonOptions(0.1).adjust_lr_fn("none")),
                    Catch::Contains("adjust_lr_fn is \"none\""));
  CHECK_THROWS_WITH(Muon(net, matrices, MuonOptions(0.1).ns_steps(100)),
                    Catch::Contains("ns_steps is 100"));
  Muon muon(net, matrices);
  torch::serialize::OutputArchive archive;
  CHECK_THROWS_WITH(muon.save(archive), Catch::Contains("by their position"));
  const WholeTensors wholes(net);
  CHECK_THROWS_WITH(wholes.gather(matrices[0], torch::ones({3})),
                    Catch::Contains("values of shape"));
}

}  // namespace optim_muon_test

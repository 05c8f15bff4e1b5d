// FSDP x TP on a 2-D mesh: layers cut over one mesh dim, sharded over the other, train as the whole
// model does on one process.
#include <cmath>
#include <limits>

#include "tests/fsdp/tensor_parallel_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_tensor_parallel_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

struct Trained {
  std::vector<double> losses, norms;
  std::vector<torch::Tensor> params;  // whole
};

constexpr double kClip = 0.3;

Trained train_plain(const Data& data, double p) {
  PlainStack net = make_plain_stack();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  Trained out;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    out.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), kClip, p));
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  for (const torch::Tensor& param : net->parameters()) out.params.push_back(param.detach().clone());
  return out;
}

/// Its parts, put together over the tensor dim.
torch::Tensor whole(const torch::Tensor& part, std::optional<int> dim, const DeviceMesh& tensor) {
  if (!dim) return part.detach().clone();
  const torch::Tensor moved = part.detach().transpose(0, *dim).contiguous();
  torch::Tensor all = torch::empty({tensor.size(0) * moved.numel()});
  tensor.group(0)->all_gather_into(all, moved.view({-1}), {});
  std::vector<std::int64_t> shape = moved.sizes().vec();
  shape[0] *= tensor.size(0);
  return all.view(shape).transpose(0, *dim).contiguous();
}

Trained train_cut(World& world, const DeviceMesh& mesh, MemoryLayout layout, const Data& data,
                  double p) {
  const int last = mesh.ndim() - 1;
  const DeviceMesh tensor = mesh.sub(last);
  CutStack net = make_cut_stack(tensor);
  shard_cut(net, mesh, layout);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  // Tensor ranks have the same rows.
  const auto cuts = static_cast<int>(mesh.size(last));
  const Data mine = part_of(data, world.rank() / cuts, world.size() / cuts);
  Trained out;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(mine.x), mine.y);
    loss.backward();
    out.norms.push_back(clip_grad_norm_(net, kClip, p).item<double>());
    optimizer.step();
    out.losses.push_back(mean_loss(loss, world.communicator().get()));
  }
  const SummonFullParams full(net);
  for (const auto& param : net->named_parameters()) {
    const std::string& name = param.key();
    const bool up = name.find(".up.") != std::string::npos;
    const bool down = name.find(".down.weight") != std::string::npos;
    out.params.push_back(whole(param.value(),
                               up     ? std::optional<int>(0)
                               : down ? std::optional<int>(1)
                                      : std::nullopt,
                               tensor));
  }
  return out;
}

void check_trained(const std::vector<Trained>& all, const Trained& plain) {
  for (const Trained& ours : all) {
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      CHECK(ours.losses[i] == Approx(plain.losses[i]).epsilon(1e-5));
      CHECK(ours.norms[i] == Approx(plain.norms[i]).epsilon(1e-4));
    }
    REQUIRE(ours.params.size() == plain.params.size());
    for (std::size_t i = 0; i < plain.params.size(); ++i) {
      REQUIRE(ours.params[i].sizes() == plain.params[i].sizes());
      CHECK((ours.params[i] - plain.params[i]).abs().max().item<double>() < 2e-5);
    }
  }
}

}  // namespace

TEST_CASE("FSDP x TP trains as the whole model", "[runtime][tensor-parallel]") {
  const Data data = make_data(24, kWidth, kOut);
  const double p = GENERATE(2.0, 1.0, std::numeric_limits<double>::infinity());
  const Trained plain = train_plain(data, p);
  const auto [world, tensor_ranks] =
      GENERATE(table<int, int>({{1, 1}, {2, 2}, {4, 2}, {4, 4}, {8, 2}, {6, 2}}));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(world, tensor_ranks, p);
  std::vector<Trained> all(static_cast<std::size_t>(world));
  const int cut = tensor_ranks;
  run_threads(world, [&, cut](World& w) {
    const DeviceMesh mesh(w, {w.size() / cut, cut}, {"data", "tensor"});
    all[static_cast<std::size_t>(w.rank())] = train_cut(w, mesh, layout, data, p);
  });
  check_trained(all, plain);
}

TEST_CASE("HSDP x TP on a mesh of three dims trains as the whole model",
          "[runtime][tensor-parallel][hybrid]") {
  const Data data = make_data(24, kWidth, kOut);
  const double p = GENERATE(2.0, std::numeric_limits<double>::infinity());
  const Trained plain = train_plain(data, p);
  const auto sizes =
      GENERATE(std::vector<std::int64_t>{2, 2, 2}, std::vector<std::int64_t>{2, 1, 2},
               std::vector<std::int64_t>{1, 2, 2}, std::vector<std::int64_t>{3, 2, 1});
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(sizes, p);
  std::vector<Trained> all(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2]));
  run_threads(static_cast<int>(all.size()), [&](World& w) {
    const DeviceMesh mesh(w, sizes, {"replicate", "shard", "tensor"});
    all[static_cast<std::size_t>(w.rank())] = train_cut(w, mesh, layout, data, p);
  });
  check_trained(all, plain);
}

TEST_CASE("a part of a mesh keeps the other coordinates", "[runtime][tensor-parallel]") {
  const World world = fake_world(13, 24);
  const DeviceMesh mesh(world, {2, 3, 4}, {"replicate", "shard", "tensor"});  // rank 13: 1, 0, 1
  const DeviceMesh data = mesh.sub({0, 1});
  CHECK(data.ranks() == std::vector<int>{1, 5, 9, 13, 17, 21});
  CHECK(data.mesh().to_string() == tessera::Mesh({{"replicate", 2}, {"shard", 3}}).to_string());
  CHECK(data.coordinate(0) == 1);
  CHECK(data.coordinate(1) == 0);
  CHECK(data.ranks_along(0) == std::vector<int>{1, 13});
  CHECK(data.ranks_along(1) == std::vector<int>{13, 17, 21});
  CHECK(mesh.sub({0, 2}).ranks() == std::vector<int>{0, 1, 2, 3, 12, 13, 14, 15});
  CHECK(data.parent().same(mesh));
  CHECK(message_of([&] { mesh.sub({1, 0}); }).find("ascend") != std::string::npos);
}

TEST_CASE("layers that do not divide over the tensor ranks are refused with the numbers",
          "[runtime][tensor-parallel]") {
  run_threads(3, [](World& world) {
    const DeviceMesh mesh(world, {1, 3}, {"data", "tensor"});
    RANK_CHECK(message_of([&] {
                 ColumnParallelLinear(6, 8, mesh.sub(1));
               }).find("8 outputs do not divide over 3 ranks") != std::string::npos);
    RANK_CHECK(message_of([&] {
                 RowParallelLinear(8, 6, mesh.sub(1));
               }).find("8 inputs do not divide over 3 ranks") != std::string::npos);
    RANK_CHECK(message_of([&] { tensor_parallel(mesh); }).find("one dim") != std::string::npos);
  });
}

TEST_CASE("a rank that fails between tensor-parallel layers fails its peers",
          "[runtime][tensor-parallel]") {
  struct ThrowingImpl : torch::nn::Module {
    ThrowingImpl(const DeviceMesh& tensor, bool throws_)
        : up(register_module("up", ColumnParallelLinear(kWidth, kHidden, tensor))),
          down(register_module("down", RowParallelLinear(kHidden, kWidth, tensor))),
          throws(throws_) {}
    torch::Tensor forward(torch::Tensor x) {
      x = up->forward(x);
      if (throws) throw std::runtime_error("lost here");
      return down->forward(x);
    }
    ColumnParallelLinear up;
    RowParallelLinear down;
    bool throws;
  };
  const auto start = std::chrono::steady_clock::now();
  run_threads(2, [](World& world) {
    const DeviceMesh mesh(world, {1, 2}, {"data", "tensor"});
    Options options;
    options.mesh = mesh.sub(0);
    options.extension = tensor_parallel(mesh.sub(1));
    Holder<ThrowingImpl> net(mesh.sub(1), world.rank() == 1);
    fully_shard(net, options);
    const std::string said = message_of([&] { net->forward(torch::ones({2, kWidth})); });
    const char* expected = world.rank() == 1 ? "lost here" : "rank 1 failed";
    RANK_CHECK(said.find(expected) != std::string::npos, said);
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

}  // namespace runtime_tensor_parallel_test

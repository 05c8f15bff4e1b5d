// Parameters that are cut on another dim than the first, as FSDP2's shard_placement_fn has them: values,
// gradients and training as without, and state dicts that any other cut reads.
#include <fmt/format.h>

#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_placement_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

constexpr int kWidth = 12, kHidden = 20, kOut = 5;

Net make() { return make_net(2, kWidth, kHidden, kOut); }

/// Matrices by columns, from the end; vectors, and the head, whose rows no number of ranks divides, by
/// rows.
ShardPlacement by_columns(const std::string& fqn, const Tensor& whole) {
  if (fqn.find("bias") != std::string::npos) return {};
  if (whole.dim() != 2) throw std::runtime_error("not the whole parameter");
  return fqn.find("head") != std::string::npos ? 0 : -1;
}

Options over(World& world, bool columns, bool hybrid = false) {
  Options options;
  options.layout = MemoryLayout::kPerParameter;
  options.mesh =
      hybrid ? DeviceMesh(world, {2, world.size() / 2}, {"replicate", "shard"}) : world.mesh();
  if (hybrid) options.strategy = ShardingStrategy::kHybridShard;
  if (columns) options.shard_placement_fn = by_columns;
  return options;
}

void train(Net& net, torch::optim::Optimizer& optimizer, int steps, int rank, int ranks) {
  const Data data = part_of(make_data(24, kWidth, kOut), rank, ranks);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("parameters cut on another dim have their part of it, and train as before",
          "[state][placement]") {
  const int ranks = GENERATE(1, 2, 4);
  const bool hybrid = GENERATE(false, true);
  const bool low = GENERATE(false, true);
  if (hybrid && ranks < 4) return;
  run_threads(ranks, [&](World& world) {
    Net net = make(), rows = make();
    for (Net* each : {&net, &rows}) {
      Options options = over(world, each == &net, hybrid);
      if (low) options.mixed_precision.param_dtype = torch::kBFloat16;
      options.mixed_precision.reduce_dtype = torch::kFloat;
      shard(*each, options);
    }
    const int shards = hybrid ? ranks / 2 : ranks;
    RANK_CHECK(net->blocks[0]->parameters()[0].sizes() ==
               torch::IntArrayRef({kHidden, kWidth / shards}));
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2)),
        adam_of_rows(rows->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto step = [&](Net& each, torch::optim::AdamW& optimizer) {
      const Data data = part_of(make_data(24, kWidth, kOut), world.rank(), ranks);
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        torch::mse_loss(each->forward(data.x).to(torch::kFloat), data.y).backward();
        if (i < 2) optimizer.step();
      }
    };
    step(net, adam);
    step(rows, adam_of_rows);
    const Tensor norm = clip_grad_norm_(net, 0.5), norm_of_rows = clip_grad_norm_(rows, 0.5);
    RANK_CHECK(torch::allclose(norm, norm_of_rows));
    SummonOptions with_grads;
    with_grads.with_grads = true;
    const SummonFullParams full(net, with_grads), full_rows(rows, with_grads);
    for (const auto& param : net->named_parameters()) {
      const Tensor& other = rows->named_parameters()[param.key()];
      RANK_CHECK(torch::allclose(param.value(), other, 1e-6, 1e-7), param.key());
      RANK_CHECK(torch::allclose(param.value().grad(), other.grad(), 1e-5, 1e-7), param.key());
    }
  });
}

TEST_CASE("what is written into full parameters cut on another dim is kept",
          "[state][placement][summon]") {
  const bool on_host = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    Net net = make();
    shard(net, over(world, true));
    {
      SummonOptions options;
      options.offload_to_cpu = on_host;
      const SummonFullParams full(net, options);
      const torch::NoGradGuard no_grad;
      for (auto& param : net->parameters())
        param.copy_(torch::arange(param.numel(), torch::kFloat).view(param.sizes()));
    }
    const SummonFullParams full(net);
    for (const auto& param : net->named_parameters())
      RANK_CHECK(
          torch::equal(
              param.value(),
              torch::arange(param.value().numel(), torch::kFloat).view(param.value().sizes())),
          param.key());
  });
}

TEST_CASE("state of parameters cut on another dim goes to any other cut and back",
          "[state][placement]") {
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kFull);
  const bool even = GENERATE(false, true);
  if (even && type == StateDictType::kFull) return;
  const ScratchFolder scratch;
  StateDictOptions how;
  how.type = type;
  how.even_chunks = even;
  std::vector<Tensor> saved;
  // Trained by columns on 2 ranks; read by rows on 3, which saves; read by columns on 4.
  const auto job = [&](int ranks, bool columns, const std::string& from, const std::string& to) {
    run_threads(ranks, [&](World& world) {
      Net net = make();
      shard(net, over(world, columns));
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
      if (from.empty())
        train(net, optimizer, 2, world.rank(), ranks);
      else
        tessera::load(scratch / from, state_dict(net, optimizer, how), world.ranks());
      tessera::save(scratch / to, state_dict(net, optimizer, how), world.ranks());
      const SummonFullParams full(net);
      if (world.rank() != 0) return;
      std::vector<Tensor> now;
      for (const auto& param : net->named_parameters()) now.push_back(param.value().clone());
      if (from.empty()) saved = now;
      for (std::size_t i = 0; i < now.size(); ++i)
        RANK_CHECK(torch::equal(now[i], saved[i]), fmt::format("parameter {} of {}", i, to));
    });
  };
  job(2, true, "", "columns2");
  job(3, false, "columns2", "rows3");
  job(4, true, "rows3", "columns4");
  // Every tensor of the first and the last checkpoint, optimizer state too.
  const auto whole = [&](const std::string& folder) {
    std::map<std::string, Tensor> out;
    run_threads(1, [&](World& world) {
      Net net = make();
      shard(net, over(world, false));
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
      tessera::load(scratch / folder, state_dict(net, optimizer), world.ranks());
      for (const auto& param : net->named_parameters()) {
        out[param.key()] = param.value().detach().clone();
        const auto& state = static_cast<const torch::optim::AdamWParamState&>(
            *optimizer.state().at(param.value().unsafeGetTensorImpl()));
        out[param.key() + " mean"] = state.exp_avg().clone();
        out[param.key() + " square"] = state.exp_avg_sq().clone();
      }
    });
    return out;
  };
  const auto first = whole("columns2"), last = whole("columns4");
  REQUIRE(first.size() == last.size());
  for (const auto& [name, tensor] : first) {
    CAPTURE(name);
    CHECK(torch::equal(tensor, last.at(name)));
    CHECK(tensor.abs().max().item<double>() > 0);
  }
}

TEST_CASE("the form of a parameter cut on another dim says so", "[state][placement]") {
  run_threads(2, [&](World& world) {
    Net net = make();
    shard(net, over(world, true));
    for (const ValueForm& form : value_forms(net)) {
      const bool columns = form.fqn.find("weight") != std::string::npos &&
                           form.fqn.find("head") == std::string::npos;
      RANK_CHECK(form.placements == std::vector{tessera::Placement::shard(columns ? 1 : 0)},
                 form.fqn);
    }
  });
}

TEST_CASE("placements that cannot be are refused by name", "[state][placement]") {
  const auto refused = [](MemoryLayout layout, int dim, int ranks) {
    std::string message;
    run_threads(ranks, [&](World& world) {
      Net net = make();
      Options options;
      options.mesh = world.mesh();
      options.layout = layout;
      options.shard_placement_fn = [dim](const std::string& fqn, const Tensor&) {
        return ShardPlacement(fqn == "a.weight" ? dim : 0);
      };
      const std::string mine = message_of([&] { fully_shard(net->blocks[0], options); });
      if (world.rank() == 0) message = mine;
    });
    return message;
  };
  CHECK_THAT(refused(MemoryLayout::kFlat, 1, 2),
             Catch::Contains("\"a.weight\" is to be cut on dim 1: the flat layout"));
  CHECK_THAT(refused(MemoryLayout::kPerParameter, 2, 2),
             Catch::Contains("is to be cut on dim 2, which it has not"));
  CHECK_THAT(refused(MemoryLayout::kPerParameter, -3, 2), Catch::Contains("which it has not"));
  CHECK_THAT(refused(MemoryLayout::kPerParameter, 1, 5),
             Catch::Contains("which 5 shards do not divide"));
  CHECK(refused(MemoryLayout::kPerParameter, 1, 4) == "");
}

TEST_CASE("ranks that cut a parameter on different dims are an error of the first forward",
          "[state][placement]") {
  run_threads(2, [&](World& world) {
    Net net = make();
    shard(net, over(world, world.rank() == 0));
    const Data data = make_data(24, kWidth, kOut);
    const std::string message = message_of([&] { net->forward(data.x); });
    RANK_CHECK(message.find("cut on dim 1") != std::string::npos, message);
  });
}

}  // namespace state_placement_test

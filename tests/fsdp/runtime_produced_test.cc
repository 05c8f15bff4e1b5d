// Which gradients are produced, and how they arrive: parameters that nobody uses, losses that leave
// the root's output out, gradients of every form that autograd accumulates.
#include <fmt/format.h>

#include "fsdp_core/runtime/unit.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_produced_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Two weights, of which the second is used where asked.
struct PairImpl : torch::nn::Module {
  torch::Tensor used, other;
  bool both = false;
  PairImpl() {
    used = register_parameter("used", torch::full({5, 3}, 0.5));
    other = register_parameter("other", torch::full({3}, 0.25));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x.matmul(used);
    return both ? x + other : x;
  }
};
FSDP_MODULE(Pair);

void check_sharded(const ModuleRef& module) {
  for (const auto& [name, state] : unit_states(module))
    RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
}

}  // namespace

TEST_CASE("a parameter that nobody uses contributes zeros - or stays without where looked for",
          "[runtime][unused]") {
  const bool find = GENERATE(false, true);
  const int users = GENERATE(0, 1, 3);  // ranks on which it is used
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(find, users);
  run_threads(3, [&](World& world) {
    Pair net;
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    options.find_unused_parameters = find;
    fully_shard(net, options);
    for (int step = 0; step < 2; ++step) {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      net->both = world.rank() < users;
      net->forward(torch::ones({2, 5})).sum().backward();
      check_sharded(net);
      const torch::Tensor grad = net->named_parameters()["other"].grad();
      RANK_CHECK(grad.defined() == (!find || users > 0));
      SummonOptions with_grads;
      with_grads.with_grads = true;
      const SummonFullParams full(net, with_grads);
      RANK_CHECK(torch::allclose(net->used.grad(), torch::full({5, 3}, 2.0)));
      if (net->other.grad().defined())
        RANK_CHECK(torch::allclose(net->other.grad(), torch::full({3}, 2.0 * users / 3)));
    }
  });
}

TEST_CASE("frozen parameters of a unit keep no gradient at all", "[runtime][frozen]") {
  run_threads(2, [](World& world) {
    Pair net;
    net->both = true;
    net->other.set_requires_grad(false);
    Options options;
    options.mesh = world.mesh();
    fully_shard(net, options);
    // Under their own names, in two groups, of which one is reduced.
    RANK_CHECK(dynamic_cast<HookPoint&>(*net).unit->groups().size() == 2);
    RANK_CHECK(net->named_parameters()["other"].numel() < 3);
    for (int step = 0; step < 2; ++step) {
      net->forward(torch::ones({2, 5})).sum().backward();
      check_sharded(net);
      RANK_CHECK(!net->named_parameters()["other"].grad().defined());
      RANK_CHECK(net->named_parameters()["used"].grad().defined());
    }
  });
}

TEST_CASE("requires_grad is set on either identity of a parameter", "[runtime][frozen]") {
  const bool on_module = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    Pair net;
    net->both = true;
    Options options;
    options.mesh = world.mesh();
    fully_shard(net, options);
    // The module's member is the compute parameter; the registry shows the shard.
    const auto set = [&](bool on) {
      torch::Tensor target = on_module ? net->other : net->named_parameters()["other"];
      target.set_requires_grad(on);
    };
    for (const bool trains : {true, false, true, false}) {
      set(trains);
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      net->forward(torch::ones({2, 5})).sum().backward();
      RANK_CHECK(net->named_parameters()["other"].grad().defined() == trains);
      RANK_CHECK(net->other.requires_grad() == trains);
      RANK_CHECK(net->named_parameters()["other"].requires_grad() == trains);
    }
  });
}

TEST_CASE("a loss of an inner unit's output alone", "[runtime][backward]") {
  struct AsideImpl : torch::nn::Module {
    Block first{nullptr}, second{nullptr};
    torch::Tensor aside;
    AsideImpl() {
      first = register_module("first", Block(5, 7));
      second = register_module("second", Block(5, 7));
    }
    torch::Tensor forward(torch::Tensor x) {
      aside = first->forward(x);
      return second->forward(aside);
    }
  };
  const bool freed = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(3);
      return Holder<AsideImpl>();
    };
    Holder<AsideImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    if (freed) options.reshard_after_forward = true;
    fully_shard(net->first, options);
    fully_shard(net->second, options);
    fully_shard(net, options);
    const torch::Tensor x = torch::ones({2, 5});
    for (int step = 0; step < 3; ++step) {
      for (auto* each : {&net, &plain}) {
        for (auto& param : (*each)->parameters()) param.mutable_grad().reset();
        const torch::Tensor y = (*each)->forward(x);
        const torch::Tensor loss =
            step == 1 ? (*each)->aside.square().sum() : (y + (*each)->aside).square().sum();
        loss.backward();
      }
      net->aside.reset();
      check_sharded(net);
      check_full_gradients(net, plain, fmt::format("step {}", step));
    }
  });
}

TEST_CASE("an inner unit trains when it is called without the root", "[runtime][backward]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {}, 2);
    torch::mse_loss(net->forward(data.x), data.y).backward();
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    net->blocks[1]->forward(data.x).square().mean().backward();
    plain->blocks[1]->forward(data.x).square().mean().backward();
    check_sharded(net);
    check_full_gradients(net, plain);
  });
}

TEST_CASE("gradients of every form add up in place", "[runtime][gradients]") {
  enum class Form { kSparse, kTransposed, kExpanded, kTwice, kPart };
  struct FormsImpl : torch::nn::Module {
    torch::Tensor table, square;
    Form form = Form::kSparse;
    FormsImpl() {
      table = register_parameter("table", torch::arange(21, torch::kFloat).view({7, 3}).sin());
      square = register_parameter("square", torch::arange(9, torch::kFloat).view({3, 3}).cos());
    }
    torch::Tensor forward(torch::Tensor index) {
      torch::Tensor x = torch::embedding(table, index, -1, false, form == Form::kSparse);
      switch (form) {
        case Form::kSparse:
          return x.matmul(square);
        case Form::kTransposed:
          return x.matmul(square.t().contiguous()).matmul(square.t());
        case Form::kExpanded:
          return x + square[0].unsqueeze(0).expand({x.size(0), 3}) + square.sum();
        case Form::kTwice:
          return x.matmul(square).matmul(square) + square.diagonal();
        case Form::kPart:
          return x.matmul(square.narrow(1, 1, 2));
      }
      return x;
    }
  };
  const auto form = static_cast<Form>(GENERATE(range(0, 5)));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(static_cast<int>(form));
  run_threads(2, [&](World& world) {
    Holder<FormsImpl> net, plain;
    net->form = plain->form = form;
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    fully_shard(net, options);
    const torch::Tensor index = torch::tensor({1, 4, 4, 6, 0});
    for (int pass = 0; pass < 2; ++pass) {
      net->forward(index).square().sum().backward();
      plain->forward(index).square().sum().backward();
    }
    // A sum of sparse gradients stays sparse in the plain module.
    if (plain->table.grad().is_sparse())
      plain->table.mutable_grad() = plain->table.grad().to_dense();
    check_full_gradients(net, plain);
  });
}

}  // namespace runtime_produced_test

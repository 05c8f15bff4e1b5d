// fsdp::checkpoint equals calling the function, bit for bit.

#include <ATen/autocast_mode.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/checkpoint.h>
#include <torch/csrc/autograd/variable.h>

#include "tests/fsdp/torch_and_catch.h"

namespace optim_checkpoint_test {

namespace fsdp = tessera::fsdp;

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::Dropout drop{nullptr};
  int calls = 0;
  Net() {
    torch::manual_seed(1);
    a = register_module("a", torch::nn::Linear(8, 16));
    b = register_module("b", torch::nn::Linear(16, 8));
    drop = register_module("drop", torch::nn::Dropout(0.4));
  }
  torch::Tensor forward(torch::Tensor x) {
    ++calls;
    return b->forward(drop->forward(torch::gelu(a->forward(x))));
  }
};

struct Gradients {
  torch::Tensor result;
  std::vector<torch::Tensor> all;
};

/// Runs `call` on a fresh net, and backward through the sum of squares of its result.
template <class F>
Gradients train(torch::Tensor x, F&& call) {
  Net net;
  x = x.detach().clone().set_requires_grad(x.requires_grad());
  torch::manual_seed(7);
  Gradients gradients;
  gradients.result = call(net, x);
  torch::randn({3});  // moves the generator on between forward and backward
  gradients.result.pow(2).sum().backward();
  gradients.all = {x.grad()};
  for (const torch::Tensor& parameter : net.parameters()) gradients.all.push_back(parameter.grad());
  return gradients;
}

void check_equal(const Gradients& a, const Gradients& b) {
  CHECK(a.result.equal(b.result));
  REQUIRE(a.all.size() == b.all.size());
  for (std::size_t i = 0; i < a.all.size(); ++i) {
    REQUIRE(a.all[i].defined() == b.all[i].defined());
    if (a.all[i].defined()) CHECK(a.all[i].equal(b.all[i]));
  }
}

}  // namespace

TEST_CASE("checkpoint with dropout is bit-equal, whether or not the input needs a gradient") {
  const bool input_needs_grad = GENERATE(true, false);
  const torch::Tensor x = torch::randn({4, 8}).set_requires_grad(input_needs_grad);
  const Gradients plain = train(x, [](Net& net, torch::Tensor in) { return net.forward(in); });
  const Gradients checked = train(x, [](Net& net, torch::Tensor in) {
    return fsdp::checkpoint([&](torch::Tensor y) { return net.forward(y); }, in);
  });
  check_equal(checked, plain);
  CHECK(checked.all[1].defined());
  CHECK(checked.all[0].defined() == input_needs_grad);
}

TEST_CASE("the random state after a backward through checkpoint is as without") {
  const torch::Tensor x = torch::randn({4, 8});
  train(x, [](Net& net, torch::Tensor in) { return net.forward(in); });
  const torch::Tensor plain = torch::randn({4});
  train(x, [](Net& net, torch::Tensor in) {
    return fsdp::checkpoint([&](torch::Tensor y) { return net.forward(y); }, in);
  });
  CHECK(torch::randn({4}).equal(plain));
}

TEST_CASE("checkpoint calls the function once in forward and once in backward") {
  Net net;
  torch::Tensor y =
      fsdp::checkpoint([&](torch::Tensor in) { return net.forward(in); }, torch::randn({4, 8}));
  CHECK(net.calls == 1);
  y.sum().backward();
  CHECK(net.calls == 2);
}

TEST_CASE("checkpoint keeps only its inputs between forward and backward") {
  torch::Tensor middle;
  torch::Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  c10::weak_intrusive_ptr<c10::TensorImpl> held = [&] {
    torch::Tensor inner;
    middle = fsdp::checkpoint(
        [&](torch::Tensor in) {
          torch::Tensor hidden = in.exp();
          if (!inner.defined()) inner = hidden;
          return hidden.sin();
        },
        x);
    return c10::weak_intrusive_ptr<c10::TensorImpl>(inner.getIntrusivePtr());
  }();
  CHECK(held.expired());
  middle.sum().backward();
  CHECK(x.grad().allclose(x.exp().cos() * x.exp()));
}

TEST_CASE("checkpoint of two in a row, and of one inside another") {
  const torch::Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  const Gradients plain =
      train(x, [](Net& net, torch::Tensor in) { return net.forward(net.forward(in)); });
  const auto call = [](Net& net) { return [&net](torch::Tensor y) { return net.forward(y); }; };
  check_equal(train(x,
                    [&](Net& net, torch::Tensor in) {
                      return fsdp::checkpoint(call(net), fsdp::checkpoint(call(net), in));
                    }),
              plain);
  check_equal(
      train(x,
            [&](Net& net, torch::Tensor in) {
              return fsdp::checkpoint(
                  [&](torch::Tensor y) { return net.forward(fsdp::checkpoint(call(net), y)); }, in);
            }),
      plain);
}

TEST_CASE("checkpoint with several inputs and results of several kinds") {
  const auto function = [](torch::Tensor a, std::optional<torch::Tensor> b, int factor,
                           std::vector<torch::Tensor> more) {
    torch::Tensor sum = a * factor;
    if (b) sum = sum + *b;
    for (const torch::Tensor& each : more) sum = sum * each;
    return std::make_tuple(sum, sum.argmax(), std::optional<torch::Tensor>(a.sin()), 5);
  };
  std::vector<torch::Tensor> leaves;
  for (int i = 0; i < 4; ++i) leaves.push_back(torch::randn({5}).set_requires_grad(i != 1));
  const auto backward = [&](auto&& result) {
    const auto& [sum, index, sine, five] = result;
    CHECK(five == 5);
    CHECK_FALSE(index.requires_grad());
    (sum.sum() + sine->sum() * 2).backward();
    std::vector<torch::Tensor> gradients;
    for (torch::Tensor& leaf : leaves) {
      gradients.push_back(leaf.grad().defined() ? leaf.grad().clone() : torch::Tensor());
      leaf.mutable_grad().reset();
    }
    return gradients;
  };
  const std::vector<torch::Tensor> more = {leaves[2], leaves[3]};
  const auto plain = backward(function(leaves[0], leaves[1], 3, more));
  const auto checked = backward(
      fsdp::checkpoint(function, leaves[0], std::optional<torch::Tensor>(leaves[1]), 3, more));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    REQUIRE(plain[i].defined() == checked[i].defined());
    if (plain[i].defined()) CHECK(plain[i].equal(checked[i]));
  }
}

TEST_CASE("checkpoint with a result that nobody uses, and one that is an input") {
  torch::Tensor x = torch::randn({3}).set_requires_grad(true);
  auto [same, square, unused] =
      fsdp::checkpoint([](torch::Tensor in) { return std::make_tuple(in, in * in, in.exp()); }, x);
  (same.sum() + square.sum()).backward();
  CHECK(x.grad().allclose(1 + 2 * x.detach()));
}

TEST_CASE("checkpoint around frozen layers hands the gradient through") {
  Net net;
  for (torch::Tensor& parameter : net.parameters()) parameter.set_requires_grad(false);
  net.eval();
  torch::Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  net.forward(x).sum().backward();
  const torch::Tensor plain = x.grad().clone();
  x.mutable_grad().reset();
  fsdp::checkpoint([&](torch::Tensor in) { return net.forward(in); }, x).sum().backward();
  CHECK(x.grad().equal(plain));
  SECTION("and does nothing in backward where nothing needs a gradient") {
    torch::Tensor y =
        fsdp::checkpoint([&](torch::Tensor in) { return net.forward(in); }, torch::randn({4, 8}));
    y.sum().backward();
    for (const torch::Tensor& parameter : net.parameters()) CHECK_FALSE(parameter.grad().defined());
  }
}

TEST_CASE("checkpoint computes again under the autocast of its forward") {
  const torch::Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  const auto with_autocast = [](auto&& call) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    torch::Tensor result = call();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return result.to(torch::kFloat);
  };
  const Gradients plain = train(x, [&](Net& net, torch::Tensor in) {
    return with_autocast([&] { return net.forward(in); });
  });
  const Gradients checked = train(x, [&](Net& net, torch::Tensor in) {
    return with_autocast(
        [&] { return fsdp::checkpoint([&](torch::Tensor y) { return net.forward(y); }, in); });
  });
  check_equal(checked, plain);
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("checkpoint without grad mode only calls the function") {
  Net net;
  torch::NoGradGuard no_grad;
  CHECK_FALSE(
      fsdp::checkpoint([&](torch::Tensor in) { return net.forward(in); }, torch::randn({4, 8}))
          .requires_grad());
}

TEST_CASE("hooks that see accumulated gradients fire once per parameter and backward") {
  struct Count : torch::autograd::PostAccumulateGradHook {
    int* fired;
    explicit Count(int* counter) : fired(counter) {}
    void operator()(const torch::autograd::Variable&) override { ++*fired; }
  };
  Net net;
  int fired = 0;
  for (const torch::Tensor& parameter : net.parameters())
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Count>(&fired));
  fsdp::checkpoint([&](torch::Tensor in) { return net.forward(in); }, torch::randn({4, 8}))
      .sum()
      .backward();
  CHECK(fired == 4);
}

TEST_CASE("checkpoint refuses what would be silently wrong") {
  Net net;
  torch::Tensor x = torch::randn({4, 8}).set_requires_grad(true);
  const auto call = [&](torch::Tensor in) { return net.forward(in); };
  CHECK_THROWS_WITH(torch::autograd::grad({fsdp::checkpoint(call, x).sum()}, {x}),
                    Catch::Contains("autograd::grad()"));
  CHECK_THROWS_WITH(
      fsdp::checkpoint(call, x).sum().backward({}, std::nullopt, /*create_graph=*/true),
      Catch::Contains("create_graph"));
  CHECK_THROWS_WITH(
      fsdp::checkpoint([](torch::Tensor in) { return in.mul_(2); }, torch::randn({3})),
      Catch::Contains("in place"));
  int calls = 0;
  auto growing = fsdp::checkpoint(
      [&](torch::Tensor in) {
        std::vector<torch::Tensor> results;
        for (int i = 0; i <= calls; ++i) results.push_back(in * 2);
        ++calls;
        return results;
      },
      x);
  CHECK_THROWS_WITH(growing[0].sum().backward(), Catch::Contains("1 tensors, and 2"));
}

}  // namespace optim_checkpoint_test

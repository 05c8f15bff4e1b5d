
#include <tessera/base/error.h>
#include <tessera/fsdp/fused_adamw.h>

#include <sstream>

#include "tests/fsdp/torch_and_catch.h"

namespace optim_fused_adamw_test {

namespace fsdp = tessera::fsdp;

namespace {

std::vector<torch::Tensor> parameters_of(const std::vector<std::vector<std::int64_t>>& shapes,
                                         torch::Dtype dtype) {
  torch::manual_seed(5);
  std::vector<torch::Tensor> parameters;
  for (const auto& shape : shapes)
    parameters.push_back(torch::randn(shape, dtype).set_requires_grad(true));
  return parameters;
}

void set_gradients(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                   int step) {
  torch::manual_seed(100 + step);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const torch::Tensor gradient = torch::randn_like(a[i]);
    a[i].mutable_grad() = gradient.clone();
    b[i].mutable_grad() = gradient.clone();
  }
}

double difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].numel() > 0) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

fsdp::FusedAdamWParamState& state_of(fsdp::FusedAdamW& optimizer, const torch::Tensor& parameter) {
  return static_cast<fsdp::FusedAdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

const std::vector<std::vector<std::int64_t>> kShapes = {{7, 5}, {1}, {0}, {130}, {}, {3, 2, 2}};

}  // namespace

TEST_CASE("FusedAdamW equals AdamW over many steps") {
  const bool amsgrad = GENERATE(false, true);
  const double decay = GENERATE(0.0, 0.1);
  const auto options =
      torch::optim::AdamWOptions(1e-2).weight_decay(decay).amsgrad(amsgrad).betas({0.8, 0.95});
  const auto mine = parameters_of(kShapes, torch::kFloat),
             theirs = parameters_of(kShapes, torch::kFloat);
  fsdp::FusedAdamW fused(mine, options);
  torch::optim::AdamW plain(theirs, options);
  for (int step = 0; step < 20; ++step) {
    set_gradients(mine, theirs, step);
    fused.step();
    plain.step();
    REQUIRE(difference(mine, theirs) <=
            1.5e-8 * (step + 1) * 8);  // one rounding of values up to 4 a step
  }
  for (const torch::Tensor& parameter : mine) {
    CHECK(state_of(fused, parameter).step.item<float>() == 20);
    CHECK(state_of(fused, parameter).exp_avg.sizes() == parameter.sizes());
    CHECK(state_of(fused, parameter).max_exp_avg_sq.defined() == amsgrad);
  }
}

TEST_CASE(
    "FusedAdamW of unit-sized values differs from AdamW by at most 1.5e-8 after three steps") {
  auto mine = parameters_of({{7, 5}}, torch::kFloat),
       theirs = parameters_of({{7, 5}}, torch::kFloat);
  {
    torch::NoGradGuard no_grad;
    mine[0].mul_(0.1), theirs[0].mul_(0.1);
  }
  fsdp::FusedAdamW fused(mine, torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW plain(theirs, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    set_gradients(mine, theirs, step);
    fused.step();
    plain.step();
  }
  CHECK(difference(mine, theirs) <= 1.5e-8);
}

TEST_CASE("FusedAdamW steps doubles, parameter groups with their own options and mixed dtypes") {
  const auto a = parameters_of({{4, 3}}, torch::kDouble),
             b = parameters_of({{4, 3}}, torch::kDouble);
  const auto c = parameters_of({{9}}, torch::kFloat), d = parameters_of({{9}}, torch::kFloat);
  const auto groups = [](const std::vector<torch::Tensor>& first,
                         const std::vector<torch::Tensor>& second) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    all.emplace_back(std::vector{first[0], second[0]},
                     std::make_unique<torch::optim::AdamWOptions>(
                         torch::optim::AdamWOptions(0.5).weight_decay(0.3)));
    return all;
  };
  fsdp::FusedAdamW fused(groups(a, c), torch::optim::AdamWOptions(1e-3));
  torch::optim::AdamW plain(groups(b, d), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 4; ++step) {
    set_gradients(a, b, step);
    set_gradients(c, d, step);
    fused.step();
    plain.step();
  }
  CHECK(difference(a, b) < 1e-14);
  CHECK(difference(c, d) < 1e-6);
}

TEST_CASE("FusedAdamW leaves parameters without a gradient alone") {
  const auto parameters = parameters_of({{3}, {4}}, torch::kFloat);
  const torch::Tensor before = parameters[1].detach().clone();
  parameters[0].mutable_grad() = torch::ones({3});
  fsdp::FusedAdamW optimizer(parameters);
  optimizer.step();
  CHECK(parameters[1].equal(before));
  CHECK(optimizer.state().count(parameters[1].unsafeGetTensorImpl()) == 0);
  CHECK(optimizer.state().size() == 1);
}

TEST_CASE("a step of FusedAdamW moves the parameters' version counters") {
  const auto parameters = parameters_of({{3}}, torch::kFloat);
  parameters[0].mutable_grad() = torch::ones({3});
  fsdp::FusedAdamW optimizer(parameters);
  const auto before = parameters[0]._version();
  optimizer.step();
  CHECK(parameters[0]._version() > before);
}

TEST_CASE("FusedAdamW casts gradients of another dtype to the parameter's") {
  const auto mine = parameters_of({{5}}, torch::kFloat),
             theirs = parameters_of({{5}}, torch::kFloat);
  const torch::Tensor gradient = torch::randn({5}).to(torch::kBFloat16);
  mine[0].unsafeGetTensorImpl();
  fsdp::FusedAdamW fused(mine);
  torch::optim::AdamW plain(theirs);
  mine[0].mutable_grad() = gradient;
  theirs[0].mutable_grad() = gradient.to(torch::kFloat);
  fused.step();
  plain.step();
  CHECK(difference(mine, theirs) <= 1e-7);
}

TEST_CASE("FusedAdamW with found_inf moves nothing and counts no step") {
  const auto parameters = parameters_of({{6}, {0}}, torch::kFloat);
  fsdp::FusedAdamW optimizer(parameters);
  for (const torch::Tensor& parameter : parameters)
    parameter.mutable_grad() = torch::ones_like(parameter) * 8;
  const torch::Tensor before = parameters[0].detach().clone();
  optimizer.scale_next_step(torch::full({1}, 8.f), torch::ones({1}));
  optimizer.step();
  CHECK(parameters[0].equal(before));
  for (const torch::Tensor& parameter : parameters)
    CHECK(state_of(optimizer, parameter).step.item<float>() == 0);

  SECTION("and without it the next step divides by the scale") {
    for (const torch::Tensor& parameter : parameters)
      parameter.mutable_grad() = torch::ones_like(parameter) * 8;
    optimizer.scale_next_step(torch::full({1}, 8.f), torch::zeros({1}));
    optimizer.step();
    const auto plain = parameters_of({{6}}, torch::kFloat);
    plain[0].mutable_grad() = torch::ones({6});
    torch::optim::AdamW reference(plain);
    reference.step();
    CHECK(difference({parameters[0]}, plain) <= 1e-7);
    CHECK(state_of(optimizer, parameters[1]).step.item<float>() == 1);
  }
}

TEST_CASE("FusedAdamW runs a closure with gradients on") {
  const auto parameters = parameters_of({{3}}, torch::kFloat);
  fsdp::FusedAdamW optimizer(parameters);
  const torch::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    torch::Tensor value = parameters[0].pow(2).sum();
    value.backward();
    return value;
  });
  CHECK(loss.item<float>() > 0);
  CHECK(optimizer.state().size() == 1);
}

TEST_CASE("FusedAdamW refuses archives by position, sparse gradients and bad options") {
  const auto parameters = parameters_of({{3}}, torch::kFloat);
  fsdp::FusedAdamW optimizer(parameters);
  std::stringstream stream;
  CHECK_THROWS_WITH(torch::save(optimizer, stream), Catch::Contains("position"));
  CHECK_THROWS_AS(fsdp::FusedAdamW(parameters, torch::optim::AdamWOptions(-1)), tessera::Error);
  CHECK_THROWS_AS(fsdp::FusedAdamW(parameters, torch::optim::AdamWOptions(1).betas({1.0, 0.9})),
                  tessera::Error);
  parameters[0].mutable_grad() = torch::ones({3}).to_sparse();
  CHECK_THROWS_WITH(optimizer.step(), Catch::Contains("sparse"));
}

}  // namespace optim_fused_adamw_test

// The scaler decides on all ranks alike, whoever found Inf or NaN.
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/fused_adamw.h>
#include <tessera/fsdp/grad_scaler.h>

#include <cmath>
#include <limits>
#include <thread>

#include "tests/fsdp/torch_and_catch.h"

namespace optim_grad_scaler_test {

namespace fsdp = tessera::fsdp;
using torch::Tensor;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Tensor parameter_with_gradient(float gradient, torch::Dtype dtype = torch::kFloat) {
  Tensor parameter = torch::ones({3}, dtype).set_requires_grad(true);
  parameter.mutable_grad() = torch::full({3}, gradient, dtype);
  return parameter;
}

}  // namespace

TEST_CASE("scaling keeps the loss's dtype and unscaling gives the gradient back") {
  fsdp::ShardedGradScaler scaler(fsdp::single_communicator());
  CHECK(scaler.get_scale() == 65536);
  CHECK(scaler.scale(torch::tensor(2.f)).item<float>() == 131072);
  CHECK(scaler.scale(torch::tensor(0.25f).to(torch::kHalf)).scalar_type() == torch::kHalf);
  CHECK(scaler.scale(torch::tensor(0.25f).to(torch::kHalf)).item<float>() == 16384);
  const torch::Dtype dtype = GENERATE(torch::kFloat, torch::kHalf, torch::kBFloat16);
  Tensor parameter = torch::ones({3}, dtype).set_requires_grad(true);
  scaler.update(1024);
  scaler.scale((parameter * parameter).sum()).backward();
  CHECK(parameter.grad()[0].item<float>() == 2048);
  torch::optim::SGD optimizer({parameter}, 0.5);
  scaler.unscale_(optimizer);
  CHECK(parameter.grad().scalar_type() == dtype);
  CHECK(parameter.grad()[0].item<float>() == 2);
  CHECK_FALSE(scaler.found_inf(optimizer));
  scaler.step(optimizer);
  CHECK(parameter[0].item<float>() == 0);
}

TEST_CASE("the scale shrinks after Inf or NaN and grows after the interval") {
  fsdp::GradScalerOptions options;
  options.init_scale = 16;
  options.growth_interval = 3;
  fsdp::ShardedGradScaler scaler(fsdp::single_communicator(), options);
  const auto step = [&](float gradient) {
    Tensor parameter = parameter_with_gradient(gradient);
    torch::optim::SGD optimizer({parameter}, 1.0);
    scaler.step(optimizer);
    scaler.update();
    return parameter[0].item<float>();
  };
  CHECK(step(16) == 0);
  CHECK(step(kInf) == 1);  // skipped
  CHECK(scaler.get_scale() == 8);
  CHECK(step(std::nanf("")) == 1);
  CHECK(scaler.get_scale() == 4);
  step(1), step(1);
  CHECK(scaler.get_scale() == 4);
  CHECK(scaler.state().growth_tracker == 2);
  step(1);
  CHECK(scaler.get_scale() == 8);
  CHECK(scaler.state().growth_tracker == 0);
}

TEST_CASE("one rank's Inf makes every rank skip, and a rank without gradients joins") {
  const int size = 3;
  const auto comms = fsdp::thread_communicators(size);
  std::vector<float> values(size), scales(size);
  std::vector<std::int64_t> reductions(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      fsdp::ShardedGradScaler scaler(comms[rank]);
      Tensor parameter = torch::ones({rank == 2 ? 0 : 3}).set_requires_grad(true);
      fsdp::FusedAdamW optimizer({parameter});
      for (const bool overflow : {true, false}) {
        if (rank == 0) parameter.mutable_grad() = torch::full({3}, overflow ? kInf : 65536.f);
        if (rank == 1) parameter.mutable_grad() = torch::full({3}, 65536.f);
        scaler.step(optimizer);
        if (overflow && rank < 2 && parameter[0].item<float>() != 1) values[rank] = -1;
        scaler.update();
      }
      if (rank < 2 && values[rank] == 0) values[rank] = parameter[0].item<float>();
      scales[rank] = static_cast<float>(scaler.get_scale());
      reductions[rank] = comms[rank]->counts().all_reduces;
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank) {
    CHECK(scales[rank] == 32768);
    CHECK(reductions[rank] == 2);
    if (rank < 2)
      CHECK(values[rank] == Approx(0.999).margin(1e-4));  // one step of lr 1e-3, the second
  }
}

TEST_CASE("a rank that fails while unscaling does not leave the others waiting") {
  const auto comms = fsdp::thread_communicators(2, std::chrono::seconds(5));
  bool failed = false, skipped = false;
  std::thread other([&] {
    fsdp::ShardedGradScaler scaler(comms[1]);
    Tensor parameter = parameter_with_gradient(1);
    torch::optim::SGD optimizer({parameter}, 1.0);
    scaler.step(optimizer);
    skipped = parameter[0].item<float>() == 1;
  });
  fsdp::ShardedGradScaler scaler(comms[0]);
  Tensor parameter = torch::ones({3}).set_requires_grad(true);
  parameter.mutable_grad() = torch::ones({3}).to_sparse();
  torch::optim::SGD optimizer({parameter}, 1.0);
  try {
    scaler.step(optimizer);
  } catch (const tessera::Error& error) {
    failed = error.code() == tessera::Code::kUnsupported;
  }
  other.join();
  CHECK(failed);
  CHECK(skipped);
}

TEST_CASE("calls in the wrong order are refused") {
  fsdp::ShardedGradScaler scaler(fsdp::single_communicator());
  Tensor parameter = parameter_with_gradient(1);
  torch::optim::SGD optimizer({parameter}, 1.0);
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("update()"));
  scaler.unscale_(optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(optimizer), Catch::Contains("already"));
  scaler.step(optimizer);
  CHECK_THROWS_WITH(scaler.step(optimizer), Catch::Contains("already"));
  CHECK_THROWS_WITH(scaler.unscale_(optimizer), Catch::Contains("after step"));
  scaler.update();
  CHECK_NOTHROW(scaler.step(optimizer));
  fsdp::GradScalerOptions options;
  options.growth_factor = 1;
  CHECK_THROWS_AS(fsdp::ShardedGradScaler(fsdp::single_communicator(), options), tessera::Error);
  CHECK_THROWS_AS(fsdp::ShardedGradScaler(nullptr), tessera::Error);
}

TEST_CASE("a disabled scaler is not there") {
  fsdp::GradScalerOptions options;
  options.enabled = false;
  const auto comm = fsdp::single_communicator();
  fsdp::ShardedGradScaler scaler(comm, options);
  const Tensor loss = torch::tensor(2.f);
  CHECK(scaler.scale(loss).is_same(loss));
  CHECK(scaler.get_scale() == 1);
  Tensor parameter = parameter_with_gradient(1);
  torch::optim::SGD optimizer({parameter}, 1.0);
  scaler.unscale_(optimizer);
  scaler.step(optimizer);
  scaler.update();
  CHECK(parameter[0].item<float>() == 0);
  CHECK(comm->counts().all_reduces == 0);
}

TEST_CASE("a scaler goes on from its state") {
  fsdp::ShardedGradScaler a(fsdp::single_communicator());
  Tensor parameter = parameter_with_gradient(1);
  torch::optim::SGD optimizer({parameter}, 1.0);
  a.step(optimizer);
  a.update();
  fsdp::ShardedGradScaler b(fsdp::single_communicator(), {.init_scale = 4});
  b.load_state(a.state());
  CHECK(b.get_scale() == 65536);
  CHECK(b.state().growth_tracker == 1);
}

}  // namespace optim_grad_scaler_test

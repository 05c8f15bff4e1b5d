// What a state dict refuses of an optimizer, alone or because ranks differ, and state of another
// shape, which is refused unless it is declared.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_optimizer_refused_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using tessera::fsdp::MemoryLayout;

namespace {

/// An optimizer of a user's own, whose second moment is one number per parameter and kind.
struct Factored : optim::AdamW {
  using optim::AdamW::AdamW;
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (torch::Tensor& parameter : group.params()) {
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!slot) {
          auto made = std::make_unique<optim::AdamWParamState>();
          made->exp_avg(torch::zeros_like(parameter));
          made->exp_avg_sq(torch::zeros({2}));
          slot = std::move(made);
        }
        auto& state = static_cast<optim::AdamWParamState&>(*slot);
        state.step(state.step() + 1);
        state.exp_avg().add_(parameter, 0.5);
        state.exp_avg_sq().add_(0.25 * static_cast<double>(state.step()));
        parameter.add_(state.exp_avg(), -1e-2);
      }
    return {};
  }
};

}  // namespace

TEST_CASE("state of another shape is carried where it is declared and refused where it is not") {
  ScratchFolder folder;
  fsdp::StateDictOptions declared;
  declared.replicated_state = {"exp_avg_sq"};
  const std::string path = folder / "a";
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    Factored optimizer(once_each(model->parameters()), optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) optimizer.step();
    const std::string message = message_of([&] { fsdp::state_dict(model, optimizer); });
    RANK_CHECK(message.find("exp_avg_sq has shape [2] on this rank") != std::string::npos, message);
    RANK_CHECK(message.find("replicated_state") != std::string::npos, message);
    tessera::save(path, fsdp::state_dict(model, optimizer, declared), world.ranks());
  });
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    Odd model = make_odd(layout == MemoryLayout::kFlat);
    shard_odd(model, options);
    Factored fresh(once_each(model->parameters()), optim::AdamWOptions(1e-2));
    tessera::LoadPolicy policy;  // (The per-parameter layout has no scalar.)
    policy.model = policy.optimizer = tessera::PartPolicy::kAllowUnexpected;
    tessera::load(path, fsdp::state_dict(model, fresh, declared), world.ranks(), policy);
    for (const torch::Tensor& parameter : model->parameters()) {
      auto& state =
          static_cast<optim::AdamWParamState&>(*fresh.state().at(parameter.unsafeGetTensorImpl()));
      RANK_CHECK(state.step() == 3);
      RANK_CHECK(same_bits(state.exp_avg_sq(), torch::full({2}, 1.5)));
      RANK_CHECK(state.exp_avg().sizes() == parameter.sizes());
    }
  });
}

TEST_CASE("optimizers that a state dict cannot describe are refused by name") {
  Odd model = make_odd(true);
  optim::LBFGS lbfgs(model->parameters());
  CHECK_THROWS_WITH(fsdp::state_dict(model, lbfgs), Catch::Contains("torch::optim::LBFGS"));

  optim::SGD foreign({torch::zeros({4, 2}, torch::requires_grad())}, optim::SGDOptions(1));
  CHECK_THROWS_WITH(fsdp::state_dict(model, foreign),
                    Catch::Contains("parameter 0 of the optimizer's group 0 (shape [4,2])"));
  optim::SGD early(model->parameters(), optim::SGDOptions(1));
  shard_odd(model, {});
  CHECK_THAT(
      message_of([&] { fsdp::state_dict(model, early); }),
      Catch::Contains("parameter 0 of the optimizer's group 0 (shape []) is none of the "
                      "model's") &&
          Catch::Contains("build the optimizer from model->parameters(), after fully_shard"));
}

TEST_CASE("an optimizer with a part of a sharded model is refused by the name of the root") {
  Odd model = make_odd(true);
  shard_odd(model, {});
  optim::SGD whole(model->parameters(), optim::SGDOptions(1));
  optim::SGD part(model->inner->parameters(), optim::SGDOptions(1));
  const auto check_refused = [&] {
    CHECK_THROWS_WITH(fsdp::state_dict(model->inner, part),
                      Catch::Contains("unit \"inner\" is not the root, it lies inside the root"));
  };
  check_refused();  // as a resuming job does it, before any forward
  odd_loss(model, 0, 0, 1).backward();
  check_refused();
  CHECK_NOTHROW(fsdp::state_dict(model, whole));
  CHECK_NOTHROW(fsdp::state_dict(model->inner));  // a model alone may be a part
}

namespace {

/// What every rank throws when `edit` has been at each rank's optimizer; the same on all, and no
/// tensor collective and no file is part of it.
template <class Edit>
std::string refused_save(int ranks, const Edit& edit) {
  tessera::MemoryFileSystem fs;
  fs.make_directories("/run");
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    std::unique_ptr<optim::AdamW> optimizer = edit(model, world.rank());
    const auto calls = [&] { return world.mesh().group(0)->records().size(); };
    const auto before = calls();
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    messages[static_cast<std::size_t>(world.rank())] = message_of([&] {
      tessera::save("/run/a", fsdp::state_dict(model, *optimizer), world.ranks(), saving);
    });
    RANK_CHECK(calls() == before);
  });
  for (const std::string& message : messages) CHECK(message == messages[0]);
  CHECK(fs.open_directory("/run")->list().empty());
  return messages[0];
}

std::unique_ptr<optim::AdamW> trained(Odd& model, int rank, int ranks) {
  auto optimizer = std::make_unique<optim::AdamW>(model->parameters());
  train_odd(model, *optimizer, 0, 2, rank, ranks);
  return optimizer;
}

}  // namespace

TEST_CASE("ranks that count different steps are told apart by name and number") {
  const std::string message = refused_save(3, [](Odd& model, int rank) {
    auto optimizer = trained(model, rank, 3);
    if (rank == 2)
      static_cast<optim::AdamWParamState&>(
          *optimizer->state().at(model->inner->parameters()[0].unsafeGetTensorImpl()))
          .step(7);
    return optimizer;
  });
  CHECK_THAT(message, Catch::Contains("\"optim.state.inner.a.weight\"") &&
                          Catch::Contains("expected step 2 as on rank 0, found step 7 on rank 2") &&
                          Catch::Contains("every rank must step every optimizer equally often"));
}

TEST_CASE("a rank without state of a parameter that others have is told apart") {
  const std::string message = refused_save(3, [](Odd& model, int rank) {
    auto optimizer = trained(model, rank, 3);
    const torch::Tensor scalar = model->named_parameters()["scalar"];
    if (rank == 1) optimizer->state().erase(scalar.unsafeGetTensorImpl());
    return optimizer;
  });
  CHECK_THAT(message,
             Catch::Contains("\"optim.state.scalar\"") &&
                 Catch::Contains("expected step 2 as on rank 0, found no state on rank 1"));
}

TEST_CASE("ranks whose optimizers hold different parameters are told apart") {
  const std::string message = refused_save(2, [](Odd& model, int rank) {
    std::vector<torch::Tensor> parameters = model->parameters();
    if (rank == 1) parameters.erase(parameters.begin() + 3);
    return std::make_unique<optim::AdamW>(parameters);
  });
  CHECK_THAT(message, Catch::Contains("\"optim.param_groups.0.params\"") &&
                          Catch::Contains("ranks disagree on its value"));
}

}  // namespace state_optimizer_refused_test

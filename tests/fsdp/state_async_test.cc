// Saves in the background of a sharded model in training.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_async_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using tessera::SnapshotTiming;

namespace {

std::unique_ptr<optim::Optimizer> make_optimizer(Odd& model, bool fused) {
  const auto options = optim::AdamWOptions(1e-2);
  if (fused) return std::make_unique<fsdp::FusedAdamW>(model->parameters(), options);
  return std::make_unique<optim::AdamW>(model->parameters(), options);
}

std::unique_ptr<optim::Optimizer> make_optimizer_of(const std::string& kind, Odd& model) {
  const auto params = model->parameters();
  if (kind == "SGD") return std::make_unique<optim::SGD>(params, 0.1);
  if (kind == "SGD with momentum")
    return std::make_unique<optim::SGD>(params, optim::SGDOptions(0.1).momentum(0.9));
  if (kind == "Adagrad") return std::make_unique<optim::Adagrad>(params, 0.1);
  if (kind == "RMSprop") return std::make_unique<optim::RMSprop>(params, 0.1);
  if (kind == "Adam") return std::make_unique<optim::Adam>(params, 1e-2);
  return make_optimizer(model, kind == "FusedAdamW");
}

std::string path_of(int step) { return "/run/step_" + std::to_string(step); }

}  // namespace

TEST_CASE("saves in the background of every step are that step's state bit by bit") {
  constexpr int kWorld = 3, kSteps = 12;
  const bool fused = GENERATE(false, true);
  const auto timing = GENERATE(SnapshotTiming::kBeforeReturn, SnapshotTiming::kLazy);
  tessera::MemoryFileSystem fs;
  std::vector<Checkpoint> expected(kSteps);
  std::vector<std::vector<tessera::LiveState>> states(kSteps,
                                                      std::vector<tessera::LiveState>(kWorld));
  fsdp::run_threads(kWorld, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    auto optimizer = make_optimizer(model, fused);
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    saving.snapshot = timing;
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      odd_loss(model, step, world.rank(), kWorld).backward();
      optimizer->step();
      auto& state = states[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank())];
      state = fsdp::state_dict(model, *optimizer);
      state.before_save();
      world.ranks().barrier();
      if (world.rank() == 0)
        expected[static_cast<std::size_t>(step)] =
            Checkpoint::of(states[static_cast<std::size_t>(step)]);
      world.ranks().barrier();
      tessera::PendingSave pending = tessera::save_async(
          path_of(step), fsdp::state_dict(model, *optimizer), world.ranks(), saving);
      if (timing == SnapshotTiming::kLazy) {
        // What reads the memory may go on; it updates a buffer, which was copied at once.
        odd_loss(model, step + 50, world.rank(), kWorld).backward();
        pending.finish_snapshot();
      }
      const torch::NoGradGuard no_grad;
      if (step % 3 == 2) pending.wait();
    }
    tessera::save("/run/end", fsdp::state_dict(model), world.ranks(), saving);
  });
  for (int step = 0; step < kSteps; ++step) {
    const Checkpoint& wanted = expected[static_cast<std::size_t>(step)];
    Odd model = make_odd(true);
    auto optimizer = make_optimizer(model, fused);
    tessera::LoadPolicy policy;
    policy.file_system = &fs;
    const auto alone = tessera::single_rank();
    tessera::load(path_of(step), fsdp::state_dict(model, *optimizer), *alone, policy);
    const Checkpoint found = Checkpoint::of({fsdp::state_dict(model, *optimizer)});
    REQUIRE(found.tensors.size() == wanted.tensors.size());
    for (const auto& [name, tensor] : wanted.tensors) {
      CAPTURE(step, name);
      CHECK(same_bits(found.tensors.at(name), tensor));
    }
  }
}

TEST_CASE("an optimizer step before finish_snapshot is told by parameter on every rank") {
  // Some classes write through data(), which no version counter sees.
  const std::string kind =
      GENERATE("SGD", "SGD with momentum", "Adagrad", "RMSprop", "Adam", "AdamW", "FusedAdamW");
  const auto layout = GENERATE(fsdp::MemoryLayout::kFlat, fsdp::MemoryLayout::kPerParameter);
  const bool model_alone = GENERATE(false, true);
  CAPTURE(kind, model_alone);
  tessera::MemoryFileSystem fs;
  fs.make_directories("/run");
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    Odd model = make_odd(layout == fsdp::MemoryLayout::kFlat);
    shard_odd(model, options);
    auto optimizer = make_optimizer_of(kind, model);
    odd_loss(model, 0, world.rank(), 2).backward();
    optimizer->step();
    const auto state = [&] {
      return model_alone ? fsdp::state_dict(model) : fsdp::state_dict(model, *optimizer);
    };
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    saving.snapshot = SnapshotTiming::kLazy;
    tessera::PendingSave pending = tessera::save_async("/run/a", state(), world.ranks(), saving);
    optimizer->step();  // too early
    pending.finish_snapshot();
    const std::string message = message_of([&] { pending.wait(); });
    RANK_CHECK(message.find("\"model.") != std::string::npos, message);
    RANK_CHECK(message.find("changed before the lazy snapshot") != std::string::npos, message);
    pending = tessera::save_async("/run/b", state(), world.ranks(), saving);
    odd_loss(model, 1, world.rank(), 2).backward();
    pending.finish_snapshot();
    optimizer->step();
    pending.wait();
  });
  CHECK_FALSE(fs.stat("/run/a"));
  CHECK(fs.stat("/run/b"));
}

TEST_CASE("a shard whose memory was replaced before finish_snapshot is told") {
  tessera::MemoryFileSystem fs;
  fs.make_directories("/run");
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    saving.snapshot = SnapshotTiming::kLazy;
    tessera::PendingSave pending =
        tessera::save_async("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    torch::Tensor shard = model->named_parameters()["inner.a.weight"];
    shard.set_data(shard.detach().clone());  // equal values
    pending.finish_snapshot();
    const std::string message = message_of([&] { pending.wait(); });
    RANK_CHECK(message.find("\"model.inner.a.weight\"") != std::string::npos, message);
  });
  CHECK_FALSE(fs.stat("/run/a"));
}

}  // namespace state_async_test

// A state loaded, or saved, while gradients accumulate: parameters are new from the next forward on
// whatever was kept gathered, and what has been accumulated stays, as on a plain module.
#include <tessera/storage/memory_file_system.h>

#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_accumulating_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::ShardingStrategy;

TEST_CASE("a state is loaded in the middle of gradient accumulation") {
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool held = GENERATE(false, true);  // the first microbatch is not reduced
  CAPTURE(static_cast<int>(strategy), layout == MemoryLayout::kFlat, held);
  tessera::MemoryFileSystem fs;
  {
    Net other = make_net(2);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& param : other->parameters()) param.mul_(-0.5);
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    tessera::save("/run", fsdp::state_dict(other), *tessera::single_rank(), saving);
  }
  fsdp::run_threads(4, [&](fsdp::World& world) {
    fsdp::Options given;
    given.strategy = strategy;
    given.mesh = fsdp::strategy_of(strategy).hybrid()
                     ? fsdp::DeviceMesh(world, {2, 2}, {"replicate", "shard"})
                     : world.mesh();
    given.layout = layout;
    auto [options, net, plain, data] = BesidePlain(world, given, 2);
    tessera::LoadPolicy policy;
    policy.file_system = &fs;
    for (int micro = 0; micro < 3; ++micro) {
      std::optional<fsdp::NoSync> no_sync;
      if (held && micro < 2) no_sync.emplace(net);
      backward(net, part_of(data, world.rank(), world.size()), micro);
      backward(plain, data, micro);
      if (micro > 0) continue;
      no_sync.reset();
      tessera::load("/run", fsdp::state_dict(net), world.ranks(), policy);
      tessera::load("/run", fsdp::state_dict(plain), *tessera::single_rank(), policy);
    }
    check_full_gradients(net, plain);
    const fsdp::SummonFullParams full(net);
    const auto theirs = plain->named_parameters();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::equal(param.value(), theirs[param.key()]), param.key());
  });
}

}  // namespace state_accumulating_test

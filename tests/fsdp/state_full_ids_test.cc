// Optimizers keyed by torch.optim's ids, in memory: what key_by_ids makes goes back by FQN.
#include <tessera/base/error.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_full_ids_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;

TEST_CASE("a full state keyed by ids is scattered by name, whatever the order of the groups") {
  const bool rank0_only = GENERATE(false, true);
  Odd plain = make_odd(false);
  const std::vector<torch::Tensor> all = once_each(plain->parameters());
  std::vector<optim::OptimizerParamGroup> groups;  // the last parameters first
  groups.emplace_back(std::vector<torch::Tensor>(all.begin() + 3, all.end()));
  groups.emplace_back(std::vector<torch::Tensor>(all.begin(), all.begin() + 3));
  optim::AdamW of_plain(groups, optim::AdamWOptions(0.25));
  train_odd(plain, of_plain, 0, 2, 0, 1);
  const tessera::LiveState by_name = fsdp::state_dict(plain, of_plain);
  tessera::LiveState by_id = fsdp::state_dict(plain, of_plain);
  fsdp::key_by_ids(by_id);
  REQUIRE(by_id.dict().find("optim.state.0.exp_avg") != nullptr);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(once_each(model->parameters()));
    const bool has = !rank0_only || world.rank() == 0;
    fsdp::load_full_state(model, optimizer, has ? by_id : tessera::LiveState{}, rank0_only);
    fsdp::StateDictOptions of_full;
    of_full.type = fsdp::StateDictType::kFull;
    const tessera::LiveState now = fsdp::state_dict(model, optimizer, of_full);
    int compared = 0;
    for (const tessera::StateEntry& entry : by_name.dict().entries) {
      if (!entry.value.is_tensor()) continue;
      ++compared;
      RANK_CHECK(same_bits(assembled({now}, entry.name), assembled({by_name}, entry.name)),
                 entry.name);
    }
    RANK_CHECK(compared > 20);
    RANK_CHECK(static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr() ==
               0.25);
  });
}

}  // namespace state_full_ids_test

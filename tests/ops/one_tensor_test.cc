// stat, diff, optim and show of a few tensors: what they say is what they say of the whole.
#include <tessera/ops/diff.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/run_command.h"

namespace one_tensor_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

OpenedCheckpoint opened(FileSystem& fs, const std::string& name) {
  return open_checkpoint(fs, case_path(name));
}

}  // namespace

TEST_CASE("stat of some tensors has the rows that stat of all has") {
  const auto fs = make_posix_file_system();
  OpenedCheckpoint checkpoint = opened(*fs, "dcp/fsdp2_w4");
  const StatReport all = stat_checkpoint(checkpoint);
  const std::vector<std::uint32_t> leaves = leaf_tensors(checkpoint.manifest);
  for (std::size_t i = 0; i + 1 < leaves.size(); i += 5) {
    StatOptions options;
    options.tensors = {leaves[i], leaves[i + 1]};
    OpenedCheckpoint again = opened(*fs, "dcp/fsdp2_w4");
    const StatReport some = stat_checkpoint(again, options);
    REQUIRE(some.tensors.size() == 2);
    for (std::size_t j = 0; j < 2; ++j) {
      CHECK(some.tensors[j].name == all.tensors[i + j].name);
      CHECK(some.tensors[j].l2 == all.tensors[i + j].l2);
      CHECK(some.tensors[j].quantiles == all.tensors[i + j].quantiles);
      CHECK(some.tensors[j].histogram.has_value());
    }
    CHECK(some.bytes < all.bytes);
  }
}

TEST_CASE("diff of some names compares these and nothing else") {
  const auto fs = make_posix_file_system();
  const auto compared = [&](std::vector<std::string> names) {
    OpenedCheckpoint a = opened(*fs, "dcp/fsdp2_w4"), b = opened(*fs, "dcp/fsdp2_w2");
    DiffOptions options;
    options.names = std::move(names);
    return diff_checkpoints(a, b, options);
  };
  const DiffReport all = compared({});
  OpenedCheckpoint a = opened(*fs, "dcp/fsdp2_w4");
  for (const std::uint32_t leaf : leaf_tensors(a.manifest)) {
    const std::string name(a.manifest.tensors[leaf].name);
    const DiffReport one = compared({name});
    const auto in_all = std::ranges::find(all.tensors, name, &TensorDiff::name);
    CHECK(one.tensors.size() == (in_all == all.tensors.end() ? 0U : 1U));
    CHECK(one.values.empty());
    CHECK(one.values_compared == 0);
    CHECK(one.equal == one.tensors.empty());
    if (one.tensors.empty()) {
      CHECK(one.tensors_compared == 1);
      continue;
    }
    CHECK(one.tensors[0].count == in_all->count);
    CHECK(one.tensors[0].relative_l2 == in_all->relative_l2);
  }
}

TEST_CASE("optim of one parameter ranks it as optim of all does") {
  const auto fs = make_posix_file_system();
  OpenedCheckpoint checkpoint = opened(*fs, "dcp/fsdp2_w4");
  const OptimReport all = inspect_optimizer(checkpoint, nullptr);
  REQUIRE(all.optimizers.size() == 1);
  REQUIRE(all.optimizers[0].updates.size() > 3);
  for (const UpdateRow& row : all.optimizers[0].updates) {
    OptimOptions options;
    options.parameter = row.fqn;
    const OptimReport one = inspect_optimizer(checkpoint, nullptr, options);
    REQUIRE(one.optimizers[0].updates.size() == 1);
    CHECK(one.optimizers[0].updates[0].fqn == row.fqn);
    CHECK(one.optimizers[0].updates[0].ratio == row.ratio);
    CHECK(one.optimizers[0].parameters.size() == all.optimizers[0].parameters.size());
  }
}

TEST_CASE("show without facts has the values that show has") {
  const auto fs = make_posix_file_system();
  OpenedCheckpoint checkpoint = opened(*fs, "safetensors/tied_save_model");
  const std::string name(
      checkpoint.manifest.tensors[leaf_tensors(checkpoint.manifest).front()].name);
  ShowOptions options;
  const ShowReport with = show(checkpoint, name, options);
  options.facts = false;
  const ShowReport without = show(checkpoint, name, options);
  CHECK(without.values == with.values);
  CHECK(without.facts.empty());
}

}  // namespace one_tensor_test

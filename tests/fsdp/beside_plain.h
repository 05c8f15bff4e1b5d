#pragma once
// A sharded net beside the plain one of the same values, and data for both.
#include <utility>

#include "tests/fsdp/models.h"

namespace tessera::fsdp::test {

/// auto [options, net, plain, data] = BesidePlain(world);
struct BesidePlain {
  /// Over all ranks of the world where `given` has neither mesh nor group.
  explicit BesidePlain(const World& world, Options given = {}, int depth = 3)
      : options(std::move(given)), net(make_net(depth)), plain(make_net(depth)), data(make_data()) {
    if (!options.mesh && !options.process_group) options.mesh = world.mesh();
    shard(net, options);
  }

  Options options;
  Net net, plain;
  Data data;
};

/// Gradients of the mean squared error; of other inputs for each `which`.
inline void backward(Net& net, const Data& data, int which = 0) {
  torch::mse_loss(net->forward(data.x * (which + 1)), data.y).backward();
}

}  // namespace tessera::fsdp::test

#pragma once
// Gradients of a sharded model, gathered, against those of the plain model of the same names.
#include <fmt/format.h>

#include "tests/fsdp/models.h"

namespace tessera::fsdp::test {

/// Collective. Where the plain model has none, ours is undefined or zero.
template <class Model>
void check_full_gradients(Model& net, Model& plain, const std::string& when = "") {
  SummonOptions with_grads;
  with_grads.with_grads = true;
  const SummonFullParams full(net, with_grads);
  const auto theirs = plain->named_parameters();
  for (const auto& param : net->named_parameters()) {
    const torch::Tensor& want = theirs[param.key()].grad();
    const torch::Tensor& ours = param.value().grad();
    const std::string where = fmt::format("({} {})", param.key(), when);
    if (!want.defined()) {
      RANK_CHECK(!ours.defined() || ours.abs().max().template item<double>() == 0, where);
      continue;
    }
    RANK_CHECK(ours.defined(), where);
    RANK_CHECK(
        torch::allclose(ours, want, 1e-5, 1e-6),
        fmt::format("{}: off by {}", where, (ours - want).abs().max().template item<double>()));
  }
}

}  // namespace tessera::fsdp::test

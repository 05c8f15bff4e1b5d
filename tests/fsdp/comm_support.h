#pragma once
// Ranks for the tests of communicators: every backend that moves data, behind one function.
#include <tessera/fsdp/world.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::fsdp::testing {

/// Runs `body` as every rank; what each rank threw ("" for nothing), by rank.
std::vector<std::string> thrown_by_ranks(int size, const std::function<void(World&)>& body,
                                         const WorldOptions& options = {});

/// Throws with `what` unless `ok`: assertions of the test library are for one thread alone.
void require(bool ok, const std::string& what);

/// Deterministic small integers that every type of at least 8 bits holds exactly: element `i` of
/// rank `rank` in call `salt`.
double sample(int rank, std::int64_t i, int salt);
at::Tensor sample_tensor(int rank, std::int64_t numel, at::ScalarType dtype, int salt);

/// Element-wise oracle: what rank order gives, computed in double.
at::Tensor expected_reduction(int size, std::int64_t numel, at::ScalarType dtype, Reduce reduce,
                              int salt);

}  // namespace tessera::fsdp::testing

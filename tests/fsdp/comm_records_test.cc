// Counts, records and the observer: what order checks and the report of a timeout are made of.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/fsdp/comm_support.h"

namespace comm_records_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;

namespace {

constexpr CommTag kUnit{"transformer.layers.17.attention", CommPhase::kBackward};

}  // namespace

TEST_CASE("wire bytes follow the ring formulas for every call") {
  const auto comm = fake_communicator(1, 4);
  at::Tensor full = at::zeros({32}), part = at::zeros({8});
  comm->all_gather_into(full, part, kUnit);
  CHECK(comm->counts().wire_bytes == 32 * 4 * 3 / 4);
  comm->reduce_scatter_into(part, full, Reduce::kSum, kUnit);
  CHECK(comm->counts().wire_bytes == 2 * 32 * 4 * 3 / 4);
  comm->all_reduce(full, Reduce::kSum, kUnit);
  CHECK(comm->counts().wire_bytes == 4 * 32 * 4 * 3 / 4);
  comm->broadcast(full, 0, kUnit);
  CHECK(comm->counts().all_gathers == 1);
  CHECK(comm->counts().reduce_scatters == 1);
  CHECK(comm->counts().all_reduces == 1);
  CHECK(comm->counts().broadcasts == 1);
  CHECK(comm->counts().check_calls == 0);
  comm->reset_counts();
  CHECK(comm->counts().wire_bytes == 0);
}

TEST_CASE("check traffic is counted apart") {
  const auto comm = fake_communicator(0, 4);
  at::Tensor full = at::zeros({32});
  comm->all_reduce(full, Reduce::kMax, {"", CommPhase::kCheck});
  comm->barrier(kUnit);
  comm->all_gather_bytes(std::vector<std::byte>(10), kUnit);
  CHECK(comm->counts().wire_bytes == 0);
  CHECK(comm->counts().all_reduces == 0);
  CHECK(comm->counts().check_calls == 3);
  CHECK(comm->counts().check_bytes == 2 * 32 * 4 * 3 / 4 + 10 * 3);
}

TEST_CASE("the last 2000 records are kept oldest first") {
  const auto comm = fake_communicator(0, 2);
  at::Tensor full = at::zeros({4}), part = at::zeros({2});
  for (int i = 0; i < 2500; ++i) {
    if (i % 2 == 0)
      comm->all_gather_into(full, part, kUnit);
    else
      comm->all_reduce(part, Reduce::kSum, {"", CommPhase::kOptimizer});
  }
  const auto records = comm->records();
  REQUIRE(records.size() == 2000);
  CHECK(records.front().sequence == 500);
  CHECK(records.back().sequence == 2499);
  CHECK(records.front().op == CommOp::kAllGather);
  CHECK(records.front().unit == kUnit.unit);
  CHECK(records.front().numel == 4);
  CHECK(records.front().done);
  CHECK(records.back().op == CommOp::kAllReduce);
  CHECK(records.back().phase == CommPhase::kOptimizer);
  CHECK(records.back().unit == "");
}

TEST_CASE("the observer sees each call before it runs and may stop it") {
  const auto comm = single_communicator();
  std::vector<std::string> seen;
  comm->observe([&](const CommRecord& record) {
    CHECK_FALSE(record.done);
    seen.push_back(std::string(comm_op_name(record.op)) + " " + record.unit);
    if (seen.size() == 2) fail(Code::kInvalidArgument, "not now");
  });
  comm->barrier(kUnit);
  CHECK_THROWS_WITH(comm->barrier(kUnit), "invalid argument: not now");
  comm->barrier({"head", CommPhase::kForward});  // a check that threw has not killed the group
  CHECK(seen == std::vector<std::string>{"barrier transformer.layers.17.attention",
                                         "barrier transformer.layers.17.attention",
                                         "barrier head"});
  comm->observe({});
  comm->barrier(kUnit);
  CHECK(seen.size() == 3);
}

TEST_CASE("a call that failed stays unfinished in the records") {
  const auto thrown = thrown_by_ranks(2, [](World& world) {
    const auto comm = world.communicator();
    comm->barrier(kUnit);
    try {
      if (world.rank() == 0)
        comm->barrier(kUnit);
      else
        comm->all_gather_bytes({}, kUnit);
    } catch (const Error&) {
    }
    const auto records = comm->records();
    require(records.size() == 2 && records[0].done && !records[1].done, "records");
  });
  for (const auto& error : thrown) CHECK(error == "");
}

TEST_CASE("every phase and collective has a name of its own") {
  std::vector<std::string_view> names;
  for (int p = 0; p <= static_cast<int>(CommPhase::kCheck); ++p)
    names.push_back(comm_phase_name(static_cast<CommPhase>(p)));
  for (int o = 0; o <= static_cast<int>(CommOp::kBarrier); ++o)
    names.push_back(comm_op_name(static_cast<CommOp>(o)));
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

}  // namespace comm_records_test

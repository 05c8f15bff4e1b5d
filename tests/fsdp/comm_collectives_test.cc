// Every communicator that moves data, against a brute-force oracle.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/fsdp/comm_support.h"

namespace comm_collectives_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;

namespace {

constexpr CommTag kTag{"layers.0", CommPhase::kForward};

const std::vector<at::ScalarType> kArithmetic = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                                 at::kLong,  at::kInt,    at::kShort};
const std::vector<at::ScalarType> kMovable = {
    at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong,          at::kInt,
    at::kShort, at::kChar,   at::kByte,     at::kBool, at::kFloat8_e4m3fn, at::kComplexFloat};

void same(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  require(at::equal(got.view(at::kByte), expected.view(at::kByte)), what + ": wrong values");
}

void gathers(Communicator& comm, std::int64_t numel, at::ScalarType dtype, int salt) {
  const at::Tensor mine = sample_tensor(comm.rank(), numel, dtype, salt);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < comm.size(); ++rank)
    parts.push_back(sample_tensor(rank, numel, dtype, salt));
  const at::Tensor expected = at::cat(parts);
  at::Tensor out = at::zeros({numel * comm.size()}, dtype);
  comm.all_gather_into(out, mine, kTag);
  same(out, expected, "all-gather");
  at::Tensor whole = at::zeros({numel * comm.size()}, dtype);
  at::Tensor slot = whole.narrow(0, comm.rank() * numel, numel);
  slot.copy_(mine);
  comm.all_gather_into(whole, slot, kTag);
  same(whole, expected, "all-gather in place");
}

void broadcasts(Communicator& comm, std::int64_t numel, at::ScalarType dtype, int salt) {
  for (int root = 0; root < comm.size(); ++root) {
    at::Tensor tensor = sample_tensor(comm.rank(), numel, dtype, salt);
    comm.broadcast(tensor, root, kTag);
    same(tensor, sample_tensor(root, numel, dtype, salt), "broadcast");
  }
}

void reduces(Communicator& comm, std::int64_t numel, at::ScalarType dtype, Reduce reduce,
             int salt) {
  const std::int64_t whole = numel * comm.size();
  const at::Tensor expected = expected_reduction(comm.size(), whole, dtype, reduce, salt);
  at::Tensor out = at::zeros({numel}, dtype);
  comm.reduce_scatter_into(out, sample_tensor(comm.rank(), whole, dtype, salt), reduce, kTag);
  same(out, expected.narrow(0, comm.rank() * numel, numel), "reduce-scatter");
  // Not a multiple of the group's size either.
  at::Tensor all = sample_tensor(comm.rank(), whole + numel % 3, dtype, salt);
  comm.all_reduce(all, reduce, kTag);
  same(all, expected_reduction(comm.size(), whole + numel % 3, dtype, reduce, salt), "all-reduce");
}

void gathers_bytes(Communicator& comm) {
  std::vector<std::byte> mine(static_cast<std::size_t>(comm.rank() * 1000),
                              static_cast<std::byte>(comm.rank()));
  const auto all = comm.all_gather_bytes(mine, kTag);
  require(static_cast<int>(all.size()) == comm.size(), "bytes of every rank");
  for (int rank = 0; rank < comm.size(); ++rank)
    require(all[rank] == std::vector<std::byte>(static_cast<std::size_t>(rank * 1000),
                                                static_cast<std::byte>(rank)),
            "bytes of rank " + std::to_string(rank));
}

void whole_matrix(World& world) {
  const auto comm = world.communicator();
  int salt = 0;
  for (const std::int64_t numel : {0, 1, 7, 1030}) {
    for (const at::ScalarType dtype : kMovable) {
      gathers(*comm, numel, dtype, ++salt);
      broadcasts(*comm, numel, dtype, ++salt);
    }
    for (const at::ScalarType dtype : kArithmetic)
      for (const Reduce reduce : {Reduce::kSum, Reduce::kAverage, Reduce::kMax, Reduce::kMin})
        if (reduce != Reduce::kAverage || at::isFloatingType(dtype))
          reduces(*comm, numel, dtype, reduce, ++salt);
  }
  gathers_bytes(*comm);
  comm->barrier(kTag);
}

void matrix_on(const std::string& backend) {
  for (const int size : {1, 2, 3, 4, 5}) {
    INFO("world size " << size);
    WorldOptions options;
    options.backend = backend;
    const auto thrown = thrown_by_ranks(size, whole_matrix, options);
    for (const auto& error : thrown) CHECK(error == "");
  }
}

/// "VmRSS:", "VmHWM:" of this process, in bytes.
std::int64_t memory_of_process(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(what)) return std::stoll(line.substr(what.size())) * 1024;
  throw std::runtime_error("no " + what);
}

/// The most from here on is what VmHWM tells.
bool restart_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << 5 << std::flush;
  return refs.good();
}

}  // namespace

TEST_CASE("collectives on threads equal the oracle for every type and size") {
  matrix_on("threads");
}

TEST_CASE("sums follow rank order and 16-bit floats are rounded once") {
  // 1 + 2^-8 steps: in bf16 a running sum would stay at 1.
  run_threads(5, [](World& world) {
    at::Tensor tensor = at::full({3}, world.rank() == 0 ? 1.0 : 0.00390625, at::kBFloat16);
    world.communicator()->all_reduce(tensor, Reduce::kSum, kTag);
    require(tensor[0].item<float>() == 1.015625f, "bf16 sum is rounded at every step");
    // fp32: (1e8 + 1) - 1e8 loses the 1 in rank order.
    const float values[5] = {1e8f, 1.0f, -1e8f, 1.0f, 0.0f};
    at::Tensor ordered = at::full({2}, values[world.rank()]);
    world.communicator()->all_reduce(ordered, Reduce::kSum, kTag);
    require(ordered[0].item<float>() == 1.0f, "fp32 sum is not in rank order");
  });
}

TEST_CASE("a NaN survives every reduction") {
  run_threads(3, [](World& world) {
    for (const Reduce reduce : {Reduce::kSum, Reduce::kAverage, Reduce::kMax, Reduce::kMin})
      for (int source = 0; source < 3; ++source) {
        at::Tensor tensor = at::ones({4});
        if (world.rank() == source) tensor[2] = NAN;
        world.communicator()->all_reduce(tensor, reduce, kTag);
        require(std::isnan(tensor[2].item<float>()) && !std::isnan(tensor[1].item<float>()),
                "a NaN was lost");
      }
  });
}

TEST_CASE("one rank alone copies, and not at all in place") {
  const auto comm = single_communicator();
  CHECK(comm->backend() == "single");
  at::Tensor in = at::arange(5, at::kFloat);
  at::Tensor out = at::zeros({5});
  comm->all_gather_into(out, in, kTag);
  CHECK(at::equal(out, in));
  comm->reduce_scatter_into(out, in + 1, Reduce::kAverage, kTag);
  CHECK(at::equal(out, in + 1));
  const auto version = out._version();
  comm->all_gather_into(out, out, kTag);
  comm->all_reduce(out, Reduce::kSum, kTag);
  CHECK(out._version() == version);
  CHECK(comm->counts().all_gathers == 2);
  CHECK(comm->counts().wire_bytes == 0);
}

TEST_CASE("collectives leave the version of their tensors alone") {
  run_threads(2, [](World& world) {
    at::Tensor out = at::zeros({8});
    at::Tensor in = at::ones({4});
    const auto version = out._version();
    world.communicator()->all_gather_into(out, in, kTag);
    require(out._version() == version, "an all-gather moved the version counter");
  });
}

TEST_CASE("the fake fills its own slot and costs the same at any world size") {
  const auto comm = fake_communicator(4095, 4096);
  CHECK(comm->backend() == "fake");
  at::Tensor out = at::zeros({4096 * 2});
  comm->all_gather_into(out, at::full({2}, 3.0f), kTag);
  CHECK(out[8191].item<float>() == 3.0f);
  CHECK(out[0].item<float>() == 0.0f);
  at::Tensor part = at::zeros({2});
  comm->reduce_scatter_into(part, out, Reduce::kSum, kTag);
  CHECK(part[1].item<float>() == 3.0f * 4096);
  comm->reduce_scatter_into(part, out, Reduce::kAverage, kTag);
  CHECK(part[1].item<float>() == 3.0f);
  CHECK(comm->counts().wire_bytes == 3 * 4095 * 2 * 4);
}

TEST_CASE("wrong arguments are refused before anything is sent") {
  run_threads(2, [](World& world) {
    const auto comm = world.communicator();
    const auto refused = [&](const char* part, const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        require(error.code() == Code::kInvalidArgument &&
                    std::string(error.what()).find(part) != std::string::npos,
                std::string("another message: ") + error.what());
        return;
      }
      require(false, std::string("accepted: ") + part);
    };
    const at::Tensor four = at::ones({4}), two = at::ones({2});
    refused("not 2 shards of 4", [&] { comm->all_gather_into(four, four, kTag); });
    refused("Float and Double", [&] { comm->all_gather_into(four, two.to(at::kDouble), kTag); });
    refused("not contiguous", [&] {
      comm->all_reduce(at::ones({4, 2}).select(1, 0), Reduce::kSum, kTag);
    });
    refused("requires grad",
            [&] { comm->all_reduce(at::ones({4}).requires_grad_(), Reduce::kSum, kTag); });
    refused("undefined", [&] { comm->all_reduce(at::Tensor(), Reduce::kSum, kTag); });
    refused("no average of Long",
            [&] { comm->all_reduce(at::ones({4}, at::kLong), Reduce::kAverage, kTag); });
    refused("from 2", [&] { comm->broadcast(four, 2, kTag); });
    refused("wrong device",
            [&] { comm->all_reduce(at::empty({2}, at::kMeta), Reduce::kSum, kTag); });
    require(comm->records().empty(), "a refused call was recorded");
    comm->barrier(kTag);  // and the group lives on
  });
}

TEST_CASE("collectives over Gloo equal the oracle for every type and size") { matrix_on("gloo"); }

TEST_CASE("buffers of several pieces are reduced in place of their slots over Gloo") {
  WorldOptions options;
  options.backend = "gloo";
  const auto thrown = thrown_by_ranks(
      3,
      [](World& world) {
        const auto comm = world.communicator();
        // 512 KiB a piece: three pieces and a rest.
        for (const std::int64_t numel : {std::int64_t{131072}, std::int64_t{400001}}) {
          reduces(*comm, numel, at::kFloat, Reduce::kSum, 3);
          reduces(*comm, numel, at::kBFloat16, Reduce::kAverage, 4);
          gathers(*comm, numel, at::kFloat, 5);
        }
        at::Tensor in = sample_tensor(comm->rank(), 3 * 5, at::kFloat, 9);
        at::Tensor slot = in.narrow(0, comm->rank() * 5, 5);
        comm->reduce_scatter_into(slot, in, Reduce::kSum, kTag);
        same(slot,
             expected_reduction(3, 15, at::kFloat, Reduce::kSum, 9).narrow(0, comm->rank() * 5, 5),
             "reduce-scatter into its own slot");
      },
      options);
  for (const auto& error : thrown) CHECK(error == "");
}

TEST_CASE("a reduce-scatter over Gloo holds 1 MiB for each peer beside its buffers") {
  if (!restart_peak()) {
    WARN("skipped: this system does not let a process restart its peak of memory");
    return;
  }
  constexpr std::int64_t kMiB = 1 << 20, kSlot = 16 * kMiB;
  const int ranks = GENERATE(2, 4);
  CAPTURE(ranks);
  WorldOptions options;
  options.backend = "gloo";
  std::int64_t before = 0, peak = 0;
  const auto thrown = thrown_by_ranks(
      ranks,
      [&](World& world) {
        const auto comm = world.communicator();
        const at::Tensor in = at::ones({kSlot / 4 * world.size()});
        at::Tensor out = at::zeros({kSlot / 4});
        comm->barrier(kTag);
        if (world.rank() == 0) {
          before = memory_of_process("VmRSS:");
          restart_peak();
        }
        comm->barrier(kTag);
        comm->reduce_scatter_into(out, in, Reduce::kSum, kTag);
        comm->barrier(kTag);
        if (world.rank() == 0) peak = memory_of_process("VmHWM:");
        comm->barrier(kTag);
        require(at::equal(out, at::full_like(out, world.size())), "sum");
      },
      options);
  for (const auto& error : thrown) CHECK(error == "");
  // All ranks are threads of this process; 4 MiB for stacks and what the C library keeps.
  const std::int64_t beside = peak - before, bound = ranks * ranks * kMiB + 4 * kMiB;
  INFO(beside << " bytes beside the buffers, " << bound << " allowed");
  CHECK(beside <= bound);
  CHECK(beside > 0);
}

}  // namespace comm_collectives_test

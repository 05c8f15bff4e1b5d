// What the other ranks see when one fails, on threads and over Gloo.
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "tests/fsdp/comm_sums.h"
#include "tests/fsdp/comm_support.h"

namespace comm_failure_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

WorldOptions over(const char* backend, std::chrono::milliseconds timeout = 20s) {
  WorldOptions options;
  options.backend = backend;
  options.timeout = timeout;
  return options;
}

void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("an exception on one rank reaches all others at once with the same text") {
  for (const char* backend : {"threads", "gloo"})
    for (int bad = 0; bad < 4; ++bad) {
      INFO(backend << ", rank " << bad << " throws");
      const auto start = Clock::now();
      const auto thrown = thrown_by_ranks(
          4,
          [&](World& world) {
            sum_once(world);
            if (world.rank() == bad) throw std::runtime_error("no more memory in layers.1");
            sum_once(world, kBackward);
          },
          over(backend));
      CHECK(Clock::now() - start < 2s);
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == bad) continue;
        contains(thrown[rank],
                 "rank " + std::to_string(bad) + " failed: no more memory in layers.1");
        CHECK(thrown[rank] == thrown[(bad + 1) % 4]);
      }
    }
}

TEST_CASE("run_threads rethrows the cause and not its echo") {
  for (const char* backend : {"threads", "gloo"})
    CHECK_THROWS_WITH(run_threads(
                          3,
                          [](World& world) {
                            sum_once(world);
                            if (world.rank() == 2) throw std::runtime_error("the cause");
                            sum_once(world);
                          },
                          over(backend)),
                      "the cause");
}

TEST_CASE("abort from another thread ends a pending call on every member") {
  for (const char* backend : {"threads", "gloo"}) {
    INFO(backend);
    std::atomic<int> pending = 1;
    const auto thrown = thrown_by_ranks(
        3,
        [&](World& world) {
          sum_once(world);
          const auto comm = world.communicator();
          if (world.rank() == 2)  // comes when the call of rank 0 has ended
            while (pending > 0) std::this_thread::sleep_for(1ms);
          std::thread other;
          if (world.rank() == 0)
            other = std::thread([comm] {
              std::this_thread::sleep_for(100ms);
              comm->abort("the watchdog has seen enough");
            });
          const auto start = Clock::now();
          try {
            sum_once(world, kBackward);
          } catch (const std::exception&) {
            --pending;
            if (other.joinable()) other.join();
            require(Clock::now() - start < 3s, "noticed too late");
            throw;
          }
          require(false, "nothing was thrown");
        },
        over(backend));
    for (const auto& error : thrown) contains(error, "rank 0 failed: the watchdog has seen enough");
  }
}

TEST_CASE("a dead group says why at every later call") {
  for (const char* backend : {"threads", "gloo"}) {
    const auto thrown = thrown_by_ranks(
        2,
        [](World& world) {
          sum_once(world);
          const auto comm = world.communicator();
          if (world.rank() == 0) comm->abort("enough");
          std::string first, second;
          for (std::string* text : {&first, &second}) try {
              comm->barrier(kForward);
            } catch (const Error& error) {
              *text = error.what();
            }
          require(!first.empty() && first == second, "first: " + first + " second: " + second);
        },
        over(backend));
    for (const auto& error : thrown) CHECK(error == "");
  }
}

TEST_CASE("a rank that does not come is named with group and unit and phase and call") {
  for (const char* backend : {"threads", "gloo"}) {
    INFO(backend);
    std::atomic<int> waiting = 2;
    const auto thrown = thrown_by_ranks(
        3,
        [&](World& world) {
          sum_once(world);
          if (world.rank() == 1) {
            while (waiting > 0) std::this_thread::sleep_for(1ms);
            return;
          }
          try {
            sum_once(world, kBackward);
          } catch (...) {
            --waiting;
            throw;
          }
        },
        over(backend, 400ms));
    bool timed_out = false;
    for (const int rank : {0, 2}) {
      contains(thrown[rank], "rank 1");
      contains(thrown[rank], "all-reduce 1 of 4 Float in backward of unit \"layers.2\"");
      contains(thrown[rank], "group \"world\"");
      // The first to see it says so to the other.
      if (thrown[rank].starts_with("timeout")) timed_out = true;
      contains(thrown[rank], thrown[rank].starts_with("timeout")
                                 ? "[rank " + std::to_string(rank)
                                 : "rank " + std::to_string(2 - rank) + " failed: timeout");
    }
    CHECK(timed_out);
  }
}

TEST_CASE("ranks whose calls differ fail and name both calls") {
  const auto numel = [](World& world) { sum_once(world, kForward, world.rank() == 1 ? 5 : 4); };
  const auto unit = [](World& world) {
    sum_once(world, world.rank() == 1 ? CommTag{"layers.0", CommPhase::kForward} : kForward);
  };
  const auto op = [](World& world) {
    if (world.rank() != 1) return sum_once(world);
    at::Tensor out = at::zeros({4});
    world.communicator()->reduce_scatter_into(out, at::ones({12}), Reduce::kSum, kForward);
  };
  const auto dtype = [](World& world) {
    at::Tensor ones = at::ones({4}, world.rank() == 1 ? at::kInt : at::kFloat);
    world.communicator()->all_reduce(ones, Reduce::kSum, kForward);
  };
  for (const char* backend : {"threads", "gloo"})
    for (const std::function<void(World&)>& body :
         std::vector<std::function<void(World&)>>{numel, unit, op, dtype}) {
      INFO(backend);
      const auto thrown = thrown_by_ranks(3, body, over(backend, 400ms));
      for (const auto& error : thrown) {
        contains(error,
                 "ranks 0 and 1 disagree: rank 0 calls all-reduce 0 of 4 Float in forward of "
                 "unit \"layers.2\", rank 1 calls ");
      }
    }
}

TEST_CASE("after reset the world works again and old communicators stay dead") {
  for (const char* backend : {"threads", "gloo"}) {
    INFO(backend);
    const auto thrown = thrown_by_ranks(
        4,
        [](World& world) {
          const auto old = world.communicator();
          const int pair = world.rank() / 2 * 2;
          const auto old_pair = world.group({pair, pair + 1});
          for (std::uint64_t round = 1; round <= 3; ++round) {
            sum_once(world);
            const auto halves = world.group({pair, pair + 1});
            bool failed = false;
            try {
              world.communicator()->barrier(kForward);  // an abort may overtake it
              if (world.rank() == static_cast<int>(round)) {
                world.communicator()->abort("round");
                halves->abort("round");
                throw std::runtime_error("round");
              }
              sum_once(world);
            } catch (const std::exception&) {
              failed = true;
            }
            require(failed, "no failure");
            world.reset();
            require(world.generation() == round, "generation");
          }
          sum_once(world);
          at::Tensor ones = at::ones({1});
          world.group({pair, pair + 1})->all_reduce(ones, Reduce::kSum, kForward);
          require(ones.item<float>() == 2, "pair");
          world.ranks().barrier();
          for (const auto& dead : {old, old_pair}) {
            bool refused = false;
            try {
              dead->barrier(kForward);
            } catch (const Error&) {
              refused = true;
            }
            require(refused, "an old communicator works");
          }
        },
        over(backend));
    for (const auto& error : thrown) CHECK(error == "");
  }
}

TEST_CASE("a communicator is rebuilt among its members alone") {
  for (const char* backend : {"threads", "gloo"}) {
    const auto thrown = thrown_by_ranks(
        3,
        [](World& world) {
          if (world.rank() == 2) return;
          auto pair = world.group({0, 1});
          if (world.rank() == 0) pair->abort("enough");
          try {
            pair->barrier(kForward);
          } catch (const Error&) {
          }
          const auto fresh = pair->rebuild(7);
          at::Tensor ones = at::ones({3});
          fresh->all_reduce(ones, Reduce::kSum, kForward);
          require(ones[0].item<float>() == 2 && fresh->name() == pair->name(), "rebuilt");
        },
        over(backend));
    for (const auto& error : thrown) CHECK(error == "");
  }
}

TEST_CASE("save and load agree on failures through the world's ranks") {
  for (const char* backend : {"threads", "gloo"}) {
    const auto thrown = thrown_by_ranks(
        3,
        [](World& world) {
          world.ranks().together([] {});
          world.ranks().together([&] {
            if (world.rank() == 1) in_file("shard.pt", [] { fail(Code::kIo, "disk full"); });
          });
        },
        over(backend));
    for (const auto& error : thrown) CHECK(error == "i/o error: disk full [shard.pt, rank 1]");
  }
}

}  // namespace comm_failure_test

// What counts as a step of allocations, and how kinds of steps that come in turn are found.
#include "fsdp_core/params/step_trace.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_step_trace_test {

using namespace tessera::fsdp;

namespace {

struct Held {
  std::uint64_t step;
  std::size_t index;
};

Held take(StepTrace& trace, std::size_t bytes) { return {trace.number(), trace.allocated(bytes)}; }
void give(StepTrace& trace, const Held& held) { trace.freed(held.step, held.index); }

/// A step of one kind: as many buffers as its number, one after the other.
void step(StepTrace& trace, std::size_t kind) {
  for (std::size_t i = 0; i < kind; ++i) give(trace, take(trace, 100 * kind));
  REQUIRE(trace.ends());
  trace.close(100 * kind);
}

std::size_t period_of(StepTrace& trace, const std::vector<std::size_t>& kinds) {
  for (const std::size_t kind : kinds) step(trace, kind);
  return trace.period();
}

}  // namespace

TEST_CASE("a step ends where nothing of it is held any more", "[memory]") {
  StepTrace trace;
  const Held gradients = take(trace, 1000);
  for (int backward = 0; backward < 3; ++backward) {
    give(trace, take(trace, 10));
    CHECK(!trace.ends());
  }
  give(trace, gradients);
  CHECK(trace.ends());
  trace.close(1010);
  CHECK((trace.lifetimes(0) ==
         std::vector<Lifetime>{{1000, 0, 7}, {10, 1, 2}, {10, 3, 4}, {10, 5, 6}}));
  // What outlives its step does not count in a later one.
  const Held kept = take(trace, 5);
  trace.close(5);
  give(trace, take(trace, 10));
  give(trace, kept);
  CHECK(trace.ends());
  trace.close(15);
  CHECK((trace.lifetimes(0) == std::vector<Lifetime>{{10, 0, 1}}));
  CHECK((trace.lifetimes(1) == std::vector<Lifetime>{{5, 0, Lifetime::kOpen}}));
}

TEST_CASE("who keeps something for ever has steps of one backward in the end", "[memory]") {
  StepTrace trace;
  for (int backward = 0; backward < 200; ++backward) {
    take(trace, 8);
    give(trace, take(trace, 10));
    const bool ends = trace.ends();
    CHECK(ends == (backward + 1 >= static_cast<int>(StepTrace::kMostBackwards)));
    if (ends) trace.close(18);
  }
  CHECK(trace.period() == 1);
  // After a quiet moment backwards add up again.
  give(trace, take(trace, 10));
  CHECK(trace.ends());
  trace.close(10);
  take(trace, 8);
  CHECK(!trace.ends());
}

TEST_CASE("kinds of steps that come in turn are found when they have come twice", "[memory]") {
  StepTrace trace;
  CHECK(trace.period() == 0);
  CHECK(period_of(trace, {3}) == 0);
  CHECK(period_of(trace, {3}) == 1);
  CHECK(period_of(trace, {1}) == 0);
  CHECK(period_of(trace, {3, 1}) == 2);
  CHECK(period_of(trace, {3, 1, 3}) == 2);
  CHECK(trace.most(1) == 300);
  CHECK(period_of(trace, {2, 2, 2, 4, 2, 2, 2}) == 1);
  CHECK(period_of(trace, {4}) == 4);
  CHECK(trace.most(4) == 400);
  CHECK(period_of(trace, {1, 2, 3, 4, 5, 1, 2, 3, 4, 5}) == 0);
  // Equal but for one moment is another kind.
  StepTrace other;
  step(other, 2);
  const Held a = take(other, 200), b = take(other, 200);
  give(other, a);
  give(other, b);
  other.close(200);
  CHECK(other.period() == 0);
}

TEST_CASE("a step of too many allocations is none that could come again", "[memory]") {
  StepTrace trace;
  for (int twice = 0; twice < 2; ++twice) {
    const Held first = take(trace, 8);
    for (std::size_t i = 0; i < kMostLifetimes + 10; ++i) give(trace, take(trace, 8));
    CHECK(trace.ends());
    give(trace, first);
    trace.close(16);
    CHECK(trace.lifetimes(0).empty());
  }
  CHECK(trace.period() == 0);
}

}  // namespace runtime_step_trace_test

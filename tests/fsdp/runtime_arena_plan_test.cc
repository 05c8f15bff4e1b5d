// Where the allocations of a step lie in one piece of memory: never two at one place at one time,
// and never more than was alive together.
#include <fmt/format.h>

#include <algorithm>

#include "fsdp_core/params/arena_plan.h"
#include "fsdp_core/params/recycler.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_arena_plan_test {

using namespace tessera::fsdp;

namespace {

struct Draw {
  std::uint64_t seed;
  std::uint64_t operator()(std::uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % below;
  }
};

/// Forward and backward over units of these sizes, as the runtime allocates: parameters, gradients,
/// the next unit's parameters ahead; `pieces` buffers a unit beside the collective's own form of it
/// where there are several.
std::vector<Lifetime> step_of(const std::vector<std::size_t>& units, std::size_t pieces) {
  std::vector<Lifetime> step;
  std::uint32_t now = 0;
  using Buffers = std::vector<std::size_t>;
  const auto allocate = [&](std::size_t bytes) {
    step.push_back({bytes, now++});
    return step.size() - 1;
  };
  const auto drop = [&](const Buffers& all) {
    for (const std::size_t each : all) step[each].end = now++;
  };
  const auto take = [&](std::size_t unit) {
    Buffers out;
    for (std::size_t i = 0; i < pieces; ++i) out.push_back(allocate(units[unit] / pieces));
    return out;
  };
  const auto gather = [&](std::size_t unit) {
    if (pieces == 1) return take(unit);
    const Buffers whole = {allocate(units[unit])};
    const Buffers out = take(unit);
    drop(whole);
    return out;
  };
  for (std::size_t unit = 0; unit < units.size(); ++unit) drop(gather(unit));
  Buffers ahead = gather(units.size() - 1);
  for (std::size_t unit = units.size(); unit-- > 0;) {
    const Buffers params = ahead, grads = take(unit);
    if (unit > 0) ahead = gather(unit - 1);
    drop(params);
    if (pieces > 1) {
      const Buffers whole = {allocate(units[unit])};
      drop(grads);
      drop(whole);
    } else {
      drop(grads);
    }
  }
  return step;
}

std::size_t most_alive(const std::vector<Lifetime>& step) {
  std::size_t most = 0;
  for (const Lifetime& at : step) {
    std::size_t alive = 0;
    for (const Lifetime& each : step)
      if (each.begin <= at.begin && at.begin < each.end) alive += (each.bytes + 63) / 64 * 64;
    most = std::max(most, alive);
  }
  return most;
}

void check_sound(const std::vector<Lifetime>& step, const ArenaPlan& plan) {
  REQUIRE(plan.offsets.size() == step.size());
  for (std::size_t a = 0; a < step.size(); ++a) {
    if (step[a].end == Lifetime::kOpen || step[a].bytes == 0) {
      CHECK(plan.offsets[a] == ArenaPlan::kNowhere);
      continue;
    }
    CHECK(plan.offsets[a] % 64 == 0);
    CHECK(plan.offsets[a] + step[a].bytes <= plan.bytes);
    for (std::size_t b = 0; b < a; ++b) {
      if (plan.offsets[b] == ArenaPlan::kNowhere || step[a].begin >= step[b].end ||
          step[b].begin >= step[a].end)
        continue;
      CHECK((plan.offsets[a] >= plan.offsets[b] + step[b].bytes ||
             plan.offsets[b] >= plan.offsets[a] + step[a].bytes));
    }
  }
}

}  // namespace

TEST_CASE("steps of units of any sizes get a place for everything in what is alive together",
          "[memory]") {
  Draw draw{GENERATE(range<std::uint64_t>(1, 25))};
  const std::size_t pieces = GENERATE(1, 4);
  CAPTURE(draw.seed, pieces);
  std::vector<std::size_t> units(2 + draw(14));
  for (std::size_t& unit : units) unit = 4 * (64 + draw(20000));
  const std::vector<Lifetime> step = step_of(units, pieces);
  const auto plan = plan_arena(step);
  REQUIRE(plan);
  CHECK(plan->bytes == most_alive(step));
  check_sound(step, *plan);
}

TEST_CASE("any lifetimes get sound places or none", "[memory]") {
  int planned = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Draw draw{seed};
    std::vector<Lifetime> step(1 + draw(60));
    for (Lifetime& each : step) {
      each.bytes = draw(5) == 0 ? draw(2) : draw(5000);
      each.begin = static_cast<std::uint32_t>(draw(200));
      each.end =
          draw(10) == 0 ? Lifetime::kOpen : each.begin + 1 + static_cast<std::uint32_t>(draw(40));
    }
    const auto plan = plan_arena(step);
    if (!plan) continue;
    ++planned;
    check_sound(step, *plan);
  }
  CHECK(planned > 10);
  CHECK(!plan_arena({}));
  CHECK(!plan_arena({{100, 0, Lifetime::kOpen}}));
  CHECK(!plan_arena(std::vector<Lifetime>(kMostLifetimes + 1, {8, 0, 1})));
}

TEST_CASE("a step that leaves its plan gets other memory and the next finds the plan again",
          "[memory]") {
  end_recycler_step();
  release_cached_memory();
  c10::Allocator* memory = buffer_allocator(c10::kCPU);
  const auto before = recycler_counts();
  const auto asked = [&] { return recycler_counts().allocations - before.allocations; };
  // Blocks of different sizes that are never alive together: alone each would be asked for.
  const auto step = [&](bool other) {
    for (const std::size_t bytes : {4000, 9000, 1000, 7000}) {
      const c10::DataPtr a = memory->allocate(bytes);
      const c10::DataPtr b = memory->allocate(other ? bytes * 3 : bytes / 2);
      std::memset(a.get(), 1, bytes);
      std::memset(b.get(), 2, other ? bytes * 3 : bytes / 2);
      CHECK(static_cast<const char*>(a.get())[bytes - 1] == 1);
    }
    end_recycler_step();
  };
  step(false);
  step(false);
  CHECK(recycler_counts().planned);
  const std::size_t warm = asked();
  for (int i = 0; i < 3; ++i) step(false);
  CHECK(asked() == warm);
  CHECK(recycler_counts().free == (9000 + 63) / 64 * 64 + (4500 + 63) / 64 * 64);
  step(true);
  CHECK(asked() > warm);
  step(false);
  step(false);
  const std::size_t again = asked();
  step(false);
  CHECK(asked() == again);
  release_cached_memory();
  CHECK(recycler_counts().free == 0);
}

}  // namespace runtime_arena_plan_test

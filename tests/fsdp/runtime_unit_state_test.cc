// The table of a unit's states against another one, spelled out here: from every state that can be
// reached, every event does what is written down, or is refused and changes nothing.
#include <fmt/format.h>

#include <set>
#include <tuple>

#include "fsdp_core/runtime/unit_state.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_unit_state_test {

using namespace tessera::fsdp;

namespace {

using P = ParamsState;
using H = Phase;
using G = GradsState;
using E = UnitEvent;
using Triple = std::tuple<P, H, G>;

constexpr int kEvents = 14;

Triple triple_of(const UnitState& state) { return {state.params(), state.phase(), state.grads()}; }

/// What `event` makes of it; nothing: refused.
std::optional<Triple> expected(const Triple& from, E event, bool trains) {
  auto [params, phase, grads] = from;
  switch (event) {
    case E::kGather:
      if (params != P::kSharded) return {};
      return Triple{P::kUnsharding, phase, grads};
    case E::kArrive:
      if (params != P::kUnsharding) return {};
      return Triple{P::kUnsharded, phase, grads};
    case E::kReshard:
      if (params == P::kSummoned) return {};
      return Triple{P::kSharded, phase, grads};
    case E::kForward:
      if (params != P::kUnsharded || (phase != H::kIdle && phase != H::kForward)) return {};
      return Triple{params, H::kForward, grads};
    case E::kForwardEnd:
      if (phase != H::kForward) return {};
      return Triple{params, H::kIdle, grads};
    case E::kPreBackward:
      // Sharded: a unit whose backward needs no values (set_unshard_in_backward).
      if ((params != P::kUnsharded && params != P::kSharded) || phase == H::kForward) return {};
      if (grads == G::kReducing) return {};
      return Triple{params, H::kPreBackward, trains ? G::kAccumulating : grads};
    case E::kComplete:
      if (phase != H::kPreBackward) return {};
      return Triple{params, H::kBackward, grads};
    case E::kReduce:
      if (grads != G::kAccumulating) return {};
      return Triple{params, phase, G::kReducing};
    case E::kReduced:
      if (grads != G::kReducing) return {};
      return Triple{params, phase, G::kShardReady};
    case E::kBackwardEnd:
      if (phase == H::kForward || grads == G::kReducing) return {};
      return Triple{params, H::kIdle, grads == G::kShardReady ? G::kNone : grads};
    case E::kSummon:
      if (params != P::kSharded || phase != H::kIdle) return {};
      return Triple{P::kSummoned, phase, grads};
    case E::kSummonEnd:
      if (params != P::kSummoned || phase != H::kIdle) return {};
      return Triple{P::kSharded, phase, grads};
    case E::kAbandon:
      return Triple{P::kSharded, H::kIdle, grads == G::kReducing ? G::kNone : grads};
    case E::kReset:
      return Triple{P::kSharded, H::kIdle, G::kNone};
  }
  return {};
}

}  // namespace

TEST_CASE("every event in every state that can be reached does what the table says",
          "[runtime][state]") {
  const bool trains = GENERATE(true, false);
  std::set<Triple> seen;
  std::vector<UnitState> open = {UnitState()};
  int legal = 0, refused = 0;
  while (!open.empty()) {
    const UnitState state = open.back();
    open.pop_back();
    if (!seen.insert(triple_of(state)).second) continue;
    for (int e = 0; e < kEvents; ++e) {
      const auto event = static_cast<E>(e);
      CAPTURE(state.to_string(), to_string(event), trains);
      const auto want = expected(triple_of(state), event, trains);
      UnitState next = state;
      CHECK(state.allows(event) == want.has_value());
      if (want) {
        next.apply(event, "u", trains);
        CHECK(triple_of(next) == *want);
        open.push_back(next);
        ++legal;
      } else {
        CHECK_THROWS_WITH(next.apply(event, "u", trains),
                          Catch::Contains("unit \"u\"") &&
                              Catch::Contains(std::string(to_string(event))) &&
                              Catch::Contains(state.to_string()));
        CHECK(triple_of(next) == triple_of(state));
        ++refused;
      }
    }
  }
  CHECK(seen.size() >= (trains ? 30u : 10u));
  CHECK(legal > (trains ? 100 : 60));
  CHECK(refused > 50);
}

}  // namespace runtime_unit_state_test

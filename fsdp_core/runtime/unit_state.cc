#include "fsdp_core/runtime/unit_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <array>

namespace tessera::fsdp {
namespace {

template <class E>
constexpr unsigned bit(E value) {
  return 1u << static_cast<unsigned>(value);
}
constexpr unsigned kAny = 0xff;
constexpr int kKeep = -1;

struct Row {
  UnitEvent event;
  unsigned params, phases, grads;  // where it is legal
  int to_params = kKeep, to_phase = kKeep, to_grads = kKeep;
};
template <class E>
constexpr int to(E value) {
  return static_cast<int>(value);
}

using P = ParamsState;
using H = Phase;
using G = GradsState;
constexpr std::array<Row, 14> kTable = {{
    {UnitEvent::kGather, bit(P::kSharded), kAny, kAny, to(P::kUnsharding), kKeep, kKeep},
    {UnitEvent::kArrive, bit(P::kUnsharding), kAny, kAny, to(P::kUnsharded), kKeep, kKeep},
    {UnitEvent::kReshard, kAny & ~bit(P::kSummoned), kAny, kAny, to(P::kSharded), kKeep, kKeep},
    {UnitEvent::kForward, bit(P::kUnsharded), bit(H::kIdle) | bit(H::kForward), kAny, kKeep,
     to(H::kForward), kKeep},
    {UnitEvent::kForwardEnd, kAny, bit(H::kForward), kAny, kKeep, to(H::kIdle), kKeep},
    {UnitEvent::kPreBackward, bit(P::kUnsharded) | bit(P::kSharded), kAny & ~bit(H::kForward),
     kAny & ~bit(G::kReducing), kKeep, to(H::kPreBackward), to(G::kAccumulating)},
    {UnitEvent::kComplete, kAny, bit(H::kPreBackward), kAny, kKeep, to(H::kBackward), kKeep},
    {UnitEvent::kReduce, kAny, kAny, bit(G::kAccumulating), kKeep, kKeep, to(G::kReducing)},
    {UnitEvent::kReduced, kAny, kAny, bit(G::kReducing), kKeep, kKeep, to(G::kShardReady)},
    {UnitEvent::kBackwardEnd, kAny, kAny & ~bit(H::kForward), kAny & ~bit(G::kReducing), kKeep,
     to(H::kIdle), kKeep},
    {UnitEvent::kSummon, bit(P::kSharded), bit(H::kIdle), kAny, to(P::kSummoned), kKeep, kKeep},
    {UnitEvent::kSummonEnd, bit(P::kSummoned), bit(H::kIdle), kAny, to(P::kSharded), kKeep, kKeep},
    {UnitEvent::kAbandon, kAny, kAny, kAny, to(P::kSharded), to(H::kIdle), kKeep},
    {UnitEvent::kReset, kAny, kAny, kAny, to(P::kSharded), to(H::kIdle), to(G::kNone)},
}};

const Row& row_of(UnitEvent event) { return kTable[static_cast<std::size_t>(event)]; }

}  // namespace

std::string_view to_string(ParamsState state) {
  constexpr std::array<std::string_view, 4> kNames = {"Sharded", "Unsharding", "Unsharded",
                                                      "Summoned"};
  return kNames[static_cast<std::size_t>(state)];
}
std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, 4> kNames = {"Idle", "Forward", "PreBackward", "Backward"};
  return kNames[static_cast<std::size_t>(phase)];
}
std::string_view to_string(GradsState state) {
  constexpr std::array<std::string_view, 4> kNames = {"None", "Accumulating", "Reducing",
                                                      "ShardReady"};
  return kNames[static_cast<std::size_t>(state)];
}
std::string_view to_string(UnitEvent event) {
  constexpr std::array<std::string_view, 14> kNames = {
      "gather", "arrive",  "reshard",      "forward", "forward end", "pre-backward", "complete",
      "reduce", "reduced", "backward end", "summon",  "summon end",  "abandon",      "reset"};
  return kNames[static_cast<std::size_t>(event)];
}

bool UnitState::allows(UnitEvent event) const {
  const Row& row = row_of(event);
  return (row.params & bit(params_)) && (row.phases & bit(phase_)) && (row.grads & bit(grads_));
}

void UnitState::apply(UnitEvent event, std::string_view unit, bool trains) {
  if (!allows(event))
    fail(Code::kInternal, fmt::format("unit \"{}\": {} is not legal in state {}", unit,
                                      tessera::fsdp::to_string(event), to_string()));
  const Row& row = row_of(event);
  if (row.to_params != kKeep) params_ = static_cast<ParamsState>(row.to_params);
  if (row.to_phase != kKeep) phase_ = static_cast<Phase>(row.to_phase);
  if (row.to_grads != kKeep && (trains || event == UnitEvent::kReset))
    grads_ = static_cast<GradsState>(row.to_grads);
  if (event == UnitEvent::kAbandon && grads_ == GradsState::kReducing) grads_ = GradsState::kNone;
  if (event == UnitEvent::kBackwardEnd && grads_ == GradsState::kShardReady)
    grads_ = GradsState::kNone;
}

std::string UnitState::to_string() const {
  return fmt::format("({}, {}, {})", tessera::fsdp::to_string(params_),
                     tessera::fsdp::to_string(phase_), tessera::fsdp::to_string(grads_));
}

}  // namespace tessera::fsdp

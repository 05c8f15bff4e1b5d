#pragma once
// The state of a unit: three small enums and one table of what may happen when. Every change goes
// through UnitState::apply, which refuses (kInternal) what the table does not list.
//
// clang-format off
//   event         params                    phase                        grads
//   gather        Sharded -> Unsharding     any                          any
//   arrive        Unsharding -> Unsharded   any                          any
//   reshard       not Summoned -> Sharded   any                          any
//   forward       Unsharded                 Idle|Forward -> Forward      any
//   forward end   any                       Forward -> Idle              any
//   pre-backward  Unsharded                 not Forward -> PreBackward   not Reducing -> Accumulating (if it trains)
//   complete      any                       PreBackward -> Backward      keeps
//   reduce        any                       any                          Accumulating -> Reducing
//   reduced       any                       any                          Reducing -> ShardReady
//   backward end  any                       not Forward -> Idle          not Reducing; ShardReady -> None
//   summon        Sharded -> Summoned       Idle                         any
//   summon end    Summoned -> Sharded       Idle                         any
//   abandon       any -> Sharded            any -> Idle                  keeps (Reducing -> None)
//   reset         any -> Sharded            any -> Idle                  any -> None
// clang-format on
//
// With synchronisation off, Accumulating lasts over several backwards. A forward inside a backward
// (recomputation) changes nothing but params.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::fsdp {

enum class ParamsState : std::uint8_t { kSharded, kUnsharding, kUnsharded, kSummoned };
enum class Phase : std::uint8_t { kIdle, kForward, kPreBackward, kBackward };
enum class GradsState : std::uint8_t { kNone, kAccumulating, kReducing, kShardReady };

enum class UnitEvent : std::uint8_t {
  kGather,
  kArrive,
  kReshard,
  kForward,
  kForwardEnd,
  kPreBackward,
  kComplete,
  kReduce,
  kReduced,
  kBackwardEnd,
  kSummon,
  kSummonEnd,
  kAbandon,  // a forward failed
  kReset,    // a backward failed, or fsdp::reset
};

std::string_view to_string(ParamsState state);
std::string_view to_string(Phase phase);
std::string_view to_string(GradsState state);
std::string_view to_string(UnitEvent event);

class UnitState {
 public:
  /// `trains`: the unit has a parameter that requires grad. `unit`: for the message.
  void apply(UnitEvent event, std::string_view unit, bool trains = true);
  /// Whether apply would refuse.
  bool allows(UnitEvent event) const;

  ParamsState params() const { return params_; }
  Phase phase() const { return phase_; }
  GradsState grads() const { return grads_; }
  std::string to_string() const;

 private:
  ParamsState params_ = ParamsState::kSharded;
  Phase phase_ = Phase::kIdle;
  GradsState grads_ = GradsState::kNone;
};

}  // namespace tessera::fsdp

#pragma once
// OrderCheck: whether all ranks wrapped the same model the same way and run its units in the same
// order. Communicators compare single calls (op, dtype, size, unit) where they can; this finds what
// they cannot, and finds it before data moves:
//
//   digest    at the first forward: units, parameters and options of all ranks, one exchange
//   headers   before each gather and reduction: what each rank is about to do (the first step; with
//             Check::kFull every step)
//   hash      at the end of a backward: what each rank has done (later steps of Check::kCheap). On
//             devices the host does not wait for the result: the next forward of the outermost unit
//             that finds it there raises the mismatch; a state dict, and the next backward, wait for it.
// Groups are compared one by one, each with where the groups around it stood: two ranks that call
// the same collectives of two groups in another order would block each other on devices.
// A rank's own order of forwards is forward_order.h's.
//
// Forwards without gradients are exempt. One per root; its traffic is CommPhase::kCheck.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/options.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp::detail {

class Unit;

class OrderCheck {
 public:
  using Units = std::vector<std::shared_ptr<Unit>>;

  void use(const Unit& top, std::shared_ptr<Stream> compute);

  bool on() const { return level_ != Check::kOff; }
  /// As the outermost forward begins.
  bool wrapping_is_due() const { return on() && !digest_complete_; }
  void compare_wrapping(Unit& top, const Units& units);
  /// Before a unit's gather (a gather in forward, or in backward).
  void before_gather(Unit& unit, CommPhase phase);
  void before_reduce(Unit& unit);
  void end_backward();
  /// Throws for a step on devices whose hashes differed. `wait`: also where the result is not there
  /// yet.
  void raise_mismatch(bool wait);
  /// After a failure: communicators may be other ones.
  void reset();

 private:
  struct Step {
    const Unit* unit;
    CommOp op;
    bool backward;
    std::uint64_t beside;  // issued before it in groups of (at least) the same ranks
  };
  /// What went through one communicator since it was last compared.
  struct Channel {
    Communicator* comm;
    std::uint64_t hash = 0;
    std::uint64_t issued = 0;  // since reset()
    bool reduced = false;
    std::vector<Step> steps;
  };
  bool full() const { return level_ == Check::kFull || first_step_; }
  Channel& channel(Communicator& comm);
  void before(Unit& unit, Communicator& comm, CommOp op, CommPhase phase);
  void compare_digest(Communicator& comm, const Units& units);
  void compare_hash(Channel& channel);
  /// The largest and, negated, the smallest hash of all ranks, on their way to the host.
  struct Pending {
    std::string group;
    at::Tensor hashes;  // pinned
    Event done;
  };
  void send_hash(Channel& channel);

  std::shared_ptr<Stream> compute_;
  Check level_ = Check::kOff;
  bool first_step_ = true;
  std::vector<const Communicator*> digested_;
  bool digest_complete_ = false;
  std::vector<Channel> channels_;
  at::Tensor flag_;
  c10::Device device_ = c10::kCPU;
  std::vector<Pending> pending_;
};

}  // namespace tessera::fsdp::detail

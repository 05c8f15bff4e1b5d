#pragma once
// Root: what the units of one tree share: streams, the order in which units ran, prefetching, and
// the end of backward. Made at the first forward of the unit that runs outermost; a larger tree
// takes its units over.
//
// Streams and who waits for whom (host streams make all of it trivial):
// clang-format off
//   gather      <- compute   at the root's forward: shards are what the optimizer left. Or <- an event
//                            that the program recorded after its optimizer
//   compute     <- gather    before a unit's parameters are used (the unit's own event)
//   gather      <- compute   at reshard, before the memory is given back to the gather stream's pool
//   reduce      <- compute   before a unit's gradients are reduced
//   all-reduce  <- reduce    with replicas
//   reduce      <- all-reduce   before a third sum over the shards: one is in all-reduce, one waits
//   compute     <- reduce, all-reduce   in the final callback, before the optimizer may run
// clang-format on
#include <tessera/base/error.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_core/runtime/forward_order.h"
#include "fsdp_core/runtime/gradient_reducer.h"
#include "fsdp_core/runtime/order_check.h"
#include "fsdp_core/runtime/unit.h"
#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp::detail {

class Root : public std::enable_shared_from_this<Root> {
 public:
  /// The root of the tree that `unit` belongs to; made, with `unit` as its top, at the first
  /// forward.
  static Root& of(Unit& unit);
  /// Streams for the roots that this thread makes from now on (tests, simulate()); null: by device.
  static void use_streams(std::shared_ptr<StreamFactory> factory);

  /// `device`: that of its units.
  Root(Unit& top, c10::Device device);
  ~Root() { free_aside(/*wait=*/true); }

  c10::Device device() const { return device_; }
  Unit* top() const;
  bool is_top(const Unit& unit) const { return top() == &unit; }
  /// In the order of the module tree, top last.
  std::vector<std::shared_ptr<Unit>> units() const;
  template <class F>
  void each_unit(F&& function) const {
    for (const std::weak_ptr<Unit>& unit : units_)
      if (const std::shared_ptr<Unit> alive = unit.lock()) function(*alive);
  }

  Stream& compute() { return *compute_; }
  /// Where a part of `unit` over these ranks is gathered.
  Stream& gather(const Unit& unit, const UnitGroups& comms);
  /// Uses the streams of `other` from now on. Nothing is gathered, or in reduction, when it
  /// returns.
  void share_streams(Root& other);
  /// What the next forward's gathers wait for instead of all of compute.
  void gather_after(Event optimizer) { after_optimizer_ = std::move(optimizer); }
  GradientReducer& reducer() { return reducer_; }
  OrderCheck& order() { return order_; }

  // -- forward --
  void forward_begin(Unit& unit);
  void forward_end();
  void forward_failed(Unit& unit);
  /// Before a unit's forward body.
  void entered(Unit& unit);
  /// After it, where gradients can come.
  void left(Unit& unit, Use& use);
  int depth() const { return depth_; }

  // -- backward --
  /// A unit takes part in a graph task: if that fails from here on, its groups are aborted.
  void enter_backward();
  /// Called while the exception of a backward through this root's outputs is handled: aborts the
  /// groups unless that was done.
  void backward_threw() noexcept;
  bool backward_ran() const { return backward_ran_; }
  bool is_last_backward = true;  // the end of a backward waits for its reductions
  void before_backward(Unit& unit, const Use& use);  // after its gather was issued
  void after_backward(Unit& unit);                   // after its reshard, before its reduction

  // -- memory that compute may still read --
  /// Keeps `memory` until `used` has passed. From any stream.
  void lay_aside(std::vector<at::Tensor> memory, const Event& used);
  /// Frees what has been passed; `wait`: all of it.
  void free_aside(bool wait = false) noexcept;

  // -- failure --
  /// A step failed on this rank: aborts the groups, by which peers learn it; nothing runs until
  /// reset().
  void fail_step(const Status& status, bool drop_gradients) noexcept;
  void check_alive(const Unit& unit) const;
  void reset();

 private:
  struct Token;
  struct FinishBackward;
  void finish_backward();
  void lower_gradients();
  void backward_failed() noexcept;
  void prefetch(Unit& unit, CommPhase phase);
  /// Those that ran before `unit`, the nearest first, as many as its options say.
  void prefetch_backward(const Unit& unit);
  void wait_for_gathers_of_offloaded();
  void prefetch_all(const std::vector<std::weak_ptr<Unit>>& units, CommPhase phase);

  std::weak_ptr<Unit> top_;
  c10::Device device_;
  std::vector<std::weak_ptr<Unit>> units_;
  std::shared_ptr<StreamFactory> factory_;
  std::shared_ptr<Stream> compute_;
  using GatherStreams = std::vector<std::pair<const Communicator*, std::shared_ptr<Stream>>>;
  std::shared_ptr<GatherStreams> gather_streams_ = std::make_shared<GatherStreams>();
  std::optional<Event> after_optimizer_;
  GradientReducer reducer_;
  OrderCheck order_;

  int depth_ = 0;
  std::weak_ptr<Token> token_;
  bool backward_ran_ = false;
  std::weak_ptr<Unit> last_in_backward_;  // for the message of a backward that failed
  Status failure_;

  struct Aside {
    std::vector<at::Tensor> memory;
    Event used;
  };
  std::mutex aside_mutex_;
  std::vector<Aside> aside_;

  ForwardOrder forward_order_;
  // This iteration's forwards that await backward.
  std::vector<std::weak_ptr<Unit>> backward_order_;
  std::uint64_t epoch_ = 1;
  std::size_t last_backward_index_ = 0;
};

}  // namespace tessera::fsdp::detail

#pragma once
// GradientReducer: from a unit's unsharded gradients to its shard gradients, in five steps:
//   begin              takes the gradients, once no more than options say are in reduction; divides before the sum are decided here (fp16)
//   sum_over_shards    divide before, reduce-scatter over the shard group, in the reduce dtype
//   sum_over_replicas  all-reduce, with replicas
//   keep_result        divide after (the average), then add to the shard parameters' .grad in the
//                      stored dtype, or hold the sum until replicas are asked for
//   remember           what has to live until the streams have passed
// and finish: the compute stream waits for all of it.
#include <memory>
#include <vector>

#include "fsdp_core/runtime/unit.h"
#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp::detail {

/// pre is the smallest power of two reached by doubling while it divides n / pre > pre; pre x post
/// = n.
struct DivideFactors {
  double pre = 1;
  double post = 1;
};
DivideFactors divide_factors(double n);

class GradientReducer {
 public:
  void use(StreamFactory& factory, std::shared_ptr<Stream> compute, bool replicas);
  /// Uses the streams of `other` from now on. Its own are empty when it returns.
  void share(StreamFactory& factory, const GradientReducer& other);
  /// Takes the unit's gradients. `find_unused` decides which parameters keep an undefined gradient.
  void reduce(Unit& unit);
  /// The compute stream waits for every reduction; nothing is held any more. `host_reads`: so does
  /// the host, which owns gradients of offloaded units.
  void finish(bool host_reads);
  /// After a failure: what a reduction held is given back.
  void abandon() noexcept;

 private:
  struct InFlight {
    at::Tensor input;  // allocated on the compute stream, read by the reduce stream
    Event done;
  };
  /// A sum over the shards that goes on to the replicas, apart from the input it was made of.
  struct Output {
    std::shared_ptr<at::Tensor> shard;
    Event done;
  };
  /// One group's gradients on their way through the steps.
  struct Reduction {
    Unit& unit;
    ParamGroup& group;
    UsedParams used;
    at::Tensor input;                 // unsharded gradients
    std::shared_ptr<at::Tensor> sum;  // handed from step to step
    double n = 1;                     // what the sum is divided by
    DivideFactors factors = {};
    bool averages = false;  // the communicators do
    bool replicated = false;
    bool holds = false;  // the sum over the shards waits for a later reduction
    /// The all-reduce runs beside the next unit's reduce-scatter, which takes the place of `input`:
    /// the sum is in memory of its own.
    bool apart = false;
    Reduce op() const { return averages ? Reduce::kAverage : Reduce::kSum; }
    CommTag tag() const { return {unit.name(), CommPhase::kBackward}; }
  };
  void reduce_group(Unit& unit, ParamGroup& group, const UsedParams& used);
  Reduction begin(Unit& unit, ParamGroup& group, const UsedParams& used);
  void sum_over_shards(const Reduction& one);
  void sum_over_replicas(const Reduction& one);
  void keep_result(const Reduction& one);
  void remember(const Reduction& one);
  /// A communication hook in place of the steps after begin().
  void run_hook(const Reduction& one);
  static bool averages_itself(const Unit& unit, const ParamGroup& group);
  /// Which of its parameters have a gradient, on any rank.
  UsedParams used_anywhere(Unit& unit, const ParamGroup& group);
  /// The unit's own optimizer, after the last of its reductions and on the same stream.
  void step(Unit& unit);
  void release_oldest();
  /// Forgets those that have passed.
  void forget_done();
  /// One output may be in all-reduce and one wait for it: the reduce stream waits for the older.
  void make_room_for_output();
  /// Where the reduction of a group of the unit ends. Where the unit's own optimizer follows it is one
  /// stream for all of them, which frees the gradients after the step.
  Stream& last_stream(const Unit& unit, const ParamGroup& group);

  std::shared_ptr<Stream> compute_, reduce_, all_reduce_;
  std::vector<InFlight> in_flight_;  // oldest first
  std::vector<Output> outputs_;      // oldest first
};

}  // namespace tessera::fsdp::detail

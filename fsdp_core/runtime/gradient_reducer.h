#pragma once
// GradientReducer: from a unit's unsharded gradients to its shard gradients, in five steps:
//   divide before   where the precision needs it (fp16, or one sum asked for)
//   reduce-scatter  over the shard group, in the reduce dtype
//   all-reduce      over the replicas
//   divide after    the average
//   accumulate      into the shard parameters' .grad, in the stored dtype
// and finish: the compute stream waits for all of it.
#include <memory>
#include <vector>

#include "fsdp_core/stream/stream.h"
#include "fsdp_core/unit/unit.h"

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
  /// Takes the unit's gradients. `find_unused` decides which parameters keep an undefined gradient.
  void reduce(Unit& unit);
  /// The compute stream waits for every reduction; nothing is held any more.
  void finish();
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
  void reduce_group(Unit& unit, ParamGroup& group, const UsedParams& used);
  /// Which of its parameters have a gradient, on any rank.
  UsedParams used_anywhere(Unit& unit, const ParamGroup& group);
  /// A communication hook in place of the first four steps.
  void run_hook(Unit& unit, ParamGroup& group, double n, const UsedParams& used);
  /// The unit's own optimizer, after the last of its reductions and on the same stream.
  void step(Unit& unit);
  void release(InFlight& in_flight);
  /// One output may be in all-reduce and one wait for it: the reduce stream waits for the older.
  void make_room_for_output();
  /// Where a unit's reduction ends.
  Stream& last_stream(Unit& unit);

  std::shared_ptr<Stream> compute_, reduce_, all_reduce_;
  InFlight previous_;
  std::vector<Output> outputs_;  // oldest first
};

}  // namespace tessera::fsdp::detail

#pragma once
// ShardedGradScaler: loss scaling for fp16 when every rank sees only its shards of the gradients.
//
//   fsdp::ShardedGradScaler scaler(world.communicator());
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);            // optional: before clipping
//   fsdp::clip_grad_norm_(model, 1.0);
//   scaler.step(optimizer);                // skipped on all ranks where any rank found Inf or NaN
//   scaler.update();
//
// Per step and optimizer one all-reduce (max) of one float over the given group, which every rank
// joins, also a rank without gradients. The group must hold every rank that has a shard; replicas
// may be left out, as their gradients are equal. All ranks of it hold the same scale for ever. One
// thread.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace torch::optim {
class Optimizer;
}

namespace tessera::fsdp {

class Communicator;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps without Inf or NaN before the scale grows
  bool enabled = true;                  // false: all calls are the plain ones
};

/// What goes into a checkpoint; the same on all ranks.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  std::int64_t growth_interval = 0;
  std::int64_t growth_tracker = 0;
};

class ShardedGradScaler {
 public:
  /// Throws kInvalidArgument: growth_factor <= 1, backoff_factor outside (0, 1), interval or scale
  /// not positive.
  explicit ShardedGradScaler(std::shared_ptr<Communicator> group, GradScalerOptions options = {});

  /// loss x scale, in the loss's dtype.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients of `optimizer` by the scale in place, fp16 gradients too. Throws
  /// kInvalidArgument when called twice in one step. Collective over the group.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Unscales unless done, and steps unless Inf or NaN was found. Returns the step's loss,
  /// undefined when skipped.
  at::Tensor step(torch::optim::Optimizer& optimizer,
                  std::function<at::Tensor()> closure = nullptr);
  /// Shrinks the scale if a step was skipped, grows it after growth_interval steps without one.
  void update();
  /// Sets the scale; the growth count stays.
  void update(double new_scale);

  double get_scale() const { return options_.enabled ? scale_ : 1.0; }
  bool is_enabled() const { return options_.enabled; }
  /// Whether any rank found Inf or NaN in `optimizer`'s gradients since the last update().
  bool found_inf(const torch::optim::Optimizer& optimizer) const;

  GradScalerState state() const;
  void load_state(const GradScalerState& state);

 private:
  struct PerOptimizer {
    bool stepped = false;
    bool found_inf = false;
  };
  void check_options() const;
  bool unscale_local(torch::optim::Optimizer& optimizer) const;

  std::shared_ptr<Communicator> group_;
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::unordered_map<const torch::optim::Optimizer*, PerOptimizer>
      seen_;  // unscaled since the last update
};

}  // namespace tessera::fsdp

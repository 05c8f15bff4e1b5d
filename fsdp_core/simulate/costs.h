#pragma once
// What a simulated job's operations take, and what no schedule can beat.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/simulate.h>

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "fsdp_core/simulate/timeline.h"

namespace tessera::fsdp {

class Costs {
 public:
  explicit Costs(const SimulatedJob& job);

  /// Unit i of the job; units.size(): the root.
  const SimulatedUnit& unit(std::size_t i) const { return units_[i]; }
  /// By the name that the runtime gives it in the model of stand-ins.
  std::optional<std::size_t> find(std::string_view name) const;

  double compute(std::size_t unit, bool backward) const;
  TimedOperation collective(std::size_t unit, CommOp op, const Communicator& group) const;
  double state_bytes(std::size_t unit) const;
  /// SimulatedStep::bound_seconds: gathers in the order of units, each as early as the units gathered
  /// ahead and its link let it, reductions at no cost but the last; or all work of one link.
  double bound() const;

 private:
  struct OfUnit {
    TimedOperation gather, reduce, all_reduce;
    double forward = 0, backward = 0;
  };
  TimedOperation ring(double bytes, int ranks, int first, int stride, int times,
                      std::optional<double> measured) const;
  OfUnit all_of(std::size_t unit) const;
  double chain(const std::vector<OfUnit>& all) const;

  const SimulatedJob& job_;
  std::vector<SimulatedUnit> units_;  // the root last
};

}  // namespace tessera::fsdp

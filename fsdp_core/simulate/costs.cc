#include "fsdp_core/simulate/costs.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "fsdp_core/runtime/strategy.h"

namespace tessera::fsdp {
namespace {

double alone(const TimedOperation& operation) { return operation.fixed + operation.work; }

}  // namespace

Costs::Costs(const SimulatedJob& job) : job_(job), units_(job.units) {
  units_.push_back(job.root);
  if (units_.back().name.empty()) units_.back().name = "root";
}

std::optional<std::size_t> Costs::find(std::string_view name) const {
  if (name.empty()) return units_.size() - 1;
  std::size_t i = 0;
  if (!name.starts_with("u")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), i);
  if (error != std::errc{} || i >= units_.size()) return std::nullopt;
  return i;
}

double Costs::compute(std::size_t unit, bool backward) const {
  const SimulatedUnit& of = units_[unit];
  return (backward ? of.backward_flops.value_or(2 * of.flops) : of.flops) / job_.flops_per_second;
}

/// `times` rounds of a ring over `ranks` ranks, `stride` apart from `first` on.
TimedOperation Costs::ring(double bytes, int ranks, int first, int stride, int times,
                           std::optional<double> measured) const {
  const int last = first + (ranks - 1) * stride;
  const bool intra = first / job_.ranks_per_node == last / job_.ranks_per_node;
  TimedOperation out;
  out.link = intra ? Timeline::kIntra : Timeline::kInter;
  out.collective = true;
  if (measured) {
    out.work = *measured;
    return out;
  }
  const SimulatedLink& link = intra ? job_.intra : job_.inter;
  out.fixed = times * (ranks - 1) * link.latency;
  out.work = times * bytes * (ranks - 1) / ranks / link.bandwidth;
  return out;
}

TimedOperation Costs::collective(std::size_t unit, CommOp op, const Communicator& group) const {
  const SimulatedUnit& of = units_[unit];
  const int first = group.global_ranks().front(), ranks = group.size();
  const int stride = ranks > 1 ? group.global_ranks()[1] - first : 1;
  const double reduced = of.bytes / job_.parameter_bytes * job_.reduce_bytes;
  if (op == CommOp::kAllGather) return ring(of.bytes, ranks, first, stride, 1, of.gather_seconds);
  if (op == CommOp::kReduceScatter)
    return ring(reduced, ranks, first, stride, 1, of.reduce_seconds);
  // Over the replicas this rank's shard alone; without shards all of it.
  const Strategy& strategy = strategy_of(job_.options.strategy);
  const int shards = strategy.shards_params ? job_.ranks / job_.replicas : 1;
  return ring(reduced / shards, ranks, first, stride, 2, of.all_reduce_seconds);
}

double Costs::state_bytes(std::size_t unit) const {
  const SimulatedUnit& of = units_[unit];
  const Strategy& strategy = strategy_of(job_.options.strategy);
  const int shards = !strategy.shards_params ? 1
                     : of.ranks > 0          ? of.ranks
                                             : job_.ranks / (strategy.hybrid() ? job_.replicas : 1);
  return of.bytes / job_.parameter_bytes * job_.state_bytes / shards;
}

Costs::OfUnit Costs::all_of(std::size_t unit) const {
  const SimulatedUnit& of = units_[unit];
  const Strategy& strategy = strategy_of(job_.options.strategy);
  const int replicas = strategy.hybrid() ? job_.replicas : 1;
  const int shards = of.ranks > 0 ? of.ranks : job_.ranks / replicas;
  const double reduced = of.bytes / job_.parameter_bytes * job_.reduce_bytes;
  OfUnit out;
  out.forward = compute(unit, false);
  out.backward = compute(unit, true);
  if (strategy.shards_params && shards > 1 && of.bytes > 0) {
    out.gather = ring(of.bytes, shards, 0, 1, 1, of.gather_seconds);
    out.reduce = ring(reduced, shards, 0, 1, 1, of.reduce_seconds);
  }
  if (!strategy.shards_params)
    out.all_reduce = ring(reduced, job_.ranks, 0, 1, 2, of.all_reduce_seconds);
  else if (replicas > 1 && of.ranks == 0 && of.bytes > 0)
    out.all_reduce = ring(reduced / shards, replicas, 0, shards, 2, of.all_reduce_seconds);
  return out;
}

/// Forward, backward and what has to follow the last backward.
double Costs::chain(const std::vector<OfUnit>& all) const {
  const std::size_t n = all.size() - 1;  // the root
  const std::size_t ahead = static_cast<std::size_t>(std::max(0, job_.options.max_prefetch_count));
  std::array<double, 2> link{};
  const auto gathered = [&](const OfUnit& unit, double from) {
    double& free = link[static_cast<std::size_t>(unit.gather.link)];
    free = std::max(free, from) + alone(unit.gather);
    return free;
  };
  const double root_there = gathered(all[n], 0);
  std::vector<double> done(n);
  double time = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double room = i > ahead ? done[i - 1 - ahead] : 0;
    time = std::max(time, gathered(all[i], room)) + all[i].forward;
    done[i] = time;
  }
  const double forward_end = time;
  time = std::max(time, root_there) + all[n].forward + all[n].backward;
  const bool again = strategy_of(job_.options.strategy).frees_after_forward;
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t i = n - 1 - k;
    const double room = k > ahead ? done[i + 1 + ahead] : forward_end;
    time = std::max(time, again ? gathered(all[i], room) : 0) + all[i].backward;
    done[i] = time;
  }
  return time + alone(all[0].reduce) + alone(all[0].all_reduce);
}

double Costs::bound() const {
  std::vector<OfUnit> all;
  for (std::size_t i = 0; i < units_.size(); ++i) all.push_back(all_of(i));
  const bool again = strategy_of(job_.options.strategy).frees_after_forward;
  std::array<double, 2> work{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool twice = again && i + 1 < all.size();
    work[static_cast<std::size_t>(all[i].gather.link)] += (twice ? 2 : 1) * all[i].gather.work;
    work[static_cast<std::size_t>(all[i].reduce.link)] += all[i].reduce.work;
    work[static_cast<std::size_t>(all[i].all_reduce.link)] += all[i].all_reduce.work;
  }
  return std::max({chain(all), work[0], work[1]});
}

}  // namespace tessera::fsdp

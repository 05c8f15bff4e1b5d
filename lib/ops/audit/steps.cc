// Steps over time: of names, of the training loop, of optimizers; and optimizers that begin again.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/ops/audit/run.h"

namespace tessera {
namespace {

/// stored - name, as most of a series have it; nullopt: no two agree, and none is small enough to
/// be a matter of counting from 0 or 1.
std::optional<double> usual_difference(const std::vector<double>& differences) {
  std::map<double, int> counts;
  for (const double d : differences) ++counts[d];
  const auto best = std::ranges::max_element(
      counts, {}, [](const auto& each) { return std::pair(each.second, -std::abs(each.first)); });
  if (best == counts.end()) return std::nullopt;
  if (best->second > 1 || std::abs(best->first) <= 1) return best->first;
  return std::nullopt;
}

/// Steps of another unit (samples, tokens, micro batches): all stored ones are as many times the
/// name's.
bool are_proportional(const std::vector<std::pair<double, double>>& steps) {
  double ratio = 0;
  for (const auto& [name, stored] : steps) {
    if (name == 0 || stored == 0) {
      if (name != stored) return false;
      continue;
    }
    if (ratio == 0) ratio = stored / name;
    if (std::abs(stored / name - ratio) > 1e-6 * ratio) return false;
  }
  return true;
}

void check_names(AuditRun& run, const std::vector<std::size_t>& series) {
  std::vector<std::pair<double, double>> steps;
  std::vector<double> differences;
  std::vector<std::size_t> rows;
  for (const std::size_t i : series) {
    const AuditedCheckpoint& row = run.row(i);
    if (!row.name_step || !row.stored_step) continue;
    steps.emplace_back(static_cast<double>(*row.name_step), *row.stored_step);
    differences.push_back(steps.back().second - steps.back().first);
    rows.push_back(i);
  }
  if (rows.size() < 2 || are_proportional(steps)) return;
  const auto usual = usual_difference(differences);
  if (!usual) return;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (differences[at] == *usual) continue;
    run.add(Finding::kStepNotOfName, Severity::kError,
            fmt::format("{} is {:g}, its name says {:g}",
                        printable(run.row(rows[at]).stored_step_source), steps[at].second,
                        steps[at].first),
            run.row(rows[at]).name);
  }
}

void check_order(AuditRun& run, const std::vector<std::size_t>& series) {
  const AuditedCheckpoint* before = nullptr;
  for (const std::size_t i : series) {
    const AuditedCheckpoint& row = run.row(i);
    if (!row.name_step || !row.stored_step) continue;
    if (before != nullptr && *row.stored_step < *before->stored_step)
      run.add(Finding::kSteppedBack, Severity::kError,
              fmt::format("{} is {:g}, after {:g} in {}", printable(row.stored_step_source),
                          *row.stored_step, *before->stored_step, printable(before->name)),
              row.name);
    before = &row;
  }
}

/// The optimizer may step less often than the loop counts (skipped steps, accumulation), and as
/// often or k times as often; it never takes more steps between two saves than it does between all
/// others.
void check_optimizer_steps(AuditRun& run, const std::vector<std::size_t>& series) {
  struct Interval {
    std::size_t row = 0;
    double of_run = 0, of_optimizer = 0;
  };
  std::vector<Interval> intervals;
  const AuditedCheckpoint* before = nullptr;
  for (const std::size_t i : series) {
    const AuditedCheckpoint& row = run.row(i);
    if (!row.optimizer_step || !row.stored_step) continue;
    if (before != nullptr && *row.stored_step > *before->stored_step &&
        *row.optimizer_step >= *before->optimizer_step)
      intervals.push_back({i, *row.stored_step - *before->stored_step,
                           *row.optimizer_step - *before->optimizer_step});
    before = &row;
  }
  if (intervals.size() < 2) return;
  for (std::size_t at = 0; at < intervals.size(); ++at) {
    double most = 0;  // of the others
    for (std::size_t other = 0; other < intervals.size(); ++other)
      if (other != at)
        most = std::max(most, intervals[other].of_optimizer / intervals[other].of_run);
    const Interval& own = intervals[at];
    const double usual = std::max(most, 1.0);
    if (own.of_optimizer <= usual * own.of_run + 0.5) continue;
    run.add(Finding::kOptimizerStepDiffers, Severity::kError,
            fmt::format("the optimizer took {:g} steps while the run took {:g}; its state is of "
                        "another moment than the rest",
                        own.of_optimizer, own.of_run),
            run.row(own.row).name);
  }
}

/// Parameters step together in all but some of the checkpoints.
void check_torn_steps(AuditRun& run, const std::vector<std::size_t>& series) {
  const auto is_odd = [&](std::size_t i) { return run.checkpoints[i].odd_steps > 0; };
  const auto odd = std::ranges::count_if(series, is_odd);
  if (odd == 0 || odd == static_cast<std::ptrdiff_t>(series.size())) return;
  for (const std::size_t i : series)
    if (is_odd(i))
      run.add(Finding::kOptimizerStepDiffers, Severity::kError,
              fmt::format("{} parameters are at another step than the rest of their group: {}",
                          run.checkpoints[i].odd_steps, run.checkpoints[i].odd_step),
              run.row(i).name);
}

void check_state(AuditRun& run, const CheckpointFacts& before, const CheckpointFacts& own) {
  std::uint32_t lost = 0;
  std::string first;
  const auto there = own.by_id();
  for (const std::uint32_t parameter : before.with_state) {
    const bool of_weight = there.contains(parameter);
    if (own.with_state.contains(parameter) || !of_weight) continue;
    if (lost++ == 0) first = run.names.name(parameter);
  }
  if (lost > 0)
    run.add(Finding::kStateLost, Severity::kError,
            fmt::format("{} of {} parameters that had state in {} have none", lost,
                        before.with_state.size(), printable(before.row.name)),
            own.row.name, first);
}

}  // namespace

void check_steps_over_time(AuditRun& run) {
  for (const std::vector<std::size_t>& series : run.series) {
    check_names(run, series);
    check_order(run, series);
    check_optimizer_steps(run, series);
    check_torn_steps(run, series);
  }
}

void check_optimizers(AuditRun& run) {
  for (const std::vector<std::size_t>& series : run.series) {
    const CheckpointFacts* before = nullptr;  // the last one with an optimizer
    for (const std::size_t i : series) {
      const CheckpointFacts& own = run.checkpoints[i];
      if (!own.row.complete) continue;
      if (before == nullptr) {
        if (own.has_optimizer) before = &own;
        continue;
      }
      if (!own.has_optimizer) {
        run.add(Finding::kOptimizerMissing, Severity::kWarning,
                fmt::format("no optimizer state, which {} has", printable(before->row.name)),
                own.row.name);
        continue;
      }
      check_state(run, *before, own);
      const auto &was = before->row.optimizer_step, &is = own.row.optimizer_step;
      if (was && is && *is < *was)
        run.add(Finding::kOptimizerRestarted, Severity::kError,
                fmt::format("the optimizer is at step {:g}, after {:g} in {}: it began again", *is,
                            *was, printable(before->row.name)),
                own.row.name);
      before = &own;
    }
  }
}

}  // namespace tessera

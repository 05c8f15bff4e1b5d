#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/audit.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/ops/audit/deep.h"

namespace tessera {
namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 20;

bool is_wanted(const TensorFact& fact, const TrendOptions& options, const AuditNames& names) {
  if (options.of == TrendOf::kVMax && fact.use != TensorUse::kSecond) return false;
  const std::string own = names.name(fact.id), parameter = names.name(fact.parameter);
  // State is asked for by its own name; its parameter's means the weight, but of v_max.
  const bool by_parameter = options.of == TrendOf::kVMax;
  return std::ranges::any_of(options.tensors, [&](const std::string& glob) {
    return glob_match(glob, own) || (by_parameter && glob_match(glob, parameter));
  });
}

std::optional<double> trend_value(const TensorNumbers& t, TrendOf of, const TensorNumbers* before) {
  switch (of) {
    case TrendOf::kNorm:
      return t.nan + t.inf > 0 ? std::nan("") : t.l2;
    case TrendOf::kVMax:
      return t.nan + t.inf > 0 ? std::nan("") : t.abs_max;
    case TrendOf::kUpdate:
      break;
  }
  const auto change = before != nullptr ? sampled_change(*before, t) : std::nullopt;
  return change ? change->relative() : std::nullopt;
}

}  // namespace

TrendReport trend_of_run(FileSystem& fs, const std::string& path, const TrendOptions& options) {
  AuditRun run;
  open_run(fs, path, options.audit, run);
  std::size_t matched = 0;  // of one checkpoint
  for (const CheckpointFacts& each : run.checkpoints) {
    std::size_t here = 0;
    for (const AuditPart& part : each.parts)
      for (const TensorFact& fact : part.tensors)
        here += fact.measured && is_wanted(fact, options, run.names);
    matched = std::max(matched, here);
  }
  if (matched == 0)
    fail(Code::kInvalidArgument,
         fmt::format("--tensor {} matches no {} of this run",
                     printable(options.tensors.empty() ? "" : options.tensors[0]),
                     options.of == TrendOf::kVMax ? "parameter with second moments"
                                                  : "floating tensor of more than one element"),
         "ckpt-inspect ls lists the names");
  DeepPlan plan;
  plan.replicas = false;
  if (options.of == TrendOf::kUpdate) plan.elements = kMostElements;
  plan.wants = [&](const TensorFact& fact) { return is_wanted(fact, options, run.names); };
  DeepReader reader(fs, run, options.audit, plan);
  TrendReport report;
  report.path = path;
  report.of = options.of;
  std::map<std::pair<std::string, std::uint32_t>, TrendLine> lines;
  for (const std::vector<std::size_t>& series : run.series) {
    std::vector<TensorNumbers> before;
    for (const std::size_t i : series) {
      auto numbers = reader.read(i);
      if (!numbers) continue;
      for (const TensorNumbers& t : numbers->tensors) {
        const auto old = std::ranges::lower_bound(before, t.id, {}, &TensorNumbers::id);
        const bool known = old != before.end() && old->id == t.id;
        const auto value = trend_value(t, options.of, known ? &*old : nullptr);
        if (!value) continue;
        TrendLine& line = lines[{run.row(i).series, t.id}];
        line.tensor = run.names.name(t.id);
        line.series = run.row(i).series;
        line.values.resize(run.checkpoints.size());
        line.values[i] = value;
      }
      before = std::move(numbers->tensors);
    }
  }
  for (auto& [key, line] : lines) report.lines.push_back(std::move(line));
  std::ranges::stable_sort(report.lines, [](const TrendLine& a, const TrendLine& b) {
    if (a.series != b.series) return natural_less(a.series, b.series);
    return natural_less(a.tensor, b.tensor);
  });
  for (const CheckpointFacts& each : run.checkpoints)
    if (!each.row.complete)
      run.notes.push_back(
          {Finding::kDamagedCheckpoint, Severity::kWarning, each.row.problem, each.row.name, ""});
  for (CheckpointFacts& each : run.checkpoints) report.checkpoints.push_back(std::move(each.row));
  report.sampling = reader.sampling();
  report.notes = std::move(run.notes);
  return report;
}

}  // namespace tessera

// Damage, the pointer, and parts that a checkpoint lacks and its neighbours have.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/ops/audit/run.h"

namespace tessera {
namespace {

using NameSet = std::set<std::uint32_t>;

/// Names of its tensors but for optimizer state, which has findings of its own.
NameSet model_names(const CheckpointFacts& facts) {
  NameSet names;
  for (const AuditPart& part : facts.parts)
    for (const TensorFact& fact : part.tensors)
      if (part.prefix.empty() && fact.id == fact.parameter) names.insert(fact.id);
  return names;
}

template <class Set>
Set in_both(const Set& a, const Set& b) {
  Set out;
  std::ranges::set_intersection(a, b, std::inserter(out, out.end()));
  return out;
}
template <class Set>
Set lacking(const Set& wanted, const Set& there) {
  Set out;
  std::ranges::set_difference(wanted, there, std::inserter(out, out.end()));
  return out;
}

/// Whole checkpoints of one series.
std::vector<std::size_t> whole_ones(const AuditRun& run, const std::vector<std::size_t>& series) {
  std::vector<std::size_t> out;
  std::ranges::copy_if(series, std::back_inserter(out),
                       [&](std::size_t i) { return run.row(i).complete; });
  return out;
}

class PartChecker {
 public:
  PartChecker(AuditRun& run, const std::vector<std::size_t>& series)
      : run_(run), whole_(whole_ones(run, series)) {}

  void check() {
    for (std::size_t at = 1; at < whole_.size(); ++at) {
      const CheckpointFacts& before = facts(at - 1);
      const bool last = at + 1 == whole_.size();
      // Between two neighbours it is what both have; the last one is held against two before it.
      if (last && at < 2) continue;
      const CheckpointFacts& other = last ? facts(at - 2) : facts(at + 1);
      check(facts(at), before, other, last);
    }
  }

 private:
  const CheckpointFacts& facts(std::size_t at) const { return run_.checkpoints[whole_[at]]; }

  void check(const CheckpointFacts& own, const CheckpointFacts& before,
             const CheckpointFacts& other, bool last) {
    const NameSet names =
        lacking(in_both(model_names(before), model_names(other)), model_names(own));
    const char* whose = last ? "the two before it have" : "the ones before and after it have";
    if (!names.empty())
      run_.add(Finding::kPartsMissing, last ? Severity::kWarning : Severity::kError,
               fmt::format("lacks {} tensor{} that {}", names.size(), names.size() == 1 ? "" : "s",
                           whose),
               own.row.name, run_.names.name(*names.begin()));
    const auto state = lacking(in_both(before.beside_state, other.beside_state), own.beside_state);
    auto files = lacking(in_both(before.beside, other.beside), own.beside);
    // What has no optimizer at all has a finding for that.
    if (own.has_optimizer || !before.has_optimizer)
      for (const std::string& file : state)
        run_.add(Finding::kPartsMissing, last ? Severity::kWarning : Severity::kError,
                 fmt::format("lacks {}, which {}", printable(file), whose), own.row.name);
    for (const std::string& file : lacking(files, state))
      if (!before.beside_state.contains(file))
        run_.add(Finding::kPartsMissing, Severity::kWarning,
                 fmt::format("lacks {}, which {}", printable(file), whose), own.row.name);
    for (const std::string& value : lacking(in_both(before.values, other.values), own.values))
      run_.add(Finding::kPartsMissing, Severity::kWarning,
               fmt::format("lacks the values \"{}\", which {}", printable(value), whose),
               own.row.name);
  }

  AuditRun& run_;
  std::vector<std::size_t> whole_;
};

void check_damage(AuditRun& run) {
  bool any = false;
  for (const CheckpointFacts& each : run.checkpoints) {
    any = any || each.row.complete;
    if (each.row.complete) continue;
    run.add(Finding::kDamagedCheckpoint, each.row.is_refused ? Severity::kInfo : Severity::kError,
            each.row.problem, each.row.name);
  }
  if (!any)
    run.add(Finding::kNoneWhole, Severity::kError,
            fmt::format("none of {} checkpoint{} is whole", run.checkpoints.size(),
                        run.checkpoints.size() == 1 ? "" : "s"));
}

void check_pointer(AuditRun& run) {
  if (!run.has_pointer) return;
  const std::string shown = printable(run.pointer_target);
  if (!run.pointer_leads)
    return run.add(Finding::kPointerAstray, Severity::kError,
                   fmt::format("{} names \"{}\", which is not there", run.pointer, shown),
                   run.pointer);
  for (const std::vector<std::size_t>& series : run.series) {
    const auto named =
        std::ranges::find_if(series, [&](std::size_t i) { return run.row(i).is_latest; });
    if (named == series.end()) continue;
    if (!run.row(*named).complete && !run.row(*named).is_refused)
      return run.add(Finding::kPointerAstray, Severity::kError,
                     fmt::format("{} names \"{}\", which is damaged: {}", run.pointer, shown,
                                 run.row(*named).problem),
                     run.row(*named).name);
    const auto newest = std::find_if(series.rbegin(), series.rend(),
                                     [&](std::size_t i) { return run.row(i).complete; });
    if (*newest > *named)
      run.add(Finding::kPointerBehind, Severity::kWarning,
              fmt::format("{} names \"{}\"; {} is newer and whole", run.pointer, shown,
                          printable(run.row(*newest).name)),
              run.row(*named).name);
  }
}

/// Where each step has several checkpoints (actor and critic), a step that has one and not another.
void check_components(AuditRun& run) {
  std::map<std::string, std::vector<std::size_t>> families;  // "global_step_#" -> series
  for (std::size_t s = 0; s < run.series.size(); ++s) {
    const std::string& name = run.row(run.series[s][0]).series;
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos) families[name.substr(0, slash)].push_back(s);
  }
  for (const auto& [family, members] : families) {
    std::map<double, std::set<std::size_t>> by_step;
    for (const std::size_t s : members)
      for (const std::size_t i : run.series[s])
        if (const auto step = run.row(i).step()) by_step[*step].insert(s);
    for (const std::size_t s : members) {
      if (run.series[s].size() < 2) continue;
      for (const auto& [step, there] : by_step)
        if (!there.contains(s))
          run.add(Finding::kPartsMissing, Severity::kError,
                  fmt::format("step {:g} lacks {}, which {} other steps have", step,
                              printable(run.row(run.series[s][0]).series), run.series[s].size()),
                  run.row(*std::ranges::find_if(run.series[*there.begin()],
                                                [&, step = step](std::size_t i) {
                                                  return run.row(i).step() == step;
                                                }))
                      .name);
    }
  }
}

}  // namespace

void check_wholeness(AuditRun& run) {
  check_damage(run);
  check_pointer(run);
  check_components(run);
  for (const std::vector<std::size_t>& series : run.series) PartChecker(run, series).check();
}

}  // namespace tessera

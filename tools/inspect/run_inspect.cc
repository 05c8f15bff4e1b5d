// ckpt-inspect: from what was typed to the verb, and what is refused before any verb runs.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/transform.h>

#include <algorithm>

#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/progress_reporter.h"
#include "tools/reopen.h"

namespace tessera::tools {
namespace {

struct VerbRow {
  Verb verb;
  Outcome (*run)(Inspection& in);
  /// Reads elements of tensors, so it may take long enough for a progress bar.
  bool takes_long;
};

constexpr VerbRow kVerbs[] = {
    {Verb::kSummary, run_summary, false}, {Verb::kLs, run_ls, false},
    {Verb::kShow, run_show, false},       {Verb::kStat, run_stat, true},
    {Verb::kOptim, run_optim, true},      {Verb::kHash, run_hash, true},
    {Verb::kVerify, run_verify, true},    {Verb::kScan, run_scan, false},
    {Verb::kExplain, run_explain, false}, {Verb::kReport, run_report, true},
    {Verb::kAudit, run_audit, true},      {Verb::kTrend, run_trend, true},
    {Verb::kBrowse, run_browse, false},   {Verb::kDiff, run_diff, true},
};

const VerbRow& row_of(Verb verb) {
  const auto row = std::ranges::find(kVerbs, verb, &VerbRow::verb);
  if (row == std::end(kVerbs)) fail(Code::kInternal, "not a verb of ckpt-inspect");
  return *row;
}

/// Options that only some formats take: at least one of the PATHs must take each.
void require_options_taken(const Inspection& in) {
  const Arguments& a = in.a;
  const std::vector<const FormatOption*> given = a.own.given();
  if (given.empty()) return;
  const std::size_t paths = a.verb == Verb::kShow ? 1 : a.words.size();
  std::vector<OptionList> lists;
  std::vector<std::string_view> ids;
  for (std::size_t i = 0; i < paths; ++i) {
    const bool two = a.verb == Verb::kDiff;
    const std::string& from = !two ? a.from : i == 0 ? a.from_a : a.from_b;
    for (const FormatDriver* driver : formats_at(in.fs, a.words[i], from)) {
      lists.push_back(driver->capabilities().reads_with);
      if (std::ranges::find(ids, driver->id()) == ids.end()) ids.push_back(driver->id());
    }
  }
  if (ids.empty()) return;  // opening it will fail with a better message
  require_taken(given, lists, ids);
}

Outcome run_verb(const Arguments& a, FileSystem& fs, const Screen& screen, Host* host) {
  Inspection in(a, fs, screen, host);
  require_options_taken(in);
  const VerbRow& row = row_of(a.verb);
  const bool reports = row.takes_long && host == nullptr;
  const ProgressReporter reporter(reports ? a.progress : ProgressMode::kNone,
                                  std::string(verb_name(a.verb)), in.progress());
  return row.run(in);
}

}  // namespace

Outcome run_inspect(const Arguments& arguments, FileSystem& fs, const Screen& screen, Host* host) {
  const auto run = [&] { return run_verb(arguments, fs, screen, host); };
  // What writes a file does so once.
  if (!arguments.npy.empty() && arguments.npy != "-") return run();
  // A run grows while it is looked at.
  if (arguments.verb == Verb::kAudit || arguments.verb == Verb::kTrend) return run();
  if (!arguments.html.empty() || arguments.verb == Verb::kReport || arguments.verb == Verb::kBrowse)
    return run();
  if (arguments.verb == Verb::kExplain) return run();  // its words are no paths
  return read_steadily(fs, arguments.words, /*writes=*/false, run);
}

}  // namespace tessera::tools

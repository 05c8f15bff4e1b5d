// No verb: what is at PATH, as a summary, a table of the checkpoints of a run, or (--explain-path)
// the rules that say so.
#include <fmt/format.h>

#include <algorithm>

#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

Outcome run_table(Inspection& in, const RunListing& listing, const ScanReport* scanned = nullptr) {
  in.print_notes(listing.notes);
  const bool all_whole = std::ranges::all_of(listing.rows, &RunRow::complete);
  return {
      in.in_form([&] { return run_document(listing, scanned); }, {{"checkpoints", "checkpoint"}},
                 [&] {
                   return render_run(listing, in.screen) +
                          (scanned != nullptr ? render_scan(*scanned, in.screen) : std::string());
                 }),
      in.a.strict && !all_whole ? kExitNegative : kExitDone,
      {}};
}

/// --explain-path: how PATH is understood; a failure follows the printed steps.
Outcome path_rules(Inspection& in) {
  // What says what to look at in a checkpoint says nothing of a path.
  const std::pair<const char*, bool> others[] = {{"--root", !in.a.root.empty()},
                                                 {"--include", !in.a.include.empty()},
                                                 {"--exclude", !in.a.exclude.empty()},
                                                 {"--only", !in.a.only.empty()},
                                                 {"--globals", in.a.globals}};
  for (const auto& [flag, is_given] : others)
    if (is_given)
      fail(Code::kInvalidArgument,
           fmt::format("--explain-path only explains what PATH means and opens nothing in it: {} "
                       "has no effect",
                       flag),
           fmt::format("leave out {}, or --explain-path", flag));
  if (in.a.words.size() > 1)
    fail(Code::kInvalidArgument, "--explain-path explains one PATH",
         "give one, and the flag, for each");
  const PathExplanation explanation = explain_path(in.fs, in.a.words[0], in.a.from);
  Outcome outcome;
  outcome.out = in.in_form([&] { return path_document(explanation); }, {{"rules", "rule"}},
                           [&] { return render_path(explanation, in.screen); });
  if (explanation.failure.code == Code::kOk) return outcome;
  outcome.exit = exit_status(explanation.failure.code);
  outcome.err = in.complaint(explanation.failure);
  return outcome;
}

Outcome summary_of(Inspection& in, const OpenedCheckpoint& opened, const ScanReport* scanned) {
  const SummaryReport report = summarize(opened);
  Outcome outcome;
  outcome.out = in.in_form(
      [&] { return summary_document(report, scanned); }, {{"globals", "global"}, {"notes", "note"}},
      [&] {
        return render_summary(report, in.a.globals, in.screen) +
               (scanned != nullptr ? render_scan(*scanned, in.screen) : std::string());
      });
  const auto denied =
      std::find_if(report.globals.begin(), report.globals.end(),
                   [](const GlobalUse& use) { return use.verdict == GlobalUse::Verdict::kDenied; });
  if (denied != report.globals.end()) {
    const Status status{Code::kCorrupt,
                        fmt::format("unsafe: the pickle names {}", denied->name),
                        {denied->file, {}, {}, -1},
                        {}};
    // --globals shows what is denied; every other look at such a file is a refusal.
    if (!in.a.globals) throw Error(status);
    outcome.exit = kExitCorrupt;
    outcome.err = in.complaint(status);
  } else if (!report.complete) {
    const Status status{
        Code::kCorrupt,
        fmt::format("incomplete: {}", report.problems.empty() ? "damaged" : report.problems[0]),
        {report.display, {}, {}, -1},
        "ckpt-inspect verify lists every finding"};
    if (in.a.format != OutputFormat::kHuman) throw Error(status);
    outcome.exit = kExitCorrupt;
    outcome.err = in.complaint(status);
  } else if (in.negative(true, report.notes)) {
    outcome.exit = kExitNegative;
  }
  return outcome;
}

/// --globals: what scan says of the same files comes behind the summary, or alone where there is no
/// checkpoint that can be summed up.
Outcome summary_with_scan(Inspection& in, const OpenOptions& options) {
  const std::string& path = in.a.words[0];
  ScanReport scanned = scan_of(in, in.a.words);
  Outcome outcome;
  try {
    if (in.a.words.size() > 1) {
      outcome = run_table(in, list_checkpoints(in.fs, in.a.words, options), &scanned);
    } else if (const auto listing = list_run(in.fs, path, options)) {
      outcome = run_table(in, *listing, &scanned);
    } else {
      const OpenedCheckpoint opened = in.open(path, options);
      const std::string root = in.fs.canonical(path), found = in.fs.canonical(opened.path);
      if (found != root && !found.starts_with(root + "/"))
        scanned = scan_of(in, {path, opened.path});
      outcome = summary_of(in, opened, &scanned);
    }
  } catch (const Error&) {
    if (scanned.safety != Safety::kDangerous) throw;
    if (in.a.format != OutputFormat::kHuman) throw Error(danger_of(scanned));
    outcome.out = render_scan(scanned, in.screen);
  }
  if (scanned.safety == Safety::kDangerous && outcome.exit <= kExitNegative) {
    outcome.exit = kExitCorrupt;
    outcome.err = in.complaint(danger_of(scanned));
  }
  return outcome;
}

}  // namespace

Outcome run_summary(Inspection& in) {
  if (in.a.explain_path) return path_rules(in);
  OpenOptions options = in.open_options(in.a.from, in.a.root);
  options.read.tolerate_damage = true;
  options.read.tolerate_io_errors = false;
  options.read.list_globals = in.a.globals;
  if (in.a.globals) return summary_with_scan(in, options);
  if (in.a.words.size() > 1) return run_table(in, list_checkpoints(in.fs, in.a.words, options));
  if (const auto listing = list_run(in.fs, in.a.words[0], options)) return run_table(in, *listing);
  return summary_of(in, in.open(in.a.words[0], options), nullptr);
}

}  // namespace tessera::tools

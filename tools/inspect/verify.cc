// verify: every finding of one or several checkpoints.
#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
Outcome run_verify(Inspection& in) {
  VerifyOptions options;
  options.level = in.a.level;
  options.require_sums = in.a.require_sums;
  options.against = in.a.against;
  options.open = in.open_options(in.a.from, in.a.root);
  options.transfer = in.transfer();
  std::vector<VerifyReport> reports;
  Outcome outcome;
  const auto rank = [&](int exit) {
    if (exit <= outcome.exit) return false;
    outcome.exit = exit;
    return true;
  };
  for (const std::string& path : in.a.words) {
    std::optional<Status> failure;
    reports.push_back(in.a.words.size() == 1 ? verify_checkpoint(in.fs, path, options)
                                             : verify_or_report(in.fs, path, options, failure));
    if (in.negative(reports.back().ok, reports.back().findings)) rank(kExitNegative);
    if (!failure || !rank(exit_status(failure->code))) continue;
    std::string& file = failure->context.file;  // of which of the checkpoints
    if (file.empty() || path.ends_with(file)) file = path;
    if (!file.starts_with(path)) file = path + "/" + file;
    outcome.err = in.complaint(*failure);
  }
  outcome.out = in.in_form([&] { return verify_documents(reports); },
                           {{"findings", "finding"},
                            {"causes", "cause"},
                            {"checkpoints", "checkpoint"},
                            {"notes", "note"}},
                           [&] {
                             std::string text;
                             for (const VerifyReport& report : reports)
                               text += render_verify(report, in.screen);
                             return text;
                           });
  return outcome;
}

}  // namespace tessera::tools

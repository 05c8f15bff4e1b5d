// audit: a run's checkpoints over time, and the page of it.
#include "tools/documents/audit.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/new_file.h"
#include "tools/render/audit.h"
#include "tools/report/audit_page.h"

namespace tessera::tools {

Outcome run_audit(Inspection& in) {
  AuditOptions options = in.a.audit;
  options.open = in.open_options(in.a.from, in.a.root);
  options.transfer = in.transfer();
  const AuditReport report = audit_run(in.fs, in.a.words[0], options);
  Outcome outcome;
  outcome.exit = in.negative(report.ok(), report.findings) ? kExitNegative : kExitDone;
  outcome.out = in.in_form([&] { return audit_document(report); },
                           {{"checkpoints", "checkpoint"},
                            {"findings", "finding"},
                            {"retention", "retention"},
                            {"layers", "layer"},
                            {"notes", "note"}},
                           [&] { return render_audit(report, in.screen); });
  if (in.a.html.empty()) return outcome;
  write_new_file(in.a.html, "--html", in.a.replace, in.host == nullptr,
                 [&](const Sink& sink) { write_audit_page(report, sink); });
  outcome.err = fmt::format("ckpt-inspect: wrote {}\n", printable(in.a.html));
  return outcome;
}

}  // namespace tessera::tools

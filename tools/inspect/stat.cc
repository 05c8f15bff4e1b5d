// stat: numbers about the elements of every tensor.
#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/page.h"
#include "tools/inspect/verbs.h"
#include "tools/ordering.h"
#include "tools/render/render.h"

namespace tessera::tools {

Outcome run_stat(Inspection& in) {
  const bool page = !in.a.html.empty();
  OpenedCheckpoint opened = in.open();
  StatOptions options = page ? page_stat_options(in, opened) : in.a.stat;
  options.dequantized = in.a.dequantized;
  options.transfer = in.transfer();
  // For people the one of both that shows more; they come from the same pass.
  const bool human = in.a.format == OutputFormat::kHuman;
  options.both_histograms = options.both_histograms || (human && !options.log_histogram);
  StatReport report = stat_checkpoint(opened, options);
  std::string wrote;
  if (page) {
    ReportSide side = page_side(in, opened);
    side.findings = report.findings;
    side.stat = report;
    const ReportPage made{&side, nullptr, nullptr, "tensors"};
    wrote = wrote_line(in.a.html, write_page(in, in.a.html, "--html", made));
    keep_what_was_asked(report, in.a.stat);
  }
  order(report, in.a.sort, in.a.top);
  return {in.in_form([&] { return stat_document(report); },
                     {{"tensors", "tensor"}, {"findings", "finding"}, {"notes", "note"}},
                     [&] { return render_stat(report, in.screen); }),
          in.negative(report.ok(), report.findings) ? kExitNegative : kExitDone, wrote};
}

}  // namespace tessera::tools

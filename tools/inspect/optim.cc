// optim: what the optimizer keeps of every parameter.
#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/page.h"
#include "tools/inspect/verbs.h"
#include "tools/ordering.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr std::int64_t kShownUpdates = 20;

}  // namespace

Outcome run_optim(Inspection& in) {
  OpenedCheckpoint first = in.open();
  std::optional<OpenedCheckpoint> second;
  if (in.a.words.size() > 1) second = in.open(in.a.words[1], in.open_options(in.a.from, in.a.root));
  OptimOptions options;
  options.transfer = in.transfer();
  OptimReport report = inspect_optimizer(first, second ? &*second : nullptr, options);
  std::string wrote;
  if (!in.a.html.empty()) {
    ReportSide side = page_side(in, first);
    side.optim = report;
    const ReportPage page{&side, nullptr, nullptr, "optimizer"};
    wrote = wrote_line(in.a.html, write_page(in, in.a.html, "--html", page));
  }
  // For people the rest is counted.
  const bool all = in.a.format == OutputFormat::kHuman;
  order(report, in.a.sort, all ? std::nullopt : in.a.top);
  const auto shown = static_cast<std::size_t>(in.a.top.value_or(kShownUpdates));
  return {in.in_form([&] { return optim_document(report); },
                     {{"optimizers", "optimizer"}, {"findings", "finding"}, {"notes", "note"}},
                     [&] { return render_optim(report, shown, in.screen); }),
          in.negative(report.ok(), report.findings) ? kExitNegative : kExitDone, wrote};
}

}  // namespace tessera::tools

// report: one or two checkpoints as a page of HTML.
#include "tools/report/report.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "tools/documents/documents.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/new_file.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

ReportSide report_side(Inspection& in, OpenedCheckpoint& opened, OpenedCheckpoint* other) {
  ReportSide side;
  side.opened = &opened;
  side.summary = summarize(opened);
  VerifyOptions quick;
  quick.level = VerifyLevel::kQuick;
  quick.open = in.open_options(in.a.from, in.a.root);
  quick.transfer = transfer_options(in.a, nullptr);
  std::optional<Status> failure;
  side.findings = verify_or_report(in.fs, opened.path, quick, failure).findings;
  OptimOptions optim;
  optim.values = in.a.read_values;
  optim.transfer = in.transfer();
  side.optim = inspect_optimizer(opened, in.a.read_values ? other : nullptr, optim);
  if (!in.a.read_values) return side;
  StatOptions options;
  options.histograms_up_to = opened.manifest.tensors.size();
  options.both_histograms = true;
  options.row_norms = true;
  options.most_row_norms = kReportNorms;
  options.transfer = in.transfer();
  side.stat = stat_checkpoint(opened, options);
  side.findings.insert(side.findings.end(), side.stat->findings.begin(), side.stat->findings.end());
  return side;
}

}  // namespace

Outcome run_report(Inspection& in) {
  if (in.a.output.empty()) fail(Code::kInvalidArgument, "report needs -o FILE.html", "- is stdout");
  OpenedCheckpoint first = in.open();
  std::optional<OpenedCheckpoint> second;
  if (in.a.words.size() > 1) second = in.open(in.a.words[1], in.open_options(in.a.from, in.a.root));
  const ReportSide a = report_side(in, first, second ? &*second : nullptr);
  std::optional<ReportSide> b;
  std::optional<DiffReport> difference;
  if (second) {
    DiffOptions options;
    options.transfer = in.transfer();
    difference = diff_checkpoints(first, *second, options);
    b = report_side(in, *second, nullptr);
  }
  std::uint64_t bytes = 0;
  std::vector<std::string> left_out;
  const auto page = [&](const Sink& sink) {
    left_out =
        write_report_page(a, b ? &*b : nullptr, difference ? &*difference : nullptr, {},
                          [&](std::string_view piece) { sink(piece), bytes += piece.size(); });
  };
  Outcome outcome;
  if (in.a.output == "-") {
    page([&](std::string_view piece) { outcome.out += piece; });
    return outcome;
  }
  write_new_file(in.a.output, "-o", in.a.replace, in.host == nullptr, page);
  outcome.out =
      in.in_form([&] { return page_document(in.a.output, bytes, a.summary, left_out); }, {},
                 [&] {
                   std::string text =
                       fmt::format("wrote {}: {}\n", printable(in.a.output), format_bytes(bytes));
                   for (const std::string& what : left_out) text += "left out: " + what + "\n";
                   return text;
                 });
  return outcome;
}

}  // namespace tessera::tools

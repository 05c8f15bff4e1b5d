// report: one or two checkpoints as a page of HTML.
#include "tools/report/report.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/listed_tensors.h>

#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/page.h"
#include "tools/inspect/verbs.h"
#include "tools/new_file.h"
#include "tools/report/svg.h"

namespace tessera::tools {
namespace {

ReportSide report_side(Inspection& in, OpenedCheckpoint& opened, OpenedCheckpoint* other) {
  ReportSide side = page_side(in, opened);
  OptimOptions optim;
  optim.values = in.a.read_values;
  optim.transfer = in.transfer();
  side.optim = inspect_optimizer(opened, in.a.read_values ? other : nullptr, optim);
  if (!in.a.read_values) return side;
  StatOptions options = page_stat_options(in, opened);
  options.transfer = in.transfer();
  side.stat = stat_checkpoint(opened, options);
  side.findings.insert(side.findings.end(), side.stat->findings.begin(), side.stat->findings.end());
  return side;
}

/// Metadata shows that something is not there: the page says what, and the status as well.
Status incompleteness(const SummaryReport& summary) {
  if (summary.complete) return {};
  return {Code::kCorrupt,
          fmt::format("incomplete: {}", summary.problems.empty() ? "damaged" : summary.problems[0]),
          {summary.display, {}, {}, -1},
          "ckpt-inspect verify lists every finding"};
}

/// --svg: what the page draws with most of its charts, without a browser.
std::string picture_of(Inspection& in, OpenedCheckpoint& first, OpenedCheckpoint* second) {
  const std::string& name = in.a.svg;
  if (name == "modules") return svg_modules(first.display, first.manifest);
  if (name == "change") {
    DiffOptions options;
    options.transfer = in.transfer();
    std::vector<HeatCell> cells;
    for (const TensorDiff& row : diff_checkpoints(first, *second, options).tensors)
      if (row.what == TensorDiff::What::kValues) cells.push_back({row.name, row.relative_l2});
    return svg_heat_map(fmt::format("Relative change, {} to {}", first.display, second->display),
                        cells);
  }
  if (name == "updates") {
    OptimOptions options;
    options.transfer = in.transfer();
    std::vector<HeatCell> cells;
    for (const OptimizerReport& optimizer : inspect_optimizer(first, second, options).optimizers)
      for (const UpdateRow& row : optimizer.updates) cells.push_back({row.fqn, row.ratio});
    if (cells.empty())
      fail(Code::kInvalidArgument, "--svg updates: no optimizer here has updates to rank",
           "ckpt-inspect optim says why");
    return svg_heat_map("Next update against the weight, " + first.display, cells);
  }
  const std::vector<std::uint32_t> leaves = listed_tensors(first.manifest);
  if (leaves.size() != 1)
    fail(Code::kInvalidArgument,
         fmt::format("--svg histogram shows one tensor, and {} are selected", leaves.size()),
         "--include NAME selects one");
  StatOptions options = page_stat_options(in, first);
  options.transfer = in.transfer();
  const TensorStat stat = stat_checkpoint(first, options).tensors.at(0);
  if (!stat.histogram)
    fail(Code::kInvalidArgument,
         fmt::format("--svg histogram: {} has no numbers{}", printable(stat.name),
                     stat.skipped.empty() ? "" : ": " + stat.skipped));
  return svg_histogram(stat);
}

Outcome run_picture(Inspection& in) {
  const bool two = in.a.words.size() > 1;
  if ((in.a.svg == "change") != two)
    fail(Code::kInvalidArgument, two ? "--svg change is the picture of two checkpoints"
                                     : "--svg change needs a second PATH");
  if (in.a.read_values)
    fail(Code::kInvalidArgument, "--stats is of the page, and --svg makes none");
  OpenedCheckpoint first = in.open();
  std::optional<OpenedCheckpoint> second;
  if (two) second = in.open(in.a.words[1], in.open_options(in.a.from, in.a.root));
  const std::string svg = picture_of(in, first, second ? &*second : nullptr);
  const bool human = in.a.format == OutputFormat::kHuman;
  if (in.a.output != "-")
    write_new_file(in.a.output, "-o", in.a.replace, in.host == nullptr,
                   [&](const Sink& sink) { sink(svg); });
  else if (human)
    return {svg, 0, {}};
  return {in.in_form(
              [&] { return page_document(in.a.output, svg.size(), summarize(first), {}, svg); }, {},
              [&] {
                return fmt::format("wrote {}: {}\n", printable(in.a.output),
                                   format_bytes(svg.size()));
              }),
          0,
          {}};
}

}  // namespace

Outcome run_report(Inspection& in) {
  if (in.a.output.empty()) fail(Code::kInvalidArgument, "report needs -o FILE.html", "- is stdout");
  if (!in.a.svg.empty()) return run_picture(in);
  const bool two = in.a.words.size() > 1;
  const OpenOptions options =
      page_options(in, in.a.from, in.a.root, /*reads_elements=*/two || in.a.read_values);
  OpenedCheckpoint first = in.open(in.a.words[0], options);
  std::optional<OpenedCheckpoint> second;
  if (two) second = in.open(in.a.words[1], options);
  const ReportSide a = report_side(in, first, second ? &*second : nullptr);
  std::optional<ReportSide> b;
  std::optional<DiffReport> difference;
  if (second) {
    DiffOptions compared;
    compared.transfer = in.transfer();
    difference = diff_checkpoints(first, *second, compared);
    b = report_side(in, *second, nullptr);
  }
  const Status damage = incompleteness(a.summary);
  const bool human = in.a.format == OutputFormat::kHuman;
  if (damage.code != Code::kOk && !human) throw Error(damage);
  WrittenPage page = write_page(in, in.a.output, "-o",
                                {&a, b ? &*b : nullptr, difference ? &*difference : nullptr});
  Outcome outcome;
  if (damage.code != Code::kOk) {
    outcome.exit = kExitCorrupt;
    outcome.err = in.complaint(damage);
  }
  if (human && in.a.output == "-") {
    outcome.out = std::move(page.text);
    return outcome;
  }
  outcome.out = in.in_form(
      [&] { return page_document(in.a.output, page.bytes, a.summary, page.left_out, page.text); },
      {},
      [&] {
        std::string text =
            fmt::format("wrote {}: {}\n", printable(in.a.output), format_bytes(page.bytes));
        for (const std::string& what : page.left_out) text += "left out: " + what + "\n";
        return text;
      });
  return outcome;
}

}  // namespace tessera::tools

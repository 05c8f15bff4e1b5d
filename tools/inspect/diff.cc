// diff: where two checkpoints differ, and by how much.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/page.h"
#include "tools/inspect/verbs.h"
#include "tools/ordering.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kShownDifferences = 20;

DiffOptions diff_options(Inspection& in) {
  DiffOptions options;
  options.abs = in.a.abs_tolerance;
  options.rel = in.a.rel_tolerance;
  options.ulp = in.a.ulp_tolerance;
  if (!in.a.as_dtype.empty()) {
    options.as = dtype_from_word(in.a.as_dtype);
    if (!options.as) {
      std::vector<std::string_view> names;
      for (const DType dtype : all_dtypes()) names.push_back(torch_name(dtype));
      const std::string near = nearest(in.a.as_dtype, names);
      fail(Code::kInvalidArgument,
           fmt::format("--as \"{}\" is no dtype{}", printable(in.a.as_dtype),
                       near.empty() ? "" : "; did you mean " + near + "?"),
           "as bfloat16, float16, float32, float64, or bf16, fp16, fp32, fp64");
    }
  }
  options.dequantized = in.a.dequantized;
  options.stop_at_first = in.a.quiet && in.a.html.empty();
  options.transfer = in.transfer();
  return options;
}

/// --html; what it says on stderr.
std::string write_comparison(Inspection& in, OpenedCheckpoint& a, OpenedCheckpoint& b,
                             const DiffReport& report) {
  const ReportSide first = page_side(in, a), second = page_side(in, b);
  const ReportPage page{&first, &second, &report, "compare"};
  return wrote_line(in.a.html, write_page(in, in.a.html, "--html", page));
}

}  // namespace

Outcome run_diff(Inspection& in) {
  const DiffOptions options = diff_options(in);
  std::string wrote;
  DiffReport report = [&] {
    OpenedCheckpoint a = in.open(in.a.words[0], in.open_options(in.a.from_a, in.a.root_a));
    OpenedCheckpoint b = in.open(in.a.words[1], in.open_options(in.a.from_b, in.a.root_b));
    DiffReport compared = diff_checkpoints(a, b, options);
    if (!in.a.html.empty()) wrote = write_comparison(in, a, b, compared);
    return compared;
  }();
  const bool whole = report.not_compared == 0 || !in.a.strict;
  const int exit = report.equal && whole ? kExitDone : kExitNegative;
  if (in.a.quiet) return {{}, exit, wrote};
  order(report, in.a.sort);
  const bool by_layer = in.a.by == "layer";
  std::vector<LayerDiff> layers;
  if (by_layer) layers = diff_by_layer(report);
  order(layers, in.a.sort);
  const auto limit = static_cast<std::size_t>(in.a.limit.value_or(kShownDifferences));
  if (in.a.limit && in.a.format != OutputFormat::kHuman) {
    report.tensors.resize(std::min(limit, report.tensors.size()));
    report.values.resize(std::min(limit, report.values.size()));
  }
  const std::vector<LayerDiff>* rows = by_layer ? &layers : nullptr;
  return {in.in_form(
              [&] { return diff_document(report, rows); },
              {{"layers", "layer"}, {"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}},
              [&] { return render_diff(report, rows, limit, in.screen); }),
          exit, wrote};
}

}  // namespace tessera::tools

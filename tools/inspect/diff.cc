// diff: where two checkpoints differ, and by how much.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/page.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kShownDifferences = 20;

/// The most changed first; what is there on one side alone, or of another form, before.
void sort_by_change(DiffReport& report) {
  const auto change = [](const TensorDiff& row) {
    constexpr double kMost = std::numeric_limits<double>::infinity();
    if (row.what != TensorDiff::What::kValues || std::isnan(row.relative_l2)) return kMost;
    return row.nonfinite_mismatch > 0 ? kMost : row.relative_l2;
  };
  std::ranges::stable_sort(report.tensors, [&](const TensorDiff& a, const TensorDiff& b) {
    return change(a) > change(b);
  });
}

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
  if (in.a.sort == "change") sort_by_change(report);
  if (in.a.sort == "name")
    std::ranges::stable_sort(report.tensors, natural_less, &TensorDiff::name);
  const auto limit = static_cast<std::size_t>(in.a.limit.value_or(kShownDifferences));
  if (in.a.limit && in.a.format != OutputFormat::kHuman) {
    report.tensors.resize(std::min(limit, report.tensors.size()));
    report.values.resize(std::min(limit, report.values.size()));
  }
  return {in.in_form([&] { return diff_document(report); },
                     {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}},
                     [&] { return render_diff(report, limit, in.screen); }),
          exit, wrote};
}

}  // namespace tessera::tools

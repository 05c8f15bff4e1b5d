// ls: the tensors and values of a checkpoint, row by row.
#include <tessera/base/error.h>

#include <array>
#include <memory>

#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

/// ls in the form that was asked for, row by row.
void write_listing(const Arguments& a, const LsReport& report, const LsRows& rows,
                   const Screen& screen, const Sink& sink) {
  const LsSource source{rows.size(), [&](std::size_t i) { return rows[i]; }};
  if (a.tree) return write_tree(report, source, screen, sink);
  if (a.format == OutputFormat::kHuman) return write_ls(report, source, a.chunks, screen, sink);
  const JsonRows json_rows{"tensors", rows.size(),
                           [&](std::size_t i) { return ls_row(rows[i], a.chunks); }};
  const Value document = ls_document(report);
  if (a.format == OutputFormat::kJson) return write_json(document, json_rows, sink);
  constexpr std::array<LineField, 3> kLines = {
      {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}}};
  write_ndjson(document, verb_name(a.verb), kLines, json_rows, sink);
}

}  // namespace

Outcome run_ls(Inspection& in) {
  if (in.a.tree && (in.a.format != OutputFormat::kHuman || in.a.chunks))
    fail(Code::kInvalidArgument, "--tree goes with neither --format nor --chunks",
         "--format json has every tensor");
  LsOptions options;
  options.chunks = in.a.chunks;
  options.rank = in.a.rank;
  options.file = in.a.file;
  if (!in.a.sort.empty()) options.sort = parse_ls_sort(in.a.sort);
  options.top = static_cast<std::size_t>(in.a.top.value_or(0));
  const auto opened = std::make_shared<OpenedCheckpoint>(in.open());
  const auto rows = std::make_shared<const LsRows>(opened->manifest, options);
  const auto report = std::make_shared<const LsReport>(list_all_but_rows(*opened, *rows));
  Outcome outcome;
  outcome.rest = [screen = in.screen, &a = in.a, opened, rows, report](const Sink& sink) {
    write_listing(a, *report, *rows, screen, sink);
  };
  return outcome;
}

}  // namespace tessera::tools

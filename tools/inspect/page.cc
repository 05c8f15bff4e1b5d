#include "tools/inspect/page.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/new_file.h"

namespace tessera::tools {

OpenOptions page_options(const Inspection& in, const std::string& from, const std::string& root,
                         bool reads_elements) {
  OpenOptions options = in.open_options(from, root);
  options.read.tolerate_damage = !reads_elements;
  options.read.tolerate_io_errors = false;
  return options;
}

ReportSide page_side(Inspection& in, OpenedCheckpoint& opened) {
  ReportSide side;
  side.opened = &opened;
  side.summary = summarize(opened);
  VerifyOptions quick;
  quick.level = VerifyLevel::kQuick;
  quick.open.read = read_options(in.a);
  quick.transfer = transfer_options(in.a, nullptr);
  side.findings = verify_opened(in.fs, opened, quick).findings;
  return side;
}

StatOptions page_stat_options(const Inspection& in, const OpenedCheckpoint& opened) {
  StatOptions options = in.a.stat;
  options.histograms_up_to = opened.manifest.tensors.size();
  options.both_histograms = true;
  options.row_norms = true;
  options.most_row_norms = kReportNorms;
  return options;
}

void keep_what_was_asked(StatReport& report, const StatOptions& asked) {
  const bool histograms = report.tensors.size() <= asked.histograms_up_to;
  for (TensorStat& tensor : report.tensors) {
    if (asked.log_histogram) tensor.histogram = tensor.log_histogram;
    tensor.log_histogram.reset();
    if (!histograms) tensor.histogram.reset();
    if (!asked.row_norms) tensor.row_norms.clear();
  }
}

WrittenPage write_page(const Inspection& in, const std::string& file, const char* flag,
                       const ReportPage& page) {
  WrittenPage written;
  const auto write = [&](const Sink& sink) {
    written.left_out = write_report_page(page, {}, [&](std::string_view piece) {
      sink(piece);
      written.bytes += piece.size();
    });
  };
  if (file == "-")
    write([&](std::string_view piece) { written.text += piece; });
  else
    write_new_file(file, flag, in.a.replace, in.host == nullptr, write);
  return written;
}

std::string wrote_line(const std::string& file, const WrittenPage& page) {
  std::string text =
      fmt::format("ckpt-inspect: wrote {}: {}\n", printable(file), format_bytes(page.bytes));
  for (const std::string& what : page.left_out) text += "ckpt-inspect: left out: " + what + "\n";
  return text;
}

}  // namespace tessera::tools

#pragma once
// The page of `ckpt-inspect report`: one HTML file that opens without a network, with all its data inside
// (share/report has its script and style, third_party/d3-* its charts).
//
// Names and values of a checkpoint are data: they stand in one JSON element, in which "<" is written as
// <, and the script puts them on the page as text. A content security policy in the page forbids
// requests of any kind.
#include <tessera/ops/diff.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/sink.h"

namespace tessera::tools {

/// Norms of rows that the page has of a matrix.
inline constexpr std::size_t kReportNorms = 256;

/// What is known of one checkpoint.
struct ReportSide {
  const OpenedCheckpoint* opened = nullptr;
  SummaryReport summary;
  std::vector<Note> findings;  // of verify --quick, and of stat where values were read
  std::optional<OptimReport> optim;
  std::optional<StatReport> stat;  // with both histograms
};

/// How large the page may be: `fixed_bytes`, and so many for each tensor. What does not fit is left
/// out, the least important first (row norms, then histograms, then where pieces lie), and the page
/// says so.
struct ReportBudget {
  std::uint64_t fixed_bytes = std::uint64_t{1} << 20;
  std::uint64_t bytes_per_tensor = 100;
  std::uint64_t stat_bytes_per_tensor = 600;  // where values were read
};

/// What a page is made of. Sections for which there is nothing are not there.
struct ReportPage {
  const ReportSide* a = nullptr;
  const ReportSide* b = nullptr;        // or none
  const DiffReport* diff = nullptr;     // or none
  std::string_view opens = "overview";  // the section that it opens with: its id in report.js
};

/// Returns what was left out, a sentence each.
std::vector<std::string> write_report_page(const ReportPage& page, const ReportBudget& budget,
                                           const Sink& sink);

struct ReportData {
  std::string json;  // {"schema":"tessera.page/1", ...}: what share/report/report.js reads
  std::vector<std::string> left_out;
};
/// `budget_bytes`: of the whole.
ReportData report_data(const ReportPage& page, std::uint64_t budget_bytes);

/// A page of this kind: `script` draws `json`, with the charts' library at hand.
void write_page(std::string_view script, std::string_view json, const Sink& sink);

/// The files of the pages, embedded when they were built.
struct ReportAssets {
  std::string_view page, style, shell, report, library, audit;  // report, audit: a page's script
};
const ReportAssets& report_assets();

}  // namespace tessera::tools

#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "tools/report/report.h"

namespace tessera::tools {
namespace {

/// JSON inside an HTML element of script: "<" alone could end it or begin a comment.
std::string escaped_for_html(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::vector<std::string> write_report_page(const ReportPage& page, const ReportBudget& budget,
                                           const Sink& sink) {
  const ReportAssets& assets = report_assets();
  std::uint64_t most = budget.fixed_bytes;
  for (const ReportSide* side : {page.a, page.b})
    if (side != nullptr)
      most += side->summary.tensors *
              (budget.bytes_per_tensor + (side->stat ? budget.stat_bytes_per_tensor : 0));
  const std::uint64_t assets_bytes = assets.page.size() + assets.style.size() +
                                     assets.shell.size() + assets.report.size() +
                                     assets.library.size();
  ReportData made = report_data(page, most - std::min(most, assets_bytes));
  write_page(assets.report, made.json, sink);
  return std::move(made.left_out);
}

void write_page(std::string_view script, std::string_view json, const Sink& sink) {
  const ReportAssets& assets = report_assets();
  const std::string data = escaped_for_html(json);
  const std::array<std::pair<std::string_view, std::string_view>, 5> parts = {
      {{"@STYLE@", assets.style},
       {"@DATA@", data},
       {"@LIBRARY@", assets.library},
       {"@SHELL@", assets.shell},
       {"@SCRIPT@", script}}};
  std::string_view rest = assets.page;
  for (const auto& [marker, text] : parts) {  // in the order in which they stand
    const std::size_t at = rest.find(marker);
    TESSERA_CHECK(at != rest.npos);
    sink(rest.substr(0, at));
    sink(text);
    rest.remove_prefix(at + marker.size());
  }
  sink(rest);
}

}  // namespace tessera::tools

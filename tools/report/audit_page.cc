#include "tools/report/audit_page.h"

#include <fmt/format.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <string>

#include "tools/documents/audit.h"
#include "tools/documents/json_report.h"
#include "tools/report/report.h"
#include "tools/version.h"

namespace tessera::tools {

void write_audit_page(const AuditReport& report, const Sink& sink) {
  AuditReport shown = report;
  const std::size_t each = 3 * std::max<std::size_t>(1, report.checkpoints.size());
  std::string left_out;
  if (report.layers.size() * each > kPageNumbers) {
    shown.layers.resize(std::max<std::size_t>(1, kPageNumbers / each));
    left_out = fmt::format("left out: the lines of {} of {} layers",
                           report.layers.size() - shown.layers.size(), report.layers.size());
  }
  JsonObject object;
  object.add("version", kVersion);
  object.add("audit", audit_document(shown));
  object.add("left_out", left_out.empty() ? Value() : json_text(left_out));
  write_page(report_assets().audit, dump_json(object.take()), sink);
}

}  // namespace tessera::tools

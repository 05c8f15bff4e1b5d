// Document of explain.
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value finding_row(const FindingInfo& row) {
  JsonObject object;
  object.add("code", row.code);
  object.add("severity", severity_name(row.severity));
  object.add("severities", row.severities);
  object.add("level", row.level.empty() ? Value() : json_text(row.level));
  object.add("meaning", row.meaning);
  object.add("names", row.names.empty() ? Value() : json_text(row.names));
  object.add("cause", row.cause);
  object.add("cure", row.cure);
  return object.take();
}

}  // namespace

Value explain_document(const std::vector<FindingInfo>& rows) {
  JsonObject object;
  object.add("schema", "tessera.explain/1");
  object.add("findings", json_map(rows, finding_row));
  return object.take();
}

}  // namespace tessera::tools

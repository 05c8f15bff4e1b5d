// Document of report: what was written.
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {

Value page_document(const std::string& path, std::uint64_t bytes, const SummaryReport& summary,
                    const std::vector<std::string>& left_out, const std::string& page) {
  JsonObject object;
  object.add("schema", "tessera.report/1");
  object.add("path", path);
  object.add("bytes", bytes);
  object.add("source", summary.path);
  object.add("format", summary.format);
  object.add("tensors", summary.tensors);
  object.add("left_out", json_list(left_out));
  if (path == "-") object.add("page", page);
  return object.take();
}

}  // namespace tessera::tools

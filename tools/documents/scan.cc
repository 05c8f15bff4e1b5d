// Document of scan.
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value scan_finding_row(const ScanFinding& f) {
  JsonObject object;
  object.add("verdict", safety_name(f.safety));
  object.add("message", f.message);
  object.add("name", f.name.empty() ? Value() : json_text(f.name));
  object.add("use", f.role.empty() ? Value() : json_text(f.role));
  object.add("inside", f.inside.empty() ? Value() : json_text(f.inside));
  object.add("offset",
             f.name.empty() ? Value() : Value::integer(static_cast<std::int64_t>(f.offset)));
  return object.take();
}

Value scanned_file_row(const ScannedFile& f) {
  JsonObject object;
  object.add("path", f.path);
  object.add("verdict", verdict_name(f.safety));
  object.add("kind", f.kind.empty() ? Value() : json_text(f.kind));
  object.add("findings", json_map(f.findings, scan_finding_row));
  object.add("more_findings", f.more_findings);
  object.add("use_instead", f.use_instead.empty() ? Value() : json_text(f.use_instead));
  return object.take();
}

Value scanned_link_row(const ScannedLink& link) {
  JsonObject object;
  object.add("path", link.path);
  object.add("target", link.target.empty() ? Value() : json_text(link.target));
  object.add("leaves", link.leaves);
  return object.take();
}

}  // namespace

std::string_view verdict_name(std::optional<Safety> safety) {
  return safety ? safety_name(*safety) : "not judged";
}

Value scan_document(const ScanReport& r) {
  JsonObject object;
  object.add("schema", "tessera.scan/1");
  object.add("path", r.paths.empty() ? std::string() : r.paths[0]);
  object.add("paths", json_list(r.paths));
  object.add("verdict", safety_name(r.safety));
  object.add("safe", r.safe);
  object.add("unknown", r.unknown);
  object.add("dangerous", r.dangerous);
  object.add("not_judged", r.not_judged);
  object.add("files", json_map(r.files, scanned_file_row));
  object.add("links", json_map(r.links, scanned_link_row));
  return object.take();
}

}  // namespace tessera::tools

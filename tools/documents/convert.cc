// Documents of reshard and convert: what was written (tessera.convert/1), or would be
// (tessera.plan/1).
#include <tessera/ops/seal.h>

#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value file_row(const ConvertedFile& file) {
  JsonObject object;
  object.add("path", file.path);
  object.add("bytes", file.size_bytes);
  object.add("tensor_bytes", file.tensor_bytes);
  object.add("tensors", file.tensors);
  return object.take();
}

Value transformation_row(const AppliedTransformation& applied) {
  JsonObject object;
  object.add("kind", applied.kind);
  object.add("detail", applied.detail);
  object.add("tensors", applied.tensors);
  object.add("changes", json_list(applied.changes));
  return object.take();
}

Value dtype_row(const DTypeTotal& total) {
  JsonObject object;
  object.add("dtype", std::string(torch_name(total.dtype)));
  object.add("tensors_before", total.tensors_before);
  object.add("bytes_before", total.bytes_before);
  object.add("tensors_after", total.tensors_after);
  object.add("bytes_after", total.bytes_after);
  return object.take();
}

void add_plan(JsonObject& object, const ConvertReport& r) {
  object.add("source_bytes", r.source_bytes);
  object.add("seal_bytes", r.seal_bytes);
  object.add("temporary_bytes", r.temporary_bytes);
  object.add("metadata_bytes", r.metadata_bytes);
  object.add("metadata_limit_bytes", r.metadata_limit_bytes);
  object.add("staged_bytes_bound", r.staged_bytes_bound);
  object.add("peak_memory_bound", r.peak_memory_bound);
  object.add("free_bytes", r.free_bytes);
  object.add("replaced_bytes", r.replaced_bytes);
}

void add_outcome(JsonObject& object, const ConvertReport& r) {
  object.add("published", r.published);
  object.add("bytes_read", r.bytes_read);
  object.add("bytes_written", r.bytes_written);
  object.add("resumed_bytes", r.resumed_bytes);
  object.add("seconds", r.seconds);
  object.add("verified", r.verified);
  JsonObject scope;
  scope.add("compared", json_list(r.verify_scope.compared));
  scope.add("not_compared", json_list(r.verify_scope.not_compared));
  object.add("verify_scope", r.verified ? scope.take() : Value());
  object.add("verify_findings", json_list(r.verify_findings));
  object.add("not_compared", r.not_compared);
}

}  // namespace

Value convert_document(const ConvertReport& r, bool dry_run) {
  JsonObject object;
  object.add("schema", dry_run ? "tessera.plan/1" : "tessera.convert/1");
  object.add("path", r.destination);
  object.add("format", r.to);
  object.add("source", r.source);
  object.add("source_format", r.from);
  object.add("world_size", r.world_size);
  object.add("tensors", r.tensors);
  object.add("bytes", r.output_bytes);
  if (dry_run)
    add_plan(object, r);
  else
    add_outcome(object, r);
  object.add("files", json_map(r.files, file_row));
  object.add("assets", json_list(r.assets));
  object.add("dropped", json_list(r.dropped));
  object.add("balance", encode_balance(r.balance));
  object.add("transformations", json_map(r.transformations, transformation_row));
  object.add("dtypes", json_map(r.dtypes, dtype_row));
  object.add("lost", json_map(r.lost, lost_row));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

}  // namespace tessera::tools

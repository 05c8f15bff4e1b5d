#include "tools/documents/audit.h"

#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value text_or_null(const std::string& text) { return text.empty() ? Value() : json_text(text); }

Value audited_row(const AuditedCheckpoint& row) {
  JsonObject object;
  object.add("name", row.name);
  object.add("path", row.path);
  object.add("series", row.series);
  object.add("step", row.step());
  object.add("name_step", row.name_step);
  object.add("stored_step", row.stored_step);
  object.add("stored_step_source", text_or_null(row.stored_step_source));
  object.add("optimizer_step", row.optimizer_step);
  object.add("format", text_or_null(row.format));
  object.add("world_size", row.world_size);
  object.add("bytes", row.bytes);
  object.add("tensors", row.tensors);
  object.add("parameters_with_state", row.parameters_with_state);
  object.add("complete", row.complete);
  object.add("problem", text_or_null(row.problem));
  object.add("refused", row.is_refused);
  object.add("latest", row.is_latest);
  object.add("sealed", row.sealed);
  object.add("root", text_or_null(row.root));
  object.add("same_as", text_or_null(row.same_as));
  object.add("sound", row.sound);
  object.add("bytes_read", row.bytes_read);
  object.add("from_cache", row.from_cache);
  return object.take();
}

Value retention_row(const AuditRetention& row) {
  JsonObject object;
  object.add("name", row.name);
  object.add("bytes", row.bytes);
  object.add("reason", row.reason);
  return object.take();
}

Value number_or_null(const std::optional<double>& value) {
  return value ? json_real(*value) : Value();
}

Value audit_layer(const AuditLayer& layer) {
  JsonObject object;
  object.add("series", layer.series);
  object.add("name", layer.name);
  object.add("norm", json_map(layer.norm, number_or_null));
  object.add("update", json_map(layer.update, number_or_null));
  object.add("v_max", json_map(layer.v_max, number_or_null));
  return object.take();
}

Value sampling_value(const AuditSampling& sampling) {
  JsonObject object;
  object.add("bytes", sampling.bytes);
  object.add("bytes_read", sampling.bytes_read);
  object.add("every", sampling.every);
  object.add("seen_share", sampling.seen_share);
  object.add("norm_error", sampling.norm_error);
  object.add("sampled_elements", sampling.sampled_elements);
  return object.take();
}

}  // namespace

std::string_view trend_name(TrendOf of) {
  switch (of) {
    case TrendOf::kNorm:
      return "norm";
    case TrendOf::kVMax:
      return "v_max";
    case TrendOf::kUpdate:
      break;
  }
  return "update";
}

Value audit_document(const AuditReport& r) {
  JsonObject object;
  object.add("schema", "tessera.audit/1");
  object.add("path", r.path);
  object.add("ok", r.ok());
  object.add("pointer", text_or_null(r.pointer));
  object.add("pointer_target", text_or_null(r.pointer_target));
  object.add("newest_whole", text_or_null(r.newest_whole));
  object.add("newest_sound", text_or_null(r.newest_sound));
  object.add("deep", r.deep);
  object.add("sampling", r.deep ? sampling_value(r.sampling) : Value());
  object.add("retention_bytes", r.retention_bytes);
  object.add("checkpoints", json_map(r.checkpoints, audited_row));
  object.add("findings", json_notes(r.findings));
  object.add("retention", json_map(r.retention, retention_row));
  object.add("layers", json_map(r.layers, audit_layer));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value trend_document(const TrendReport& r) {
  ValueList points;
  for (const TrendLine& line : r.lines)
    for (std::size_t i = 0; i < line.values.size(); ++i) {
      if (!line.values[i]) continue;
      JsonObject point;
      point.add("tensor", line.tensor);
      point.add("series", line.series);
      point.add("checkpoint", r.checkpoints[i].name);
      point.add("step", r.checkpoints[i].step());
      point.add("value", *line.values[i]);
      points.push_back(point.take());
    }
  JsonObject object;
  object.add("schema", "tessera.trend/1");
  object.add("path", r.path);
  object.add("measure", trend_name(r.of));
  object.add("sampling", sampling_value(r.sampling));
  object.add("points", Value::list(std::move(points)));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

}  // namespace tessera::tools

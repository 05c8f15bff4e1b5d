// Documents of summary, ls and show.
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value byte_row(const ByteRow& row) {
  JsonObject object;
  object.add("key", row.key);
  object.add("tensors", row.tensors);
  object.add("numel", row.numel);
  object.add("bytes", row.bytes);
  return object.take();
}

Value root_row(const RootRow& row) {
  JsonObject object;
  object.add("name", row.name);
  object.add("role", row.role);
  object.add("tensors", row.tensors);
  object.add("values", row.values);
  object.add("bytes", row.bytes);
  return object.take();
}

Value group_row(const GroupSummary& group) {
  JsonObject object;
  object.add("index", group.index);
  object.add("members", group.members);
  object.add("lr", group.lr);
  object.add("weight_decay", group.weight_decay);
  return object.take();
}

Value optimizer_summary_row(const OptimizerSummary& optimizer) {
  JsonObject object;
  object.add("root", optimizer.root);
  object.add("kind", optimizer.kind);
  object.add("kind_source", optimizer.kind_source);
  object.add("dialect", optimizer.dialect);
  object.add("leaves", json_list(optimizer.leaves));
  object.add("parameters_with_state", optimizer.parameters_with_state);
  object.add("groups", json_map(optimizer.groups, group_row));
  return object.take();
}

Value number_row(const SourcedNumber& number) {
  JsonObject object;
  object.add("name", number.name);
  object.add("value", number.value);
  object.add("source", number.source);
  return object.take();
}

Value global_row(const GlobalUse& use) {
  JsonObject object;
  object.add("name", use.name);
  object.add("verdict", verdict_name(use.verdict));
  object.add("file", use.file.empty() ? Value() : json_text(use.file));
  return object.take();
}

Value run_row(const RunRow& row) {
  JsonObject object;
  object.add("path", row.path);
  object.add("name", row.name);
  object.add("step", row.step);
  object.add("stored_step", row.stored_step);
  object.add("format", row.format.empty() ? Value() : json_text(row.format));
  object.add("world_size", row.world_size);
  object.add("bytes", row.bytes);
  object.add("disk_bytes", row.disk_bytes);
  object.add("modified", row.modified_ns / 1'000'000'000);
  object.add("complete", row.complete);
  object.add("problem", row.problem.empty() ? Value() : json_text(row.problem));
  object.add("refused", row.is_refused);
  object.add("latest", row.is_latest);
  return object.take();
}

Value chunk_row(const ChunkRow& row) {
  JsonObject object;
  object.add("offsets", json_list(row.offsets));
  object.add("lengths", json_list(row.lengths));
  const std::vector<std::int64_t> range{row.flat_begin, row.flat_end};
  object.add("flat_range", row.is_flat ? json_list(range) : Value());
  object.add("source", row.source);
  object.add("file", row.file.empty() ? Value() : json_text(row.file));
  object.add("file_offset", row.file_offset);
  object.add("file_length", row.file_length);
  object.add("rank", row.rank);
  object.add("replica", row.replica);
  return object.take();
}

Value json_aliases(const std::vector<Alias>& aliases) {
  ValueDict entries;
  for (const auto& [name, kept] : aliases) entries.emplace_back(json_text(name), json_text(kept));
  return Value::dict(std::move(entries));
}

}  // namespace

std::string_view verdict_name(GlobalUse::Verdict verdict) {
  switch (verdict) {
    case GlobalUse::Verdict::kKnown:
      return "allowed";
    case GlobalUse::Verdict::kOpaque:
      return "opaque";
    case GlobalUse::Verdict::kDenied:
      return "denied";
  }
  return "";
}

Value beside_row(const Beside& beside) {
  using Kind = Beside::Kind;
  JsonObject object;
  object.add("path", beside.path);
  object.add("kind", beside.kind == Kind::kOptimizer ? "optimizer"
                     : beside.kind == Kind::kWeights ? "weights"
                     : beside.kind == Kind::kOther   ? "other"
                                                     : "sidecar");
  object.add("what", beside.what);
  object.add("bytes", beside.bytes);
  return object.take();
}

Value lost_row(const LostTensor& lost) {
  JsonObject object;
  object.add("name", lost.name);
  object.add("reason", lost.reason);
  return object.take();
}

Value summary_document(const SummaryReport& r, const ScanReport* scan) {
  JsonObject object;
  object.add("schema", "tessera.summary/1");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("dialect", r.dialect);
  object.add("detected_by", r.detected_by);
  object.add("complete", r.complete);
  object.add("problems", json_list(r.problems));
  object.add("files", r.files);
  object.add("file_bytes", r.file_bytes);
  object.add("world_size", r.world_size);
  object.add("world_size_source", r.world_size_source);
  object.add("numbers", json_map(r.numbers, number_row));
  object.add("tensors", r.tensors);
  object.add("embedded_tensors", r.embedded_tensors);
  object.add("chunks", r.chunks);
  object.add("values", r.values);
  object.add("parameters", r.parameters);
  object.add("parameter_numel", r.parameter_numel);
  object.add("trainable", r.trainable);
  object.add("frozen", r.frozen);
  object.add("buffers", r.buffers);
  object.add("tensor_bytes", r.tensor_bytes);
  object.add("by_kind", json_map(r.by_kind, byte_row));
  object.add("by_dtype", json_map(r.by_dtype, byte_row));
  object.add("roots", json_map(r.roots, root_row));
  object.add("optimizers", json_map(r.optimizers, optimizer_summary_row));
  object.add("tied", json_map(r.tied, [](const auto& names) { return json_list(names); }));
  object.add("aliases", json_aliases(r.aliases));
  object.add("padded_tensors", r.padded_tensors);
  JsonObject provenance;
  for (const auto& [key, text] : r.provenance) provenance.add(key, text);
  object.add("provenance", provenance.take());
  object.add("globals", json_map(r.globals, global_row));
  if (scan != nullptr) object.add("scan", scan_document(*scan));
  object.add("beside", json_map(r.beside, beside_row));
  object.add("lost", json_map(r.lost, lost_row));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value run_document(const RunListing& listing, const ScanReport* scan) {
  JsonObject object;
  object.add("schema", "tessera.run/1");
  object.add("path", listing.path);
  object.add("pointer", listing.pointer.empty() ? Value() : json_text(listing.pointer));
  object.add("pointer_target",
             listing.pointer_target.empty() ? Value() : json_text(listing.pointer_target));
  object.add("pointer_stale", listing.pointer_stale);
  const RunRow* newest = listing.newest_whole();
  object.add("newest_whole", newest == nullptr ? Value() : json_text(newest->name));
  object.add("free_bytes", listing.free_bytes);
  object.add("others", json_list(listing.others));
  object.add("checkpoints", json_map(listing.rows, run_row));
  if (scan != nullptr) object.add("scan", scan_document(*scan));
  return object.take();
}

std::string_view path_answer_name(PathStep::Answer answer) {
  switch (answer) {
    case PathStep::Answer::kNotAsked:
      break;
    case PathStep::Answer::kYes:
      return "yes";
    case PathStep::Answer::kNo:
      return "no";
    case PathStep::Answer::kFailed:
      return "failed";
  }
  return "not asked";
}

Value path_document(const PathExplanation& r) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Value() : json_text(text);
  };
  JsonObject object;
  object.add("schema", "tessera.path/1");
  object.add("path", r.path);
  object.add("kind", r.is_folder ? "folder" : "file");
  object.add("rules", json_map(r.steps, [&](const PathStep& step) {
               JsonObject row;
               row.add("rule", step.rule);
               row.add("answer", path_answer_name(step.answer));
               row.add("reason", text_or_null(step.reason));
               return row.take();
             }));
  object.add("found", text_or_null(r.found));
  object.add("format", text_or_null(r.format));
  object.add("failure", text_or_null(r.failure.message));
  return object.take();
}

Value ls_row(const LsTensor& tensor, bool with_chunks) {
  JsonObject object;
  object.add("name", tensor.name.view());
  object.add("dtype", tensor.dtype);
  object.add("shape", json_list(tensor.shape));
  object.add("numel", tensor.numel);
  object.add("bytes", tensor.bytes);
  object.add("kind", kind_name(tensor.kind));
  object.add("chunks", tensor.chunks);
  object.add("sharding", tensor.sharding);
  object.add("replicas", tensor.replicas);
  object.add("files", json_list(tensor.files));
  if (with_chunks) object.add("chunk_table", json_map(tensor.table, chunk_row));
  return object.take();
}

Value ls_document(const LsReport& r) {
  JsonObject object;
  object.add("schema", "tessera.ls/1");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("dialect", r.dialect);
  object.add("world_size", r.world_size);
  object.add("world_size_source", r.world_size_source);
  object.add("tensors", Value::list({}));
  object.add("values", json_values_object(r.values));
  object.add("aliases", json_aliases(r.aliases));
  object.add("total_numel", r.total_numel);
  object.add("total_bytes", r.total_bytes);
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value show_document(const ShowReport& r) {
  JsonObject object;
  object.add("schema", "tessera.show/1");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("name", r.name);
  if (r.what == ShowReport::What::kValue) {
    object.add("what", "value");
    object.add("value", r.value);
    object.add("children", json_list(r.children));
    return object.take();
  }
  object.add("what", "tensor");
  object.add("tensor", ls_row(r.tensor, true));
  JsonObject facts;
  for (const auto& [key, text] : r.facts) facts.add(key, text);
  object.add("facts", facts.take());
  object.add("slice_origin", json_list(r.slice_origin));
  object.add("slice_shape", json_list(r.slice_shape));
  object.add("elided", r.elided);
  object.add("shown", json_map(r.shown, [](const auto& index) { return json_list(index); }));
  object.add("values", json_list(r.values));
  object.add("element_text_is_number", r.element_text_is_number);
  return object.take();
}

}  // namespace tessera::tools

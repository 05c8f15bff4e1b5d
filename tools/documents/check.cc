// Documents of stat, optim, hash, verify and diff.
#include <fmt/format.h>

#include <algorithm>

#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {
namespace {

Value histogram_object(const Histogram& histogram) {
  JsonObject object;
  object.add("scale", histogram.logarithmic ? "log10" : "linear");
  object.add("low", histogram.low);
  object.add("high", histogram.high);
  object.add("zeros", histogram.zeros);
  object.add("counts", json_list(histogram.counts));
  return object.take();
}

Value quantiles_object(const TensorStat& tensor, const std::vector<double>& fractions) {
  JsonObject object;
  for (std::size_t i = 0; i < std::min(tensor.quantiles.size(), fractions.size()); ++i)
    object.add(percent_name(fractions[i]), tensor.quantiles[i]);
  return object.take();
}

Value stat_row(const TensorStat& t, const std::vector<double>& quantiles) {
  JsonObject object;
  object.add("name", t.name);
  object.add("dtype", t.dtype);
  object.add("shape", json_list(t.shape));
  object.add("kind", kind_name(t.kind));
  if (!t.skipped.empty()) {
    object.add("skipped", t.skipped);
    return object.take();
  }
  object.add("count", t.count);
  object.add("finite", t.finite);
  object.add("nan", t.nan);
  object.add("pos_inf", t.pos_inf);
  object.add("neg_inf", t.neg_inf);
  object.add("zeros", t.zeros);
  object.add("subnormal", t.subnormal);
  object.add("outside_bf16", t.outside_bf16);
  object.add("outside_fp16", t.outside_fp16);
  object.add("first_nan", t.first_nan);
  object.add("first_inf", t.first_inf);
  object.add("min", t.min);
  object.add("max", t.max);
  object.add("mean", t.mean);
  object.add("std", t.std);
  object.add("l1", t.l1);
  object.add("l2", t.l2);
  object.add("abs_max", t.abs_max);
  object.add("constant", t.constant);
  object.add("all_zero", t.all_zero);
  object.add("quantiles", quantiles_object(t, quantiles));
  object.add("histogram", t.histogram ? histogram_object(*t.histogram) : Value());
  if (!t.row_norms.empty()) object.add("row_norms", json_list(t.row_norms));
  return object.take();
}

Value leaf_row(const OptimReportLeaf& leaf) {
  JsonObject object;
  object.add("name", leaf.name);
  object.add("dtype", leaf.dtype.empty() ? Value() : json_text(leaf.dtype));
  object.add("shape", json_list(leaf.shape));
  object.add("matches_weight", leaf.matches_weight);
  return object.take();
}

Value parameter_row(const OptimReportParameter& p) {
  JsonObject object;
  object.add("name", p.fqn);
  object.add("stored_key", p.stored_key);
  object.add("inferred", p.inferred);
  object.add("certain", p.certain);
  object.add("group", p.group < 0 ? Value() : Value::integer(p.group));
  object.add("has_weight", p.has_weight);
  object.add("leaves", json_map(p.leaves, leaf_row));
  object.add("step", p.step);
  object.add("step_origin", step_origin_name(p.step_origin));
  return object.take();
}

Value optim_group_row(const OptimReportGroup& group) {
  JsonObject object;
  object.add("index", group.index);
  object.add("members", json_list(group.members));
  object.add("options", json_values_object(group.options));
  return object.take();
}

Value leaf_set_row(const LeafSetRow& row) {
  JsonObject object;
  object.add("leaves", row.leaves);
  object.add("step", row.step);
  object.add("count", row.count);
  return object.take();
}

Value update_row(const UpdateRow& row) {
  JsonObject object;
  object.add("name", row.fqn);
  object.add("ratio", row.ratio);
  object.add("update_norm", row.update_norm);
  object.add("weight_norm", row.weight_norm);
  object.add("m_norm", row.m_norm);
  object.add("v_max", row.v_max);
  object.add("lr", row.lr);
  object.add("bias_corrected", row.bias_corrected);
  object.add("growth", row.growth);
  return object.take();
}

Value optimizer_row(const OptimizerReport& r) {
  JsonObject object;
  object.add("root", r.root);
  object.add("kind", r.kind);
  object.add("dialect", r.dialect);
  object.add("parameters", json_map(r.parameters, parameter_row));
  object.add("groups", json_map(r.groups, optim_group_row));
  object.add("leaf_sets", json_map(r.leaf_sets, leaf_set_row));
  object.add("updates", json_map(r.updates, update_row));
  object.add("update_note", r.update_note.empty() ? Value() : json_text(r.update_note));
  return object.take();
}

Value quantizer_object(const HashedQuantizer& quantizer) {
  JsonObject object;
  object.add("scheme", quantizer.scheme);
  if (quantizer.is_per_channel()) {
    object.add("axis", quantizer.axis);
    object.add("scales", quantizer.scales);
    object.add("zero_points", quantizer.zero_points);
  } else {
    object.add("scale", quantizer.scale);
    object.add("zero_point", quantizer.zero_point);
  }
  return object.take();
}

Value hashed_value_row(const HashedValue& value) {
  JsonObject object;
  object.add("name", value.name);
  object.add("kind", value.is_dict ? "dict" : "value");
  object.add("sha256", value.sha256);
  object.add("whole", value.whole);
  return object.take();
}

Value hash_row(const HashedTensor& tensor) {
  JsonObject object;
  object.add("name", tensor.name);
  object.add("dtype", tensor.dtype);
  object.add("shape", json_list(tensor.shape));
  object.add("sha256", tensor.sha256);
  if (tensor.quantizer) object.add("quantizer", quantizer_object(*tensor.quantizer));
  return object.take();
}

Value tensor_diff_row(const TensorDiff& d) {
  JsonObject object;
  object.add("name", d.name);
  object.add("what", diff_kind_name(d.what));
  if (d.what == TensorDiff::What::kShape || d.what == TensorDiff::What::kDType ||
      d.what == TensorDiff::What::kQuantizer) {
    object.add("a", d.a);
    object.add("b", d.b);
  }
  if (d.what != TensorDiff::What::kValues) return object.take();
  object.add("count", d.count);
  object.add("numel", d.numel);
  object.add("first", d.first);
  object.add("first_index", json_list(d.first_index));
  object.add("first_a", d.first_a);
  object.add("first_b", d.first_b);
  object.add("max_abs", d.max_abs);
  object.add("max_rel", d.max_rel);
  object.add("l2", d.l2);
  object.add("relative_l2", d.relative_l2);
  object.add("cosine", d.cosine);
  object.add("nonfinite_mismatch", d.nonfinite_mismatch);
  return object.take();
}

Value value_diff_row(const ValueDiff& d) {
  JsonObject object;
  object.add("name", d.name);
  object.add("what", diff_kind_name(d.what));
  object.add("a", d.a);
  object.add("b", d.b);
  if (d.path.empty()) return object.take();
  object.add("at", d.path);
  if (d.at_a) object.add("at_a", *d.at_a);
  if (d.at_b) object.add("at_b", *d.at_b);
  return object.take();
}

Value cause_row(const DamageCause& cause) {
  JsonObject object;
  object.add("code", code_text(cause.code));
  object.add("severity", severity_name(cause.severity));
  object.add("file", cause.file.empty() ? Value() : json_text(cause.file));
  object.add("message", cause.message);
  object.add("tensors", cause.tensors.size());
  object.add("findings", cause.findings);
  return object.take();
}

}  // namespace

std::string percent_name(double fraction) { return fmt::format("{:.10g}", fraction * 100); }

std::string_view verify_level_name(VerifyLevel level) {
  switch (level) {
    case VerifyLevel::kQuick:
      return "quick";
    case VerifyLevel::kFull:
      return "full";
    case VerifyLevel::kDeep:
      return "deep";
  }
  return "";
}

std::string_view diff_kind_name(TensorDiff::What what) {
  switch (what) {
    case TensorDiff::What::kMissing:
      return "missing";
    case TensorDiff::What::kUnexpected:
      return "unexpected";
    case TensorDiff::What::kShape:
      return "shape";
    case TensorDiff::What::kDType:
      return "dtype";
    case TensorDiff::What::kQuantizer:
      return "quantizer";
    case TensorDiff::What::kValues:
      return "values";
  }
  return "";
}

std::string_view diff_kind_name(ValueDiff::What what) {
  switch (what) {
    case ValueDiff::What::kMissing:
      return "missing";
    case ValueDiff::What::kUnexpected:
      return "unexpected";
    case ValueDiff::What::kDiffers:
      return "differs";
  }
  return "";
}

Value stat_document(const StatReport& r) {
  JsonObject object;
  object.add("schema", "tessera.stat/1");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("ok", r.ok());
  object.add("bytes", r.bytes);
  object.add("tensors",
             json_map(r.tensors, [&](const TensorStat& t) { return stat_row(t, r.quantiles); }));
  object.add("findings", json_notes(r.findings));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value optim_document(const OptimReport& r) {
  JsonObject object;
  object.add("schema", "tessera.optim/1");
  object.add("path", r.path);
  object.add("other_path", r.other_path.empty() ? Value() : json_text(r.other_path));
  object.add("format", r.format);
  object.add("ok", r.ok());
  object.add("optimizers", json_map(r.optimizers, optimizer_row));
  object.add("findings", json_notes(r.findings));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value hash_document(const HashReport& r) {
  JsonObject object;
  object.add("schema", "tessera.hash/2");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("root", r.root);
  object.add("values_root", r.values_root);
  object.add("root_v1", r.root_v1);
  object.add("values_root_v1", r.values_root_v1);
  object.add("bytes", r.bytes);
  object.add("not_compared", r.not_compared);
  object.add("tensors", json_map(r.tensors, hash_row));
  object.add("values", json_map(r.value_digests, hashed_value_row));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value verified_beside_row(const VerifiedBeside& row) {
  Value beside = beside_row(row.beside);
  JsonObject object;
  for (const auto& [key, value] : beside.as_dict()) object.add(key.as_string(), value);
  object.add("opened", row.opened);
  object.add("ok", row.ok);
  object.add("tensors", row.tensors);
  object.add("why", row.why.empty() ? Value() : json_text(row.why));
  return object.take();
}

Value verify_document(const VerifyReport& r) {
  JsonObject object;
  object.add("schema", "tessera.verify/1");
  object.add("path", r.path);
  object.add("format", r.format);
  object.add("level", verify_level_name(r.level));
  object.add("ok", r.ok);
  object.add("findings", json_notes(r.findings));
  object.add("causes", json_map(r.causes, cause_row));
  object.add("files", r.files);
  object.add("tensors", r.tensors);
  object.add("chunks", r.chunks);
  object.add("bytes_read", r.bytes_read);
  object.add("bytes_with_sums", r.bytes_with_sums);
  object.add("tensor_bytes_stored", r.tensor_bytes_stored);
  object.add("sealed", r.sealed);
  object.add("not_compared", r.not_compared);
  object.add("other_files", r.other_files);
  object.add("beside", json_map(r.beside, verified_beside_row));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

Value verify_documents(const std::vector<VerifyReport>& reports) {
  if (reports.size() == 1) return verify_document(reports[0]);
  JsonObject object;
  object.add("schema", "tessera.verify/1");
  object.add("path", reports[0].path);
  object.add("ok", std::all_of(reports.begin(), reports.end(), [](const auto& r) { return r.ok; }));
  ValueList findings;
  for (const VerifyReport& report : reports) {
    for (const Note& note : report.findings) {
      JsonObject finding;
      finding.add("path", report.path);
      const Value path = finding.take();
      const Value rest = json_note(note);
      ValueDict entries = path.as_dict();
      entries.insert(entries.end(), rest.as_dict().begin(), rest.as_dict().end());
      findings.push_back(Value::dict(std::move(entries)));
    }
  }
  object.add("findings", Value::list(std::move(findings)));
  object.add("checkpoints", json_map(reports, verify_document));
  return object.take();
}

namespace {

Value layer_diff_row(const LayerDiff& layer) {
  JsonObject object;
  object.add("name", layer.name);
  object.add("tensors", layer.tensors);
  object.add("other_form", layer.other_form);
  object.add("relative_l2", layer.relative_l2);
  object.add("most_changed", layer.most_changed.empty() ? Value() : json_text(layer.most_changed));
  object.add("most_relative_l2", layer.most_relative_l2);
  return object.take();
}

}  // namespace

Value diff_document(const DiffReport& r, const std::vector<LayerDiff>* layers) {
  JsonObject object;
  object.add("schema", "tessera.diff/1");
  object.add("path", r.path_a);
  object.add("path_a", r.path_a);
  object.add("path_b", r.path_b);
  object.add("format_a", r.format_a);
  object.add("format_b", r.format_b);
  object.add("equal", r.equal);
  object.add("tensors_compared", r.tensors_compared);
  object.add("tensors_equal", r.tensors_equal);
  object.add("values_compared", r.values_compared);
  object.add("not_compared", r.not_compared);
  object.add("bytes", r.bytes);
  if (layers != nullptr) object.add("layers", json_map(*layers, layer_diff_row));
  object.add("tensors", json_map(r.tensors, tensor_diff_row));
  object.add("values", json_map(r.values, value_diff_row));
  object.add("notes", json_notes(r.notes));
  return object.take();
}

}  // namespace tessera::tools

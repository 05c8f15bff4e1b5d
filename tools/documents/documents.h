#pragma once
// The JSON document of each command (docs/json/*.schema.json publish them). Pure functions of the
// reports.
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/open.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/scan.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/state/findings.h>

#include <string_view>
#include <vector>

namespace tessera::tools {

/// `scan`: what --globals adds, or nullptr.
Value summary_document(const SummaryReport& report, const ScanReport* scan = nullptr);
Value run_document(const RunListing& listing, const ScanReport* scan = nullptr);
Value path_document(const PathExplanation& explanation);
/// Without the rows of its field "tensors", which are made one by one.
Value ls_document(const LsReport& report);
Value ls_row(const LsTensor& tensor, bool with_chunks);
Value show_document(const ShowReport& report);
Value stat_document(const StatReport& report);
Value optim_document(const OptimReport& report);
Value hash_document(const HashReport& report);
Value verify_document(const VerifyReport& report);
/// One checkpoint: its own document. Several: {"schema", "ok", "path" of the first, "checkpoints":
/// [documents]}.
Value verify_documents(const std::vector<VerifyReport>& reports);
Value scan_document(const ScanReport& report);
/// `path`: of the page; `bytes`: its size; `page`: itself, where `path` is "-".
Value page_document(const std::string& path, std::uint64_t bytes, const SummaryReport& summary,
                    const std::vector<std::string>& left_out, const std::string& page);
Value explain_document(const std::vector<FindingInfo>& rows);
/// `layers`: of --by layer, or nullptr.
Value diff_document(const DiffReport& report, const std::vector<LayerDiff>* layers = nullptr);
Value convert_document(const ConvertReport& report, bool dry_run);

/// Rows that several documents have.
Value beside_row(const Beside& beside);
Value lost_row(const LostTensor& lost);

/// How a quantile is written: "99", "99.9".
std::string percent_name(double fraction);
/// "yes", "no", "failed", "not asked"
std::string_view path_answer_name(PathStep::Answer answer);
std::string_view verify_level_name(VerifyLevel level);
std::string_view diff_kind_name(TensorDiff::What what);
std::string_view diff_kind_name(ValueDiff::What what);
std::string_view verdict_name(GlobalUse::Verdict verdict);
/// "safe", "unknown", "dangerous", "not judged"
std::string_view verdict_name(std::optional<Safety> safety);

}  // namespace tessera::tools

#pragma once
// Reports as people read them. Pure functions of a report and the screen; every name from a file
// goes through tessera::printable first, so that it cannot drive the terminal.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/documents/documents.h"
#include "tools/render/screen.h"
#include "tools/sink.h"

namespace tessera::tools {

/// At most 40 lines, but for `globals`, which lists every pickle global below.
std::string render_summary(const SummaryReport& report, bool globals, const Screen& screen);
std::string render_run(const RunListing& listing, const Screen& screen);
/// --explain-path: a line per rule.
std::string render_path(const PathExplanation& explanation, const Screen& screen);
/// `report` without its rows, which `source` gives, more than once.
struct LsSource {
  std::size_t count = 0;
  std::function<LsTensor(std::size_t i)> tensor;
};
void write_ls(const LsReport& report, const LsSource& source, bool chunks, const Screen& screen,
              const Sink& sink);
/// Modules with their sizes instead of a row for each tensor.
void write_tree(const LsReport& report, const LsSource& source, const Screen& screen,
                const Sink& sink);
std::string render_show(const ShowReport& report, const Screen& screen);
/// The first lines of the same: type, shape, size, what else is known.
std::string show_facts(const ShowReport& report, const Screen& screen);
/// The numbers of one tensor, with its histogram where it has one.
std::string stat_in_full(const TensorStat& stat, const std::vector<double>& quantiles,
                         const Screen& screen);
std::string render_stat(const StatReport& report, const Screen& screen);
/// At most `most` rows of each ranking.
std::string render_optim(const OptimReport& report, std::size_t most, const Screen& screen);
std::string render_hash(const HashReport& report, const Screen& screen);
/// What is safe is counted, and the first of it listed; all else is listed with its reasons.
std::string render_scan(const ScanReport& report, const Screen& screen);
/// One code or a few in full; all of them as one line each.
std::string render_explain(const std::vector<FindingInfo>& rows, const Screen& screen);
enum class CodePage : std::uint8_t { kVerify, kOptim, kAudit };
/// The tables of docs/verify-codes.md, docs/optim-codes.md or docs/audit-codes.md.
std::string codes_page(CodePage page);
std::string render_verify(const VerifyReport& report, const Screen& screen);
/// At most `limit` differences of tensors, or of `layers` where they are given, and as many of
/// values.
std::string render_diff(const DiffReport& report, const std::vector<LayerDiff>* layers,
                        std::size_t limit, const Screen& screen);
/// What the source holds, what was written, and what was left out for which reason: one paragraph,
/// not clipped; "" where everything was written and nothing lies beside the source.
std::string render_balance(const Balance& balance);
/// "optimizer.pt (optimizer state, 1.2 MB)"
std::string beside_line(const Beside& beside);
std::string render_convert(const ConvertReport& report, bool dry_run, const Screen& screen);

/// What is said of many tensors becomes one line that names the first.
std::vector<Note> grouped_notes(const std::vector<Note>& notes, std::string_view noun);
/// "error CK012 file: message" lines, wrapped; at most `limit`, then how many more.
std::string render_notes(const std::vector<Note>& notes, std::size_t limit, const Screen& screen);
/// "label      text" with the label in its column; `text` is clipped to the screen.
/// "name  facts"; where the line is too short, the facts below the name, which keeps its letters.
std::string name_and_facts(std::string_view name, std::string_view facts, const Screen& screen,
                           Tint tint = Tint::kBold);
std::string fact_line(std::string_view label, std::string_view text, const Screen& screen);
/// The same over up to `limit` lines.
std::string fact_lines(std::string_view label, std::string_view text, int limit,
                       const Screen& screen);
/// Where each chunk lies in its tensor, drawn in characters; "" for one chunk.
std::string chunk_map(const LsTensor& tensor, const Screen& screen);
/// A line for each of at most `most` chunks: its place, and where it is stored.
std::string chunk_table(const LsTensor& tensor, std::size_t most, const Screen& screen);
/// A chunk's place: "[0:2, 0:3]" or "[0:8, 0:3] elements 4..12".
std::string chunk_place(const ChunkRow& row);
/// "head = embed; ...": names that are recorded, and the tensor stored for each.
std::string aliases_text(const std::vector<Alias>& aliases);
/// One line of JSON, escaped for the terminal.
std::string value_text(const Value& value);
/// "; 3 values not compared to the end"; "" for none.
std::string not_compared_text(std::uint64_t values);

}  // namespace tessera::tools

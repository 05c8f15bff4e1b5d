#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/ops/transform.h>
#include <tessera/state/findings.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>

#include "tools/command.h"
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"
#include "tools/failure.h"
#include "tools/new_file.h"
#include "tools/progress_reporter.h"
#include "tools/render/render.h"
#include "tools/reopen.h"
#include "tools/report/report.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kShownDifferences = 20;

/// ls in the form that was asked for, row by row.
void write_listing(const Arguments& a, const LsReport& report, const LsRows& rows,
                   const Screen& screen, const Sink& sink) {
  const LsSource source{rows.size(), [&](std::size_t i) { return rows[i]; }};
  if (a.tree) return write_tree(report, source, screen, sink);
  if (a.format == OutputFormat::kHuman) return write_ls(report, source, a.chunks, screen, sink);
  const JsonRows json_rows{"tensors", rows.size(),
                           [&](std::size_t i) { return ls_row(rows[i], a.chunks); }};
  const Value document = ls_document(report);
  if (a.format == OutputFormat::kJson) return write_json(document, json_rows, sink);
  constexpr std::array<LineField, 3> kLines = {
      {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}}};
  write_ndjson(document, verb_name(a.verb), kLines, json_rows, sink);
}

/// One run of one verb of ckpt-inspect.
class Inspection {
 public:
  Inspection(const Arguments& arguments, FileSystem& fs, const Screen& screen, Host* host)
      : a_(arguments), fs_(fs), screen_(screen), host_(host) {}

  Outcome run() {
    require_options_taken();
    const ProgressReporter reporter(reports_progress() ? a_.progress : ProgressMode::kNone,
                                    std::string(verb_name(a_.verb)), progress());
    switch (a_.verb) {
      case Verb::kSummary:
        return summary();
      case Verb::kLs:
        return ls();
      case Verb::kShow:
        return show_one();
      case Verb::kStat:
        return stat();
      case Verb::kOptim:
        return optim();
      case Verb::kHash:
        return hash();
      case Verb::kVerify:
        return verify();
      case Verb::kScan:
        return scan();
      case Verb::kExplain:
        return explain();
      case Verb::kReport:
        return report();
      case Verb::kDiff:
        return diff();
      default:
        break;
    }
    fail(Code::kInternal, "not a verb of ckpt-inspect");
  }

 private:
  bool reports_progress() const {
    return host_ == nullptr && a_.verb != Verb::kSummary && a_.verb != Verb::kLs &&
           a_.verb != Verb::kShow && a_.verb != Verb::kScan && a_.verb != Verb::kExplain;
  }

  /// Options of single formats: one at least of the PATHs is to take each.
  void require_options_taken() const {
    const std::vector<const FormatOption*> given = a_.own.given();
    if (given.empty()) return;
    const std::size_t paths = a_.verb == Verb::kShow ? 1 : a_.words.size();
    std::vector<OptionList> lists;
    std::vector<std::string_view> ids;
    for (std::size_t i = 0; i < paths; ++i) {
      const bool two = a_.verb == Verb::kDiff;
      const std::string& from = !two ? a_.from : i == 0 ? a_.from_a : a_.from_b;
      for (const FormatDriver* driver : formats_at(fs_, a_.words[i], from)) {
        lists.push_back(driver->capabilities().reads_with);
        if (std::ranges::find(ids, driver->id()) == ids.end()) ids.push_back(driver->id());
      }
    }
    if (ids.empty()) return;  // what cannot be opened says so by itself
    require_taken(given, lists, ids);
  }

  OpenOptions open_options(const std::string& from, const std::string& root) const {
    return {from, selection(a_, root), read_options(a_)};
  }

  OpenedCheckpoint open(const std::string& path, const OpenOptions& options) {
    OpenedCheckpoint opened = open_checkpoint(fs_, path, options);
    if (!a_.quiet) print_notes(opened.notes);
    return opened;
  }
  OpenedCheckpoint open() { return open(a_.words[0], open_options(a_.from, a_.root)); }

  void print_notes(const std::vector<Note>& notes) const {
    if (host_ != nullptr) return;  // they are in the document
    for (const Note& note : notes)
      std::fprintf(stderr, "ckpt-inspect: %s\n", printable(note.message).c_str());
  }

  Progress& progress() { return host_ != nullptr ? host_->progress : progress_; }
  TransferOptions transfer() {
    TransferOptions options = transfer_options(a_, &progress());
    if (host_ != nullptr) options.cancel = &host_->cancel;
    return options;
  }

  /// What `document` makes in the form that was asked for; `human` makes the other. Only the one is
  /// made: as values a document takes several times the memory of its report.
  template <class Document, class Human>
  std::string in_form(Document&& document, std::initializer_list<LineField> lines,
                      Human&& human) const {
    if (a_.format == OutputFormat::kHuman) return human();
    if (a_.format == OutputFormat::kJson) return json_document(document());
    return ndjson_document(document(), verb_name(a_.verb), {lines.begin(), lines.size()});
  }

  bool negative(bool ok, const std::vector<Note>& findings) const {
    return !ok || (a_.strict && std::any_of(findings.begin(), findings.end(), [](const Note& note) {
                     return note.severity == Severity::kWarning;
                   }));
  }

  /// stderr for a status other than 0 that follows a printed result.
  std::string complaint(const Status& status) const {
    return failure_text("ckpt-inspect", status, exit_status(status.code), a_.format);
  }

  Outcome summary();
  Outcome summary_with_scan(const OpenOptions& options);
  Outcome explain();
  Outcome summary_of(const OpenedCheckpoint& opened, const ScanReport* scanned);
  ScanReport scan_of(std::vector<std::string> paths);
  Outcome scan();
  Outcome path_rules();
  Outcome run_table(const RunListing& listing, const ScanReport* scanned = nullptr);
  Outcome ls();
  Outcome show_one();
  Outcome stat();
  Outcome optim();
  Outcome hash();
  Outcome verify();
  Outcome report();
  ReportSide report_side(OpenedCheckpoint& opened, OpenedCheckpoint* other);
  Outcome diff();
  DiffOptions diff_options();

  const Arguments& a_;
  FileSystem& fs_;
  const Screen& screen_;
  Host* host_;
  Progress progress_;
};

Outcome Inspection::run_table(const RunListing& listing, const ScanReport* scanned) {
  print_notes(listing.notes);
  return {in_form([&] { return run_document(listing, scanned); }, {{"checkpoints", "checkpoint"}},
                  [&] {
                    return render_run(listing, screen_) +
                           (scanned != nullptr ? render_scan(*scanned, screen_) : std::string());
                  }),
          0,
          {}};
}

ScanReport Inspection::scan_of(std::vector<std::string> paths) {
  const TransferOptions limits = transfer();
  ScanOptions options;
  options.memory_limit_bytes = limits.memory_limit_bytes;
  options.threads = limits.threads;
  return scan_files(fs_, paths, options);
}

/// The worst of a scan as a failure, which follows the printed result.
Status danger_of(const ScanReport& report) {
  for (const ScannedFile& file : report.files)
    if (file.safety == Safety::kDangerous)
      return {Code::kCorrupt,
              fmt::format("unsafe: the file {}", file.findings[0].message),
              {file.path, {}, {}, -1},
              {}};
  return {};
}

[[noreturn]] void refuse_code(const std::string& code) {
  std::vector<std::string_view> codes;
  for (const FindingInfo& row : all_findings()) codes.push_back(row.code);
  std::string upper = code;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  const std::string near = nearest(upper, codes);
  fail(Code::kNotFound, fmt::format("no finding has the code \"{}\"", printable(code)),
       fmt::format("{}ckpt-inspect explain lists every code",
                   near.empty() ? "" : fmt::format("did you mean {}? ", near)));
}

Outcome Inspection::scan() {
  const ScanReport report = scan_of(a_.words);
  Outcome outcome;
  outcome.out =
      in_form([&] { return scan_document(report); }, {{"files", "file"}, {"links", "link"}},
              [&] { return render_scan(report, screen_); });
  if (report.safety == Safety::kUnknown) outcome.exit = kExitNegative;
  if (report.safety == Safety::kDangerous) {
    outcome.exit = kExitCorrupt;
    outcome.err = complaint(danger_of(report));
  }
  return outcome;
}

Outcome Inspection::explain() {
  std::vector<FindingInfo> rows;
  for (const std::string& code : a_.words) {
    const auto finding = find_finding(code);
    if (!finding) refuse_code(code);
    rows.push_back(finding_info(*finding));
  }
  if (a_.words.empty())
    std::ranges::copy_if(all_findings(), std::back_inserter(rows),
                         [](const FindingInfo& row) { return row.finding != Finding::kNone; });
  return {in_form([&] { return explain_document(rows); }, {{"findings", "finding"}},
                  [&] { return render_explain(rows, screen_); }),
          0,
          {}};
}

/// --explain-path: how PATH is understood; a failure follows the printed steps.
Outcome Inspection::path_rules() {
  // What says what to look at in a checkpoint says nothing of a path.
  const std::pair<const char*, bool> others[] = {{"--root", !a_.root.empty()},
                                                 {"--include", !a_.include.empty()},
                                                 {"--exclude", !a_.exclude.empty()},
                                                 {"--only", !a_.only.empty()},
                                                 {"--globals", a_.globals}};
  for (const auto& [flag, is_given] : others)
    if (is_given)
      fail(Code::kInvalidArgument,
           fmt::format("--explain-path says what PATH means and looks at nothing in it: {} has no "
                       "part in that",
                       flag),
           fmt::format("leave out {}, or --explain-path", flag));
  const PathExplanation explanation = explain_path(fs_, a_.words[0], a_.from);
  Outcome outcome;
  outcome.out = in_form([&] { return path_document(explanation); }, {{"rules", "rule"}},
                        [&] { return render_path(explanation, screen_); });
  if (explanation.failure.code == Code::kOk) return outcome;
  outcome.exit = exit_status(explanation.failure.code);
  outcome.err = complaint(explanation.failure);
  return outcome;
}

Outcome Inspection::summary() {
  if (a_.explain_path) return path_rules();
  OpenOptions options = open_options(a_.from, a_.root);
  options.read.tolerate_damage = true;
  options.read.tolerate_io_errors = false;
  options.read.list_globals = a_.globals;
  if (a_.globals) return summary_with_scan(options);
  if (const auto listing = list_run(fs_, a_.words[0], options)) return run_table(*listing);
  return summary_of(open(a_.words[0], options), nullptr);
}

/// --globals: what scan says of the same files comes behind the summary, or alone where there is no
/// checkpoint that can be summed up.
Outcome Inspection::summary_with_scan(const OpenOptions& options) {
  const std::string& path = a_.words[0];
  ScanReport scanned = scan_of({path});
  Outcome outcome;
  try {
    if (const auto listing = list_run(fs_, path, options)) {
      outcome = run_table(*listing, &scanned);
    } else {
      const OpenedCheckpoint opened = open(path, options);
      const std::string root = fs_.canonical(path), found = fs_.canonical(opened.path);
      if (found != root && !found.starts_with(root + "/")) scanned = scan_of({path, opened.path});
      outcome = summary_of(opened, &scanned);
    }
  } catch (const Error&) {
    if (scanned.safety != Safety::kDangerous) throw;
    if (a_.format != OutputFormat::kHuman) throw Error(danger_of(scanned));
    outcome.out = render_scan(scanned, screen_);
  }
  if (scanned.safety == Safety::kDangerous && outcome.exit == kExitDone) {
    outcome.exit = kExitCorrupt;
    outcome.err = complaint(danger_of(scanned));
  }
  return outcome;
}

Outcome Inspection::summary_of(const OpenedCheckpoint& opened, const ScanReport* scanned) {
  const SummaryReport report = summarize(opened);
  Outcome outcome;
  outcome.out = in_form(
      [&] { return summary_document(report, scanned); }, {{"globals", "global"}, {"notes", "note"}},
      [&] {
        return render_summary(report, a_.globals, screen_) +
               (scanned != nullptr ? render_scan(*scanned, screen_) : std::string());
      });
  const auto denied =
      std::find_if(report.globals.begin(), report.globals.end(),
                   [](const GlobalUse& use) { return use.verdict == GlobalUse::Verdict::kDenied; });
  if (denied != report.globals.end()) {
    const Status status{Code::kCorrupt,
                        fmt::format("unsafe: the pickle names {}", denied->name),
                        {denied->file, {}, {}, -1},
                        {}};
    // --globals shows what is denied; every other look at such a file is a refusal.
    if (!a_.globals) throw Error(status);
    outcome.exit = kExitCorrupt;
    outcome.err = complaint(status);
  } else if (!report.complete) {
    const Status status{
        Code::kCorrupt,
        fmt::format("incomplete: {}", report.problems.empty() ? "damaged" : report.problems[0]),
        {report.display, {}, {}, -1},
        "ckpt-inspect verify lists every finding"};
    if (a_.format != OutputFormat::kHuman) throw Error(status);
    outcome.exit = kExitCorrupt;
    outcome.err = complaint(status);
  }
  return outcome;
}

Outcome Inspection::ls() {
  if (a_.tree && (a_.format != OutputFormat::kHuman || a_.chunks))
    fail(Code::kInvalidArgument, "--tree is for people, and goes without --chunks",
         "--format json has every tensor");
  LsOptions options;
  options.chunks = a_.chunks;
  options.rank = a_.rank;
  options.file = a_.file;
  if (!a_.sort.empty()) options.sort = parse_ls_sort(a_.sort);
  options.top = static_cast<std::size_t>(a_.top.value_or(0));
  const auto opened = std::make_shared<OpenedCheckpoint>(open());
  const auto rows = std::make_shared<const LsRows>(opened->manifest, options);
  const auto report = std::make_shared<const LsReport>(list_all_but_rows(*opened, *rows));
  Outcome outcome;
  outcome.rest = [screen = screen_, &a = a_, opened, rows, report](const Sink& sink) {
    write_listing(a, *report, *rows, screen, sink);
  };
  return outcome;
}

Outcome Inspection::show_one() {
  OpenOptions needed = open_options(a_.from, a_.root);
  needed.needed_name = a_.words[1];
  OpenedCheckpoint opened = open(a_.words[0], needed);
  ShowOptions options;
  if (!a_.slice.empty()) options.slice = parse_slice(a_.slice);
  options.npy = !a_.npy.empty();
  options.transfer = transfer();
  const ShowReport report = show(opened, a_.words[1], options);
  if (options.npy && report.what != ShowReport::What::kTensor) {
    fail(Code::kInvalidArgument, fmt::format("--npy: \"{}\" is no tensor", printable(report.name)));
  }
  if (a_.npy == "-") return {std::string(as_text(report.npy)), 0, {}};
  Outcome outcome;
  outcome.out = in_form([&] { return show_document(report); }, {},
                        [&] { return render_show(report, screen_); });
  if (options.npy) {
    write_new_file(a_.npy, "--npy", false, host_ == nullptr,
                   [&](const Sink& sink) { sink(as_text(report.npy)); });
    const std::string note = report.npy_note.empty() ? "" : " (" + report.npy_note + ")";
    outcome.err = fmt::format("ckpt-inspect: wrote {}{}\n", printable(a_.npy), note);
  }
  return outcome;
}

Outcome Inspection::stat() {
  StatOptions options = a_.stat;
  options.transfer = transfer();
  const StatReport report = [&] {
    OpenedCheckpoint opened = open();
    return stat_checkpoint(opened, options);
  }();
  return {in_form([&] { return stat_document(report); },
                  {{"tensors", "tensor"}, {"findings", "finding"}, {"notes", "note"}},
                  [&] { return render_stat(report, screen_); }),
          negative(report.ok(), report.findings) ? kExitNegative : kExitDone,
          {}};
}

Outcome Inspection::optim() {
  OpenedCheckpoint first = open();
  std::optional<OpenedCheckpoint> second;
  if (a_.words.size() > 1) second = open(a_.words[1], open_options(a_.from, a_.root));
  OptimOptions options;
  options.transfer = transfer();
  const OptimReport report = inspect_optimizer(first, second ? &*second : nullptr, options);
  return {in_form([&] { return optim_document(report); },
                  {{"optimizers", "optimizer"}, {"findings", "finding"}, {"notes", "note"}},
                  [&] { return render_optim(report, screen_); }),
          negative(report.ok(), report.findings) ? kExitNegative : kExitDone,
          {}};
}

Outcome Inspection::hash() {
  const HashReport report = [&] {
    OpenedCheckpoint opened = open();
    return hash_checkpoint(opened, transfer());
  }();
  return {in_form([&] { return hash_document(report); },
                  {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}},
                  [&] { return render_hash(report, screen_); }),
          report.not_compared > 0 && a_.strict ? kExitNegative : kExitDone,
          {}};
}

Outcome Inspection::verify() {
  VerifyOptions options;
  options.level = a_.level;
  options.require_sums = a_.require_sums;
  options.against = a_.against;
  options.open = open_options(a_.from, a_.root);
  options.transfer = transfer();
  std::vector<VerifyReport> reports;
  Outcome outcome;
  const auto rank = [&](int exit) {
    if (exit <= outcome.exit) return false;
    outcome.exit = exit;
    return true;
  };
  for (const std::string& path : a_.words) {
    std::optional<Status> failure;
    reports.push_back(a_.words.size() == 1 ? verify_checkpoint(fs_, path, options)
                                           : verify_or_report(fs_, path, options, failure));
    if (negative(reports.back().ok, reports.back().findings)) rank(kExitNegative);
    if (failure && rank(exit_status(failure->code))) outcome.err = complaint(*failure);
  }
  outcome.out = in_form([&] { return verify_documents(reports); },
                        {{"findings", "finding"},
                         {"causes", "cause"},
                         {"checkpoints", "checkpoint"},
                         {"notes", "note"}},
                        [&] {
                          std::string text;
                          for (const VerifyReport& report : reports)
                            text += render_verify(report, screen_);
                          return text;
                        });
  return outcome;
}

ReportSide Inspection::report_side(OpenedCheckpoint& opened, OpenedCheckpoint* other) {
  ReportSide side;
  side.opened = &opened;
  side.summary = summarize(opened);
  VerifyOptions quick;
  quick.level = VerifyLevel::kQuick;
  quick.open = open_options(a_.from, a_.root);
  quick.transfer = transfer_options(a_, nullptr);
  std::optional<Status> failure;
  side.findings = verify_or_report(fs_, opened.path, quick, failure).findings;
  OptimOptions optim;
  optim.values = a_.read_values;
  optim.transfer = transfer();
  side.optim = inspect_optimizer(opened, a_.read_values ? other : nullptr, optim);
  if (!a_.read_values) return side;
  StatOptions options;
  options.histograms_up_to = opened.manifest.tensors.size();
  options.both_histograms = true;
  options.row_norms = true;
  options.most_row_norms = kReportNorms;
  options.transfer = transfer();
  side.stat = stat_checkpoint(opened, options);
  side.findings.insert(side.findings.end(), side.stat->findings.begin(), side.stat->findings.end());
  return side;
}

Outcome Inspection::report() {
  if (a_.output.empty()) fail(Code::kInvalidArgument, "report needs -o FILE.html", "- is stdout");
  OpenedCheckpoint first = open();
  std::optional<OpenedCheckpoint> second;
  if (a_.words.size() > 1) second = open(a_.words[1], open_options(a_.from, a_.root));
  const ReportSide a = report_side(first, second ? &*second : nullptr);
  std::optional<ReportSide> b;
  std::optional<DiffReport> difference;
  if (second) {
    DiffOptions options;
    options.transfer = transfer();
    difference = diff_checkpoints(first, *second, options);
    b = report_side(*second, nullptr);
  }
  std::uint64_t bytes = 0;
  std::vector<std::string> left_out;
  const auto page = [&](const Sink& sink) {
    left_out =
        write_report_page(a, b ? &*b : nullptr, difference ? &*difference : nullptr, {},
                          [&](std::string_view piece) { sink(piece), bytes += piece.size(); });
  };
  Outcome outcome;
  if (a_.output == "-") {
    page([&](std::string_view piece) { outcome.out += piece; });
    return outcome;
  }
  write_new_file(a_.output, "-o", a_.replace, host_ == nullptr, page);
  outcome.out = in_form([&] { return page_document(a_.output, bytes, a.summary, left_out); }, {},
                        [&] {
                          std::string text = fmt::format("wrote {}: {}\n", printable(a_.output),
                                                         format_bytes(bytes));
                          for (const std::string& what : left_out)
                            text += "left out: " + what + "\n";
                          return text;
                        });
  return outcome;
}

/// The most changed first; what is there on one side alone, or of another form, before.
void sort_by_change(DiffReport& report) {
  const auto change = [](const TensorDiff& row) {
    constexpr double kMost = std::numeric_limits<double>::infinity();
    if (row.what != TensorDiff::What::kValues || std::isnan(row.relative_l2)) return kMost;
    return row.nonfinite_mismatch > 0 ? kMost : row.relative_l2;
  };
  std::ranges::stable_sort(report.tensors, [&](const TensorDiff& a, const TensorDiff& b) {
    return change(a) > change(b);
  });
}

DiffOptions Inspection::diff_options() {
  DiffOptions options;
  options.abs = a_.abs_tolerance;
  options.rel = a_.rel_tolerance;
  options.ulp = a_.ulp_tolerance;
  if (!a_.as_dtype.empty()) {
    options.as = dtype_from_word(a_.as_dtype);
    if (!options.as) {
      std::vector<std::string_view> names;
      for (const DType dtype : all_dtypes()) names.push_back(torch_name(dtype));
      const std::string near = nearest(a_.as_dtype, names);
      fail(Code::kInvalidArgument,
           fmt::format("--as \"{}\" is no dtype{}", printable(a_.as_dtype),
                       near.empty() ? "" : "; did you mean " + near + "?"),
           "as bfloat16, float16, float32, float64, or bf16, fp16, fp32, fp64");
    }
  }
  options.stop_at_first = a_.quiet;
  options.transfer = transfer();
  return options;
}

Outcome Inspection::diff() {
  const DiffOptions options = diff_options();
  DiffReport report = [&] {
    OpenedCheckpoint a = open(a_.words[0], open_options(a_.from_a, a_.root_a));
    OpenedCheckpoint b = open(a_.words[1], open_options(a_.from_b, a_.root_b));
    return diff_checkpoints(a, b, options);
  }();
  const bool whole = report.not_compared == 0 || !a_.strict;
  const int exit = report.equal && whole ? kExitDone : kExitNegative;
  if (a_.quiet) return {{}, exit, {}};
  if (a_.sort == "change") sort_by_change(report);
  if (a_.sort == "name") std::ranges::stable_sort(report.tensors, natural_less, &TensorDiff::name);
  const auto limit = static_cast<std::size_t>(a_.limit.value_or(kShownDifferences));
  if (a_.limit && a_.format != OutputFormat::kHuman) {
    report.tensors.resize(std::min(limit, report.tensors.size()));
    report.values.resize(std::min(limit, report.values.size()));
  }
  return {in_form([&] { return diff_document(report); },
                  {{"tensors", "tensor"}, {"values", "value"}, {"notes", "note"}},
                  [&] { return render_diff(report, limit, screen_); }),
          exit,
          {}};
}

}  // namespace

Outcome run_inspect(const Arguments& arguments, FileSystem& fs, const Screen& screen, Host* host) {
  const auto run = [&] { return Inspection(arguments, fs, screen, host).run(); };
  // What writes a file does so once.
  if (!arguments.npy.empty() && arguments.npy != "-") return run();
  if (arguments.verb == Verb::kReport) return run();
  if (arguments.verb == Verb::kExplain) return run();  // its words are no paths
  return read_steadily(fs, arguments.words, /*writes=*/false, run);
}

}  // namespace tessera::tools

// Which flags each command has, and what they say about themselves.
#include "tools/args/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>

#include <utility>

#include "tools/args/values.h"

namespace tessera::tools {
namespace {

void add_output(Options& o) {
  Arguments& a = o.to;
  o.group("Output");
  o.value(
      "--format", "human|json|ndjson",
      "form of the result on stdout: for people (the default), one JSON document, or one document "
      "a line",
      [&a](auto& flag, auto& v) { a.format = output_format(flag, v); });
  o.value("--progress", "auto|bar|json|none",
          "progress on stderr; auto: a bar on a terminal, elsewhere one plain line every 30 s",
          [&a](auto& flag, auto& v) { a.progress = progress_mode(flag, v); });
  o.value("--color", "auto|always|never",
          "colours; auto: on a terminal, unless NO_COLOR is set or TERM is dumb",
          [&a](auto& flag, auto& v) { a.color = color_mode(flag, v); });
  o.switch_to("--no-color", "--color never", [&a] { a.color = ColorMode::kNever; });
  o.switch_to("--no-pager",
              "on a terminal too, print all at once; default: through $PAGER, or less",
              [&a] { a.pager = false; });
}

void add_limits(Options& o) {
  Arguments& a = o.to;
  o.group("Limits");
  o.value("--mem-limit", "SIZE",
          "limit of staged tensor bytes, as 512MiB or 2GB, at least 1MiB; default: the smaller of "
          "1GiB and half of the cgroup's limit",
          [&a](auto& flag, auto& v) { a.mem_limit_bytes = memory_limit_in_bytes(flag, v); });
  o.value(
      "--threads", "N", "worker threads; default: as many as CPU affinity and cgroup quota allow",
      [&a](auto& flag, auto& v) { a.threads = static_cast<int>(whole_number(flag, v, 1, 1024)); });
}

void add_source(Options& o, bool two_sources) {
  Arguments& a = o.to;
  o.group("Source");
  if (two_sources) {
    o.format("--from-a", "read A as this format; default: detected by content", a.from_a);
    o.format("--from-b", "read B as this format; default: detected by content", a.from_b);
    o.text("--root-a", "NAME", "treat the subtree NAME of A as the whole checkpoint", a.root_a);
    o.text("--root-b", "NAME", "treat the subtree NAME of B as the whole checkpoint", a.root_b);
  } else {
    o.format("--from", "read as this format; default: detected by content", a.from);
    o.text("--root", "NAME", "treat the subtree NAME as the whole checkpoint", a.root);
  }
  for (const FormatOption* option : format_options(/*to_write=*/false)) o.own(*option);
  o.group("Selection");
  o.texts("--include", "GLOB", "only names that match the whole GLOB; * crosses dots", a.include);
  o.texts("--exclude", "GLOB", "leave out names that match; wins over --include", a.exclude);
  o.choice("--only", "model|optim|other", "only the model, the optimizer, or all else", a.only);
}

void add_ls(Options& o) {
  Arguments& a = o.to;
  o.group("Listing");
  o.flag("--tree", "modules with their sizes; repeated layers are one line", a.tree);
  o.flag("--chunks", "one line per stored chunk: its place in the tensor and in the files",
         a.chunks);
  o.whole("--rank", "only what writing rank N stored", 0, a.rank);
  o.text("--file", "FILE", "only what lies in FILE, a name or glob within the checkpoint", a.file);
  o.choice("--sort", "stored|name|size|file|offset", "order; default: as stored", a.sort);
  o.whole("--top", "only the first N after sorting", 1, a.top);
}

void add_dequantized(Options& o) {
  o.flag("--dequantized", "quantized weights as the numbers that codes and scales mean, in float32",
         o.to.dequantized);
}

void add_show(Options& o) {
  o.group("Values");
  o.text("--slice", "RANGES", "which elements, as 0:4,:8 or 3,: (Python's rules, step 1)",
         o.to.slice);
  o.text("--npy", "FILE",
         "also write the slice as a NumPy file; -: write it to stdout instead of the report",
         o.to.npy);
  add_dequantized(o);
}

void add_level(Options& o, const char* name, const char* text, VerifyLevel level) {
  Arguments& a = o.to;
  o.switch_to(name, text, [&a, level] { a.level = level; });
}

void add_verify(Options& o) {
  o.group("Checks");
  add_level(o, "--quick", "metadata and file sizes only", VerifyLevel::kQuick);
  add_level(o, "--full", "every byte and checksum as well (the default)", VerifyLevel::kFull);
  add_level(o, "--deep", "values as well: replicas are equal, padding is zero", VerifyLevel::kDeep);
  o.text("--against", "FILE", "also compare with FILE: a hash report, or a tessera.manifest.json",
         o.to.against);
  o.flag("--require-sums", "tensor bytes without a checksum are an error", o.to.require_sums);
}

void add_diff(Options& o) {
  Arguments& a = o.to;
  o.group("Comparison");
  o.real("--abs", "values may differ by X", a.abs_tolerance);
  o.real("--rel", "values may differ by X times the larger magnitude", a.rel_tolerance);
  o.whole("--ulp", "values may differ by N units in the last place", 0, a.ulp_tolerance);
  add_dequantized(o);
  o.text("--as", "DTYPE", "round both sides to DTYPE first, as bfloat16", a.as_dtype);
  o.choice(
      "--by", "layer|tensor",
      "one line for each layer, with the tensor that changed most, or for each tensor; default: "
      "tensor",
      a.by);
  o.choice("--sort", "name|change", "order of the differences; default: as stored", a.sort);
  o.flag("-q,--quiet", "print nothing: the exit status is the answer", a.quiet);
  o.whole("-n,--limit", "list at most N differences; default 20 for people, all in JSON", 1,
          a.limit);
}

void add_report(Options& o) {
  o.group("Page");
  o.text("-o,--output", "FILE", "where the page is written; - is stdout", o.to.output);
  o.choice("--svg", "modules|updates|change|histogram",
           "write one picture for a paper, as SVG, in place of the page", o.to.svg);
  o.flag("--stats", "read the values: statistics of each tensor, the optimizer's next updates",
         o.to.read_values);
  o.flag("--force", "replace FILE if it is there", o.to.replace);
}

void add_reading(Options& o, AuditOptions& audit) {
  o.value("--budget", "SIZE",
          "most tensor bytes that are read in all; above it every 2nd, 4th, ... block, and the "
          "report says what that may miss; default: everything",
          [&audit](auto& flag, auto& v) { audit.budget_bytes = size_in_bytes(flag, v); });
  o.text("--cache", "DIR", "keep what was read of each checkpoint in DIR, by its content",
         audit.cache);
}

void add_audit(Options& o) {
  AuditOptions& audit = o.to.audit;
  o.group("Audit");
  o.flag("--deep", "read weights and optimizer state, too; default: headers and metadata alone",
         audit.deep);
  add_reading(o, audit);
  o.value("--keep", "N", "sound checkpoints of a series that retention leaves; default: 3",
          [&audit](auto& flag, auto& v) {
            audit.keep = static_cast<std::uint32_t>(whole_number(flag, v, 1, 1 << 30));
          });
  o.text("--html", "FILE", "also write a page to look at, one file that opens without a network",
         o.to.html);
  o.flag("--force", "replace FILE if it is there", o.to.replace);
  o.group("Checks");
}

void add_trend(Options& o) {
  TrendOptions& trend = o.to.trend;
  o.group("Trend");
  o.texts("--tensor", "GLOB", "tensors, by their names or their parameters'; * crosses dots",
          trend.tensors);
  o.value("--of", "norm|v_max|update",
          "L2 norm (the default); largest element of the second moments; change since the "
          "checkpoint before, against the norm",
          [&trend](auto& flag, auto& v) {
            const std::string word = one_of(flag, v, "norm|v_max|update");
            trend.of = word == "norm"    ? TrendOf::kNorm
                       : word == "v_max" ? TrendOf::kVMax
                                         : TrendOf::kUpdate;
          });
  add_reading(o, trend.audit);
}

/// A page beside the result.
void add_html(Options& o) {
  o.group("Page");
  o.value("--html", "FILE", "also write this as a page of HTML, a section of report's",
          [&html = o.to.html](auto& flag, auto& v) {
            if (v == "-")
              fail(Code::kInvalidArgument, flag + " -: stdout has the result", "name a file");
            html = v;
          });
  o.flag("--force", "replace FILE if it is there", o.to.replace);
}

void add_optim(Options& o) {
  o.group("Ranking");
  o.choice("--sort", "ratio|update|weight|v|growth|name",
           "order of the ranking, the largest first; default: ratio, with B growth", o.to.sort);
  o.whole("--top", "only the first N of the ranking; default 20 for people, all in JSON", 1,
          o.to.top);
}

void add_strict(Options& o) {
  o.flag("--strict", "exit 1 on warnings too, not on errors alone", o.to.strict);
}

void add_format_options(Options& o) {
  o.group("Options of single formats");
  const std::vector<const FormatOption*> of_source = format_options(/*to_write=*/false);
  for (const FormatOption* option : format_options(/*to_write=*/true))
    if (!takes(of_source, *option)) o.own(*option);  // those are declared with the source's
}

/// Each straight into the field of StatOptions that stat_checkpoint() looks at.
void add_stat(Options& o) {
  StatOptions& stat = o.to.stat;
  o.group("Numbers");
  o.value("--quantiles", "Q,Q,...", "which, from 0 to 1; default: 0.01,0.1,0.25,0.5,0.75,0.9,0.99",
          [&stat](auto& flag, auto& v) {
            stat.quantiles.clear();
            for (const std::string_view part : split(v, ','))
              stat.quantiles.push_back(fraction(flag, std::string(part)));
          });
  o.value("--histograms", "N", "histograms where at most N tensors are selected; default: 3",
          [&stat](auto& flag, auto& v) {
            stat.histograms_up_to = static_cast<std::size_t>(whole_number(flag, v, 0));
          });
  o.value("--bins", "N", "bins of a histogram; default: 32", [&stat](auto& flag, auto& v) {
    stat.bins = static_cast<int>(whole_number(flag, v, 1, kMostBins));
  });
  o.flag("--log-histogram", "histograms over log10 of the magnitude, zeros apart",
         stat.log_histogram);
  o.flag("--row-norms", "L2 norm of each row of matrices", stat.row_norms);
  add_dequantized(o);
  o.choice("--sort", "stored|name|abs-max|std|l2|zeros|nan",
           "order of the tensors, the largest first; default: as stored", o.to.sort);
  o.whole("--top", "only the first N tensors after sorting; findings are of all", 1, o.to.top);
}

}  // namespace

void Options::own(const FormatOption& option) {
  using Kind = FormatOption::Kind;
  // The texts are literals, which end as given.
  const char* flag = option.flag.data();
  const char* placeholder = option.placeholder.data();
  const char* help = option.help.data();
  // Options is gone when values are parsed; what it writes into is not.
  const auto put = [&own = to.own, &option](std::any value) { own.put(option, std::move(value)); };
  switch (option.kind) {
    case Kind::kSwitch:
      return switch_to(flag, help, [put] { put(true); });
    case Kind::kChoice:
      return value(flag, placeholder, help, [put, placeholder](auto& name, auto& v) {
        put(whole_number(name, one_of(name, v, placeholder), 0));
      });
    case Kind::kSize:
      return value(flag, placeholder, help,
                   [put](auto& name, auto& v) { put(size_in_bytes(name, v)); });
    case Kind::kFile:
      return value(flag, placeholder, help, [put](auto& name, auto& v) {
        std::string text = file_text(name, v);
        if (text.empty())
          fail(Code::kInvalidArgument, fmt::format("{} {}: it is empty", name, printable(v)));
        put(std::move(text));
      });
    case Kind::kPath:
      return optional_value(flag, placeholder, help,
                            [put](auto&, auto& v) { put(v == kBareValue ? std::string() : v); });
    case Kind::kHanded:
      break;
  }
  fail(Code::kInternal, fmt::format("{} is no flag", option.flag));
}
void Options::text(const char* names, const char* placeholder, const char* text,
                   std::string& into) {
  value(names, placeholder, text, [&into](auto&, auto& v) { into = v; });
}
void Options::texts(const char* names, const char* placeholder, const char* text,
                    std::vector<std::string>& into) {
  repeated(names, placeholder, text, [&into](auto&, auto& v) { into.push_back(v); });
}
void Options::choice(const char* names, const char* choices, const char* text, std::string& into) {
  value(names, choices, text,
        [&into, choices](auto& flag, auto& v) { into = one_of(flag, v, choices); });
}
void Options::format(const char* names, const char* text, std::string& into, bool presets) {
  value(names, kFormatPlaceholder, text,
        [&into, presets](auto& flag, auto& v) { into = format_id(flag, v, presets); });
}
void Options::whole(const char* names, const char* text, std::int64_t minimum,
                    std::optional<std::int64_t>& into) {
  value(names, "N", text,
        [&into, minimum](auto& flag, auto& v) { into = whole_number(flag, v, minimum); });
}
void Options::real(const char* names, const char* text, std::optional<double>& into) {
  value(names, "X", text, [&into](auto& flag, auto& v) { into = tolerance(flag, v); });
}

void add_verb_options(Options& o, Verb verb) {
  const bool writes = verb == Verb::kReshard || verb == Verb::kConvert;
  if (writes) {
    o.group("Target");
    const std::string formats = fmt::format("{}", fmt::join(handled_formats(true), ", "));
    const std::string text =
        verb == Verb::kConvert
            ? fmt::format("format of the result: {} (the Hugging Face preset of safetensors)",
                          formats)
            : fmt::format("format of the result, default the source's: {}", formats);
    o.format("--to", text.c_str(), o.to.convert.to, true);
    add_convert_flags(o);
    o.flag("--strict",
           "exit 1 if something was left out or left behind that no flag asked to leave, or could "
           "not be compared",
           o.to.strict);
    add_format_options(o);
  }
  if (verb == Verb::kSummary) {
    o.group("Listing");
    o.flag(
        "--globals",
        "every pickle global, and scan's verdict on every file of PATH; exit 4 if one is dangerous",
        o.to.globals);
    o.flag("--explain-path",
           "which rule says what PATH means, and why those before it do not; nothing else",
           o.to.explain_path);
    o.flag("--strict",
           "exit 1 where a checkpoint of several is damaged or not read; of one, on warnings",
           o.to.strict);
  }
  if (verb == Verb::kLs) add_ls(o);
  if (verb == Verb::kShow) add_show(o);
  if (verb == Verb::kVerify) add_verify(o);
  if (verb == Verb::kDiff) add_diff(o);
  if (verb == Verb::kReport) add_report(o);
  if (verb == Verb::kAudit) add_audit(o);
  if (verb == Verb::kTrend) add_trend(o);
  if (verb == Verb::kStat) add_stat(o);
  if (verb == Verb::kOptim) add_optim(o);
  if (verb == Verb::kStat || verb == Verb::kOptim || verb == Verb::kDiff) add_html(o);
  if (verb == Verb::kStat || verb == Verb::kOptim) o.group("Checks");
  if (verb == Verb::kStat || verb == Verb::kOptim || verb == Verb::kVerify || verb == Verb::kAudit)
    add_strict(o);
  if (verb == Verb::kHash || verb == Verb::kDiff)
    o.flag("--strict", "exit 1 where a value could not be compared to the end", o.to.strict);
  const bool reads_data = verb != Verb::kExplain;
  if (reads_data && verb != Verb::kScan) add_source(o, verb == Verb::kDiff);
  if (reads_data) add_limits(o);
  add_output(o);
}

}  // namespace tessera::tools

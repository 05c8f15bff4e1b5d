#pragma once
// What a user typed, parsed and checked: one struct for the three commands.
//
// parse_arguments() reads flags through CLI11 (args.cc is the only file that includes it) and
// throws kInvalidArgument with the nearest flag or subcommand for what it does not know. Of the
// disk it asks whether a first word that is no subcommand is an existing path, and it reads the
// files that flags name (--map, --rules, --flat-layout).
#include <tessera/format/format_options.h>
#include <tessera/ops/audit.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/verify.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/args/command_spec.h"
#include "tools/render/screen.h"

namespace tessera::tools {

enum class Tool : std::uint8_t { kInspect, kReshard, kConvert };
enum class Verb : std::uint8_t {
  kSummary,
  kLs,
  kShow,
  kStat,
  kOptim,
  kHash,
  kVerify,
  kScan,
  kExplain,
  kReport,
  kAudit,
  kTrend,
  kBrowse,
  kDiff,  // of ckpt-inspect
  kReshard,
  kConvert,
};
enum class OutputFormat : std::uint8_t { kHuman, kJson, kNdjson };
enum class ProgressMode : std::uint8_t { kAuto, kBar, kJson, kNone };
/// What to do instead of a verb.
enum class Special : std::uint8_t { kNone, kExamples, kHelp, kVersion, kFormats, kGenerate };

struct Arguments {
  Tool tool = Tool::kInspect;
  Verb verb = Verb::kSummary;
  bool verb_given = false;  // false: `ckpt-inspect PATH` or no word at all
  Special special = Special::kNone;
  std::string generate;            // man, bash, zsh, fish, verify-codes, ...
  std::vector<std::string> words;  // PATH..., PATH NAME, A B, or SRC DST

  OutputFormat format = OutputFormat::kHuman;
  ProgressMode progress = ProgressMode::kAuto;
  ColorMode color = ColorMode::kAuto;
  bool pager = true;      // on a terminal
  bool help_all = false;  // with Special::kHelp: every option

  // Reading, shared by all.
  std::string from, from_a, from_b;
  std::string root, root_a, root_b;
  FormatSettings own;  // what single formats take
  std::vector<std::string> include, exclude;
  std::string only;  // "", model, optim, other
  std::optional<std::uint64_t> mem_limit_bytes;
  std::optional<int> threads;
  bool strict = false;

  // ls
  bool chunks = false;
  bool tree = false;
  std::optional<std::int64_t> rank;
  std::string file;
  std::string sort;
  std::optional<std::int64_t> top;
  // show
  std::string slice;
  std::string npy;
  bool dequantized = false;
  // summary
  bool globals = false;
  bool explain_path = false;
  // stat
  StatOptions stat;
  // verify
  VerifyLevel level = VerifyLevel::kFull;
  std::string against;
  bool require_sums = false;
  // report
  std::string output;
  bool replace = false;
  bool read_values = false;
  std::string svg;  // one picture in place of the page
  // audit, trend: what their own flags set; the rest of it follows from those above
  AuditOptions audit;
  TrendOptions trend;
  // stat, optim, diff, audit: a page beside the result
  std::string html;
  // diff
  std::optional<double> abs_tolerance, rel_tolerance;
  std::optional<std::int64_t> ulp_tolerance;
  std::string as_dtype;
  std::string by;  // "", layer
  bool quiet = false;
  std::optional<std::int64_t> limit;
  // reshard, convert: what their own flags set; the rest of it follows from those above
  ConvertOptions convert;
};

std::string_view tool_name(Tool tool);  // "ckpt-inspect"
std::string_view verb_name(Verb verb);  // "summary"

/// `words`: argv without argv[0]. Throws Error(kInvalidArgument).
Arguments parse_arguments(Tool tool, std::span<const std::string> words);

/// What a failure before or while parsing should look like: the last --format among `typed`.
OutputFormat requested_format(Tool tool, std::span<const std::string> typed);

/// The command and its subcommands, found by walking the CLI11 definitions that parse_arguments()
/// uses.
CommandSpec command_spec(Tool tool);
/// One subcommand alone (cheap: nothing else is built).
CommandSpec verb_spec(Tool tool, Verb verb);

}  // namespace tessera::tools

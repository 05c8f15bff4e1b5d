#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tools/args/values.h"
#include "tools/command.h"
#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"
#include "tools/failure.h"
#include "tools/progress_reporter.h"
#include "tools/render/render.h"
#include "tools/reopen.h"
#include "tools/signals.h"

namespace tessera::tools {
namespace {

/// The format of which a result of this name is one file, where none is asked for; nullptr: none.
const FormatDriver* file_format(std::string_view destination) {
  const auto formats = all_formats();
  const auto found = std::ranges::find_if(
      formats, [&](const FormatDriver* driver) { return is_one_file(*driver, destination); });
  return found == formats.end() ? nullptr : *found;
}

/// What cannot be right whatever the source holds.
void check_request(const Arguments& a) {
  const std::string command(tool_name(a.tool));
  const TargetRequest& target = a.convert.target;
  if (target.world_size && target.mesh) {
    fail(Code::kInvalidArgument, "--world-size and --mesh exclude each other",
         "the mesh's product is the world size");
  }
  if (a.convert.verify && a.convert.no_verify)
    fail(Code::kInvalidArgument, "--verify and --no-verify exclude each other");
  if (!a.convert.base.empty() && !a.convert.assets_directory.empty())
    fail(Code::kInvalidArgument,
         "--base-model and --copy-assets=DIR name two places for the same files",
         "leave out one of them");
  if (a.tool == Tool::kReshard && !target.world_size && !target.mesh) {
    fail(Code::kInvalidArgument, "ckpt-reshard needs --world-size N or --mesh DIMS",
         "ckpt-reshard SRC DST --world-size 8; ckpt-convert changes the format alone");
  }
  for (const auto& [glob, placements] : target.placements) {
    if (!target.mesh)
      fail(Code::kInvalidArgument, "--placements needs --mesh",
           "as --mesh dp=2,tp=4 --placements '*.weight=shard(0),shard(1)'");
    if (static_cast<int>(placements.size()) != target.mesh->rank())
      fail(Code::kInvalidArgument,
           fmt::format("--placements {}: {} for a mesh of {} dims ({})", printable(glob),
                       placements.size(), target.mesh->rank(), target.mesh->to_string()));
  }
  if (a.words[1].find("://") != std::string::npos) {
    fail(Code::kUnsupported,
         fmt::format("{} is a URL: results are written to local paths", printable(a.words[1])),
         fmt::format("write to a local path, then copy it: {} {} LOCAL, then upload LOCAL", command,
                     shell_quoted(a.words[0])));
  }
  if (a.tool == Tool::kConvert && a.convert.to.empty() && a.convert.delta_from.empty() &&
      file_format(a.words[1]) == nullptr) {
    std::vector<std::string_view> suffixes;
    for (const FormatDriver* driver : all_formats()) {
      const Capabilities can = driver->capabilities();
      if (can.result_suffix.empty()) continue;
      suffixes.push_back(can.result_suffix);
      suffixes.insert(suffixes.end(), can.more_result_suffixes.begin(),
                      can.more_result_suffixes.end());
    }
    fail(Code::kInvalidArgument,
         fmt::format("ckpt-convert needs --to FORMAT, or a DST that ends in {}",
                     fmt::join(suffixes, ", ")),
         fmt::format("formats: {}", fmt::join(handled_formats(/*to_write=*/true), ", ")));
  }
}

/// The flags of its own, and those that every command has.
ConvertOptions convert_options(const Arguments& a) {
  ConvertOptions options = a.convert;
  options.source = a.words[0];
  options.destination = a.words[1];
  options.from = a.from;
  if (const FormatDriver* driver = file_format(options.destination);
      a.tool == Tool::kConvert && options.to.empty() && options.delta_from.empty() && driver)
    options.to = driver->id();
  options.own = a.own;
  options.command = tool_name(a.tool);
  options.selection = selection(a, a.root);
  options.memory_limit_bytes = a.mem_limit_bytes.value_or(0);
  options.threads = a.threads.value_or(0);
  return options;
}

/// For --strict: all state of the source was written, or a flag says which part is wanted; and what
/// --verify looked at was compared to the end.
bool is_whole(const Arguments& a, const ConvertReport& report) {
  const bool part_is_asked = !a.only.empty() || !a.include.empty() || !a.exclude.empty() ||
                             !a.root.empty() || find_preset(a.convert.to) != nullptr;
  return report.not_compared == 0 && (part_is_asked || report.balance.left_behind.empty());
}

/// The command as typed, with --resume where flags still count.
std::string resume_line(const std::vector<std::string>& typed) {
  std::vector<std::string> words = typed;
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (std::find(words.begin(), dashes, "--resume") == dashes) words.insert(dashes, "--resume");
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quoted(word);
  return line;
}

/// What the one who stopped it should know: whether anything is kept, and how to go on.
[[noreturn]] void report_stop(Status status, const std::string& stage,
                              const std::vector<std::string>& typed) {
  status.message = caught_signal() == 15 ? "stopped by SIGTERM" : "stopped by SIGINT";
  status.hint = "nothing was kept; the source and any old output are as they were";
  if (!stage.empty()) {
    status.message += "; what is finished is kept in " + stage;
    status.hint = "to continue: " + resume_line(typed);
  }
  throw Error(std::move(status));
}

ConvertReport converted(const Arguments& a, FileSystem& fs, ConvertOptions& options,
                        const std::vector<std::string>& typed, Host* host) {
  if (host != nullptr) {
    options.progress = &host->progress;
    options.cancel = &host->cancel;
    return convert(fs, options);
  }
  // Both outlive the process' last signal, which may come at any time from now on.
  static CancelToken cancel;
  Progress progress;
  options.progress = &progress;
  options.cancel = &cancel;
  install_signal_handlers(&cancel);
  try {
    const bool speaks = options.ranks == nullptr || options.ranks->rank() == 0;
    const ProgressReporter reporter(a.convert.dry_run || !speaks ? ProgressMode::kNone : a.progress,
                                    std::string(verb_name(a.verb)), progress);
    return convert(fs, options);
  } catch (const Error& error) {
    if (error.code() != Code::kCancelled || !caught_signal()) throw;
    report_stop(error.status(), kept_stage(fs, options), typed);
  }
}

}  // namespace

Outcome run_convert(const Arguments& a, FileSystem& fs, const Screen& screen,
                    const std::vector<std::string>& typed, RankGroup* ranks, Host* host) {
  check_request(a);
  ConvertOptions options = convert_options(a);
  options.ranks = ranks;
  ConvertReport report;
  const auto work = [&] {
    report = converted(a, fs, options, typed, host);
    return Outcome();
  };
  Outcome outcome =
      ranks != nullptr ? work() : read_steadily(fs, {a.words[0]}, /*writes=*/true, work);
  const Value document = convert_document(report, a.convert.dry_run);
  if (a.format == OutputFormat::kHuman) {
    outcome.out = render_convert(report, a.convert.dry_run, screen);
    if (const std::string balance = render_balance(report.balance); !balance.empty())
      outcome.err = fmt::format("{}: {}", tool_name(a.tool), balance);
  } else if (a.format == OutputFormat::kJson) {
    outcome.out = json_document(document);
  } else {
    constexpr LineField kLines[] = {{"files", "file"}, {"lost", "lost"}, {"notes", "note"}};
    outcome.out = ndjson_document(document, verb_name(a.verb), kLines);
  }
  const bool negative = !report.verify_findings.empty() || !report.lost.empty() ||
                        (!a.convert.dry_run && !report.published) ||
                        (a.strict && !is_whole(a, report));
  outcome.exit = negative ? kExitNegative : kExitDone;
  return outcome;
}

}  // namespace tessera::tools

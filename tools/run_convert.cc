#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

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

constexpr std::string_view kAsIndex = "as-index";  // --dtype

KeepPolicy keep_policy(const std::string& word) {
  if (word == "keep") return KeepPolicy::kKeep;
  if (word == "drop") return KeepPolicy::kDrop;
  return word == "error" ? KeepPolicy::kError : KeepPolicy::kDefault;
}

RankStatePolicy rank_state_policy(const std::string& word) {
  if (word == "keep") return RankStatePolicy::kKeep;
  if (word == "drop") return RankStatePolicy::kDrop;
  if (word == "rank0") return RankStatePolicy::kRank0;
  return word == "error" ? RankStatePolicy::kError : RankStatePolicy::kDefault;
}

OptimKeys optim_keys(const std::string& word) {
  if (word == "fqn") return OptimKeys::kFqn;
  return word == "id" ? OptimKeys::kId : OptimKeys::kKeep;
}

TiedPolicy tied_policy(const std::string& word) {
  if (word == "keep") return TiedPolicy::kKeep;
  if (word == "drop") return TiedPolicy::kDrop;
  return word == "error" ? TiedPolicy::kError : TiedPolicy::kDefault;
}

/// A shipped name, else a file.
RulesRequest rules_request(const std::string& value) {
  RulesRequest request = parse_rules_flag(value);
  for (const BuiltinRules& builtin : builtin_rules())
    if (builtin.name == request.name) return request;
  std::error_code error;
  const bool is_path = request.name.find_first_of("/.") != std::string::npos ||
                       std::filesystem::exists(request.name, error);
  if (is_path) request.text = file_text("--rules", request.name);
  if (is_path && request.text.empty())
    fail(Code::kInvalidArgument, fmt::format("--rules {}: the file is empty", request.name),
         "docs/rules.md describes the file");
  return request;
}

Transformations transformations(const Arguments& a) {
  Transformations out;
  if (!a.rules.empty()) out.rules = rules_request(a.rules);
  out.strict_rules = a.strict_rules;
  out.tied = tied_policy(a.tied);
  out.vocab_size = a.vocab_size;
  out.vocab_tensors = a.vocab_tensors;
  if (!a.dtype.empty() && a.dtype != kAsIndex) out.dtype = parse_float_type("--dtype", a.dtype);
  for (const std::string& rule : a.keep_dtypes) out.keep_dtypes.push_back(parse_keep_dtype(rule));
  return out;
}

/// What cannot be right whatever the source holds.
void check_request(const Arguments& a) {
  const std::string command(tool_name(a.tool));
  if (a.world_size && !a.mesh.empty()) {
    fail(Code::kInvalidArgument, "--world-size and --mesh exclude each other",
         "the mesh's product is the world size");
  }
  if (a.tool == Tool::kReshard && !a.world_size && a.mesh.empty()) {
    fail(Code::kInvalidArgument, "ckpt-reshard needs --world-size N or --mesh DIMS",
         "ckpt-reshard SRC DST --world-size 8; ckpt-convert changes the format alone");
  }
  if (!a.placements.empty() && a.mesh.empty()) {
    fail(Code::kInvalidArgument, "--placements needs --mesh",
         "as --mesh dp=2,tp=4 --placements '*.weight=shard(0),shard(1)'");
  }
  if (a.words[1].find("://") != std::string::npos) {
    fail(Code::kUnsupported,
         fmt::format("{} is a URL: results are written to local paths", printable(a.words[1])),
         fmt::format("write to a local path, then copy it: {} {} LOCAL, then upload LOCAL", command,
                     shell_quoted(a.words[0])));
  }
  require_format(a.from);
  require_format(a.to.empty() && a.words[1].ends_with(".h5") ? "hdf5" : a.to);
  if (a.tool == Tool::kConvert && a.to.empty()) {
    const std::string& dst = a.words[1];
    const bool implied =
        dst.ends_with(".safetensors") || dst.ends_with(".pt") || dst.ends_with(".h5");
    if (!implied) {
      fail(Code::kInvalidArgument,
           "ckpt-convert needs --to FORMAT, or a DST that ends in .safetensors, .pt or .h5",
           fmt::format("formats: {}", fmt::join(handled_formats(/*to_write=*/true), ", ")));
    }
  }
}

TargetRequest target_request(const Arguments& a) {
  TargetRequest target;
  target.world_size = a.world_size;
  if (!a.zero_stage.empty()) target.zero_stage = a.zero_stage[0] - '0';
  if (!a.mesh.empty()) target.mesh = Mesh::parse(a.mesh);
  for (const auto& [glob, text] : a.placements) {
    std::vector<Placement> placements = Placement::parse_list(text);
    if (static_cast<int>(placements.size()) != target.mesh->rank()) {
      fail(Code::kInvalidArgument,
           fmt::format("--placements {}={}: {} for a mesh of {} dims ({})", glob, text,
                       placements.size(), target.mesh->rank(), a.mesh));
    }
    target.placements.emplace_back(glob, std::move(placements));
  }
  target.replicate = a.replicate;
  target.max_shard_bytes = a.max_shard_bytes.value_or(0);
  target.values = keep_policy(a.values);
  target.opaque = keep_policy(a.opaque);
  return target;
}

ConvertOptions convert_options(const Arguments& a) {
  ConvertOptions options;
  options.source = a.words[0];
  options.destination = a.words[1];
  options.from = a.from;
  options.flat_layout = flat_layout_text(a.flat_layout);
  options.assume_plain = a.assume_plain;
  options.to = a.to;
  options.command = tool_name(a.tool);
  options.target = target_request(a);
  options.rank_state = rank_state_policy(a.rank_state);
  options.selection = selection(a, a.root);
  options.optim_keys = optim_keys(a.optim_keys);
  options.prefer_master = a.prefer == "master";
  options.names.strip_prefix = a.strip_prefix;
  for (const std::string& rule : a.rename) options.names.renames.push_back(parse_rename(rule));
  if (!a.map_file.empty())
    options.names.map = parse_name_map(file_text("--map", a.map_file), a.map_file);
  options.transform = transformations(a);
  options.as_index = a.as_index;
  options.dtype_as_index = a.dtype == kAsIndex;
  options.copy_assets = a.copy_assets.has_value();
  options.assets_directory = a.copy_assets.value_or("");
  options.memory_limit_bytes = a.mem_limit_bytes.value_or(0);
  options.threads = a.threads.value_or(0);
  options.dry_run = a.dry_run;
  options.force = a.force;
  options.resume = a.resume;
  options.keep = !a.no_keep;
  options.verify = a.verify;
  options.salvage = a.salvage;
  return options;
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
                        const std::vector<std::string>& typed) {
  // Both outlive the process' last signal, which may come at any time from now on.
  static CancelToken cancel;
  Progress progress;
  options.progress = &progress;
  options.cancel = &cancel;
  install_signal_handlers(&cancel);
  try {
    const bool speaks = options.ranks == nullptr || options.ranks->rank() == 0;
    const ProgressReporter reporter(a.dry_run || !speaks ? ProgressMode::kNone : a.progress,
                                    std::string(verb_name(a.verb)), progress);
    return convert(fs, options);
  } catch (const Error& error) {
    if (error.code() != Code::kCancelled || !caught_signal()) throw;
    report_stop(error.status(), kept_stage(fs, options), typed);
  }
}

}  // namespace

Outcome run_convert(const Arguments& a, FileSystem& fs, const Screen& screen,
                    const std::vector<std::string>& typed, RankGroup* ranks) {
  check_request(a);
  ConvertOptions options = convert_options(a);
  options.ranks = ranks;
  ConvertReport report;
  const auto work = [&] {
    report = converted(a, fs, options, typed);
    return Outcome();
  };
  Outcome outcome =
      ranks != nullptr ? work() : read_steadily(fs, {a.words[0]}, /*writes=*/true, work);
  const Value document = convert_document(report, a.dry_run);
  if (a.format == OutputFormat::kHuman) {
    outcome.out = render_convert(report, a.dry_run, screen);
    if (const std::string balance = render_balance(report.balance); !balance.empty())
      outcome.err = fmt::format("{}: {}", tool_name(a.tool), balance);
  } else if (a.format == OutputFormat::kJson) {
    outcome.out = json_document(document);
  } else {
    constexpr LineField kLines[] = {{"files", "file"}, {"lost", "lost"}, {"notes", "note"}};
    outcome.out = ndjson_document(document, verb_name(a.verb), kLines);
  }
  const bool negative =
      !report.verify_findings.empty() || !report.lost.empty() || (!a.dry_run && !report.published);
  outcome.exit = negative ? kExitNegative : kExitDone;
  return outcome;
}

}  // namespace tessera::tools

#include "tools/command.h"

#include <fmt/format.h>
#include <malloc.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>
#include <tessera/base/launched_ranks.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/format/training_folder.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "lib/storage/posix/errno_error.h"
#include "tools/args/text.h"
#include "tools/failure.h"
#include "tools/pager.h"
#include "tools/render/render.h"
#include "tools/signals.h"
#include "tools/version.h"

namespace tessera::tools {
namespace {

constexpr std::uint64_t kDefaultMemoryLimit = std::uint64_t{1} << 30;

/// 0, or the exit status: a closed pipe is 128 + SIGPIPE.
int write_all(int fd, std::string_view text) {
  Interruptions interruptions;
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (interruptions.retry()) continue;
      if (errno == EPIPE) return kExitSignal + 13;
      storage::fail_errno("write the result to", "stdout", errno);
    }
    interruptions.clear();
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// All of stdout, pieces gathered to what is worth a call of the system.
int write_outcome(const Outcome& outcome) {
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  std::string waiting;
  int trouble = write_all(STDOUT_FILENO, outcome.out);
  if (!outcome.rest) return trouble;
  outcome.rest([&](std::string_view piece) {
    waiting += piece;
    if (waiting.size() < kPiece) return;
    if (trouble == 0) trouble = write_all(STDOUT_FILENO, waiting);
    waiting.clear();
  });
  return trouble ? trouble : write_all(STDOUT_FILENO, waiting);
}

/// Looks and help; a conversion says little, and has worked for minutes.
bool wants_pager(const Arguments& arguments) {
  const bool is_page =
      arguments.tool == Tool::kInspect || arguments.special == Special::kHelp || arguments.help_all;
  return is_page && arguments.pager && !arguments.quiet && arguments.verb != Verb::kBrowse;
}

/// As write_outcome(), through a pager where there is one: who leaves that has seen enough.
int printed(const Outcome& outcome, bool paged) {
  Pager pager(paged && (!outcome.out.empty() || outcome.rest));
  const int trouble = write_outcome(outcome);
  return pager.runs() && trouble > kExitSignal ? 0 : trouble;
}

std::string examples_text(Tool tool) {
  const CommandText text = tool_text(tool);
  std::size_t width = 0;
  for (const CommandExample& example : text.examples)
    width = std::max(width, example.command.size());
  std::string lines;
  for (const CommandExample& example : text.examples) {
    const bool fits = example.command.size() + 2 + example.comment.size() + 2 <= 100;
    lines +=
        fits ? fmt::format("{}  # {}\n", example.command, example.comment) : example.command + "\n";
  }
  return lines;
}

std::string generated(const Arguments& arguments) {
  const CommandSpec spec = command_spec(arguments.tool);
  if (arguments.generate == "verify-codes") return codes_page(CodePage::kVerify);
  if (arguments.generate == "optim-codes") return codes_page(CodePage::kOptim);
  if (arguments.generate == "audit-codes") return codes_page(CodePage::kAudit);
  if (arguments.generate == "man") return render_man(spec);
  if (arguments.generate == "bash") return render_completion(spec, Shell::kBash);
  return render_completion(spec, arguments.generate == "zsh" ? Shell::kZsh : Shell::kFish);
}

std::string help_text(const Arguments& arguments) {
  const int width = std::min(make_screen(ColorMode::kNever).width, 100);
  if (arguments.tool == Tool::kInspect && arguments.verb_given) {
    return render_help(verb_spec(arguments.tool, arguments.verb), "ckpt-inspect ", width,
                       arguments.help_all);
  }
  return render_help(command_spec(arguments.tool), "", width, arguments.help_all);
}

std::string formats_text() {
  std::string lines;
  for (const FormatDriver* driver : all_formats()) {
    const Capabilities can = driver->capabilities();
    std::string notes = can.writes                    ? "reads, writes"
                        : as_training_folder(*driver) ? "reads, writes a model with its optimizer"
                                                      : "reads";
    if (!can.result_suffix.empty()) notes += fmt::format("; DST ending in {}", can.result_suffix);
    if (!can.preset.empty()) notes += fmt::format("; --to {}", can.preset);
    lines += fmt::format("{:<20} {}\n", driver->id(), notes);
  }
  return lines;
}

std::string special_text(const Arguments& arguments) {
  switch (arguments.special) {
    case Special::kExamples:
      return examples_text(arguments.tool);
    case Special::kHelp:
      return help_text(arguments);
    case Special::kVersion:
      return fmt::format("{} {}\n", tool_name(arguments.tool), kVersion);
    case Special::kFormats:
      return formats_text();
    case Special::kGenerate:
      return generated(arguments);
    case Special::kNone:
      break;
  }
  return {};
}

Outcome run(const Arguments& arguments, FileSystem& fs, const std::vector<std::string>& typed,
            std::unique_ptr<RankGroup>& ranks) {
  if (arguments.special != Special::kNone) return {special_text(arguments), 0, {}};
  const Screen screen = make_screen(arguments.color);
  if (arguments.tool == Tool::kInspect) return run_inspect(arguments, fs, screen);
  ranks = launched_ranks();
  if (!ranks) return run_convert(arguments, fs, screen, typed, nullptr);
  Outcome outcome = run_convert(arguments, fs, screen, typed, ranks.get());
  // One result, printed once, by rank 0; it knows what the others know.
  ranks->agree({});
  if (ranks->rank() != 0) outcome.out.clear(), outcome.err.clear();
  return outcome;
}

}  // namespace

std::uint64_t memory_limit(const Arguments& arguments) {
  if (arguments.mem_limit_bytes) return *arguments.mem_limit_bytes;
  return std::min<std::uint64_t>(kDefaultMemoryLimit, available_memory_bytes() / 2);
}

ReadOptions read_options(const Arguments& arguments) {
  ReadOptions options;
  options.memory_limit_bytes = memory_limit(arguments);
  options.pickle_limit_bytes = arguments.mem_limit_bytes.value_or(0);
  options.threads = arguments.threads.value_or(available_cpus());
  options.own = arguments.own;
  return options;
}

TransferOptions transfer_options(const Arguments& arguments, Progress* progress) {
  TransferOptions options;
  options.memory_limit_bytes = memory_limit(arguments);
  options.threads = arguments.threads.value_or(available_cpus());
  options.progress = progress;
  return options;
}

Selection selection(const Arguments& arguments, const std::string& root) {
  Selection result;
  result.root = root;
  result.include = arguments.include;
  result.exclude = arguments.exclude;
  if (!arguments.only.empty()) result.only = parse_part(arguments.only);
  result.parts_follow = arguments.dequantized;
  return result;
}

int run_tool(Tool tool, const std::vector<std::string>& typed, std::size_t called_by) {
#ifdef M_MMAP_THRESHOLD
  // Tables of a million tensors grow and go: what they leave goes back to the system. By itself
  // glibc keeps larger and larger pieces.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
  const std::span<const std::string> words = std::span(typed).subspan(called_by);
  const std::string name(tool_name(tool));
  install_signal_handlers(nullptr);
  std::unique_ptr<RankGroup> ranks;  // ends after everything was said: mpirun then ends the job
  try {
    const Arguments arguments = parse_arguments(tool, words);
    const auto fs = make_posix_file_system();
    const Outcome outcome = run(arguments, *fs, typed, ranks);
    const int trouble = printed(outcome, wants_pager(arguments));
    if (!outcome.err.empty()) std::fputs(outcome.err.c_str(), stderr);
    return trouble ? trouble : outcome.exit;
  } catch (...) {
    const Status status = current_exception_status();
    const int exit = exit_status(status.code);
    const bool alone = ranks && !ranks->failed_together();
    if (alone || launched_rank() == 0)
      std::fputs(failure_text(name, status, exit, requested_format(tool, words)).c_str(), stderr);
    if (alone) abort_launched(*ranks, exit);
    return exit;
  }
}

}  // namespace tessera::tools

#include "args.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>

#include "args_text.h"
#include "args_values.h"

namespace tessera::tools {
namespace {

// Stands for the missing value of --copy-assets. No path holds this character.
constexpr const char* kBareValue = "\x01";
constexpr const char* kFormat = "FORMAT";

using Setter = std::function<void(const std::string& flag, const std::string& value)>;

/// Adds options to a CLI11 app that write into an Arguments. CLI11 finds, splits and collects; what
/// a value means is ours, so that all messages about values read alike.
class Options {
 public:
  Options(CLI::App& app, Arguments& arguments) : to(arguments), app_(app) {}

  void group(const char* name) { group_ = name; }

  CLI::Option* value(const char* names, const char* placeholder, const char* text, Setter set) {
    const std::string all = names;
    const std::string flag = all.substr(all.rfind(',') + 1);  // npos + 1 is 0
    CLI::callback_t callback = [flag, set = std::move(set)](const CLI::results_t& results) {
      for (const std::string& result : results) set(flag, result);
      return true;
    };
    return app_.add_option(names, std::move(callback), text)
        ->type_name(placeholder)
        ->group(group_)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  void repeated(const char* names, const char* placeholder, const char* text, Setter set) {
    value(names, placeholder, text, std::move(set))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  void text(const char* names, const char* placeholder, const char* text, std::string& into) {
    value(names, placeholder, text, [&into](auto&, auto& v) { into = v; });
  }
  void texts(const char* names, const char* placeholder, const char* text,
             std::vector<std::string>& into) {
    repeated(names, placeholder, text, [&into](auto&, auto& v) { into.push_back(v); });
  }
  void choice(const char* names, const char* choices, const char* text, std::string& into) {
    value(names, choices, text,
          [&into, choices](auto& flag, auto& v) { into = one_of(flag, v, choices); });
  }
  void format(const char* names, const char* text, std::string& into, bool presets = false) {
    value(names, kFormat, text,
          [&into, presets](auto& flag, auto& v) { into = format_id(flag, v, presets); });
  }
  void whole(const char* names, const char* text, std::int64_t minimum,
             std::optional<std::int64_t>& into) {
    value(names, "N", text,
          [&into, minimum](auto& flag, auto& v) { into = whole_number(flag, v, minimum); });
  }
  void bytes(const char* names, const char* text, std::optional<std::uint64_t>& into) {
    value(names, "SIZE", text, [&into](auto& flag, auto& v) { into = size_in_bytes(flag, v); });
  }
  void real(const char* names, const char* text, std::optional<double>& into) {
    value(names, "X", text, [&into](auto& flag, auto& v) { into = tolerance(flag, v); });
  }
  void flag(const char* names, const char* text, bool& into) {
    app_.add_flag(names, into, text)
        ->group(group_)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  void switch_to(const char* name, const char* text, std::function<void()> set) {
    app_.add_flag_callback(name, std::move(set), text)->group(group_);
  }

  Arguments& to;

 private:
  CLI::App& app_;
  std::string group_ = "Options";
};

void add_output(Options& o) {
  Arguments& a = o.to;
  o.group("Output");
  o.value("--format", "human|json|ndjson",
          "form of the result on stdout: for people, one JSON document, or one document a line",
          [&a](auto& flag, auto& v) { a.format = output_format(flag, v); });
  o.value("--progress", "auto|bar|json|none",
          "progress on stderr; auto: a bar on a terminal, elsewhere one plain line every 30 s",
          [&a](auto& flag, auto& v) { a.progress = progress_mode(flag, v); });
  o.flag("--no-color", "no colours (they show on a terminal only; NO_COLOR does the same)",
         a.no_color);
}

void add_limits(Options& o) {
  Arguments& a = o.to;
  o.group("Limits");
  o.bytes("--mem-limit",
          "bound of staged tensor bytes, as 512MiB or 2GB; default: the smaller of 1GiB and half "
          "of the cgroup's limit",
          a.mem_limit_bytes);
  o.value(
      "--threads", "N", "worker threads; default: CPU affinity and cgroup quota",
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
  o.group("Selection");
  o.texts("--include", "GLOB", "only names that match the whole GLOB; * crosses dots", a.include);
  o.texts("--exclude", "GLOB", "leave out names that match; wins over --include", a.exclude);
  o.choice("--only", "model|optim|other", "only the model, the optimizer, or all else", a.only);
}

void add_ls(Options& o) {
  Arguments& a = o.to;
  o.group("Listing");
  o.flag("--chunks", "one line per stored chunk: its place in the tensor and in the files",
         a.chunks);
  o.whole("--rank", "only what writing rank N stored", 0, a.rank);
  o.text("--file", "FILE", "only what lies in FILE, a name or glob within the checkpoint", a.file);
  o.choice("--sort", "stored|name|size|file|offset", "order; default: as stored", a.sort);
  o.whole("--top", "only the first N after sorting", 1, a.top);
}

void add_show(Options& o) {
  o.group("Values");
  o.text("--slice", "RANGES", "which elements, as 0:4,:8 or 3,: (Python's rules, step 1)",
         o.to.slice);
  o.text("--npy", "FILE", "also write the slice as a NumPy file; - is stdout, and nothing else is",
         o.to.npy);
}

void add_level(Options& o, const char* name, const char* text, VerifyLevel level) {
  Arguments& a = o.to;
  o.switch_to(name, text, [&a, level] { a.level = level; });
}

void add_verify(Options& o) {
  o.group("Checks");
  add_level(o, "--quick", "metadata and file sizes only", VerifyLevel::kQuick);
  add_level(o, "--full", "every byte and checksum as well (the default)", VerifyLevel::kFull);
  add_level(o, "--deep", "values as well: replicas equal, pads zero", VerifyLevel::kDeep);
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
  o.text("--as", "DTYPE", "round both sides to DTYPE first, as bfloat16", a.as_dtype);
  o.flag("-q,--quiet", "print nothing: the exit status is the answer", a.quiet);
  o.whole("-n,--limit", "list at most N differences; default 20 for people, all in JSON", 1,
          a.limit);
}

void add_strict(Options& o) {
  o.flag("--strict", "exit 1 on warnings too, not on errors alone", o.to.strict);
}

void add_layout(Options& o) {
  Arguments& a = o.to;
  o.group("Layout");
  o.whole("--world-size", "number of writing ranks of the result", 1, a.world_size);
  o.text("--mesh", "DIMS", "ranks as a mesh of named dims, as dp=2,tp=4", a.mesh);
  o.repeated("--placements", "GLOB=P,P",
             "how tensors that match are laid on the mesh: shard(d), strided(d,f) or replicate, "
             "one per dim; first match wins",
             [&a](auto& flag, auto& v) { a.placements.push_back(key_and_value(flag, v)); });
  o.texts("--replicate", "GLOB", "store tensors that match as one chunk", a.replicate);
}

void add_contents(Options& o) {
  Arguments& a = o.to;
  o.group("Names and contents");
  o.texts("--rename", "OLD=NEW", "rename parameters, as 'layers.*=h.*'; their state follows",
          a.rename);
  o.text("--strip-prefix", "PREFIX", "take PREFIX off parameter names, as module.", a.strip_prefix);
  o.text("--map", "FILE", "rename by FILE: lines `old new`, or a JSON object", a.map_file);
  o.choice("--values", "keep|drop|error", "what becomes of non-tensor values", a.values);
  o.choice("--opaque", "keep|drop|error", "what becomes of objects of unknown classes", a.opaque);
  o.choice("--rank-state", "keep|drop|rank0|error", "what becomes of state that ranks own",
           a.rank_state);
  o.bytes("--max-shard-size", "safetensors: cut into files of at most SIZE", a.max_shard_bytes);
  o.value("--copy-assets", "DIR",
          "copy configuration, tokenizer and template files from DIR (default: beside the source)",
          [&a](auto&, auto& v) { a.copy_assets = v == kBareValue ? std::string() : v; })
      ->option_text("optional");
}

void add_writing(Options& o) {
  Arguments& a = o.to;
  o.group("Writing");
  o.flag("--dry-run", "say what would be written, and what it costs; write nothing", a.dry_run);
  o.flag("--force", "replace DST when it exists", a.force);
  o.flag("--resume", "continue an interrupted run of the same command", a.resume);
  o.flag("--no-keep", "when interrupted, keep nothing for --resume", a.no_keep);
  o.flag("--verify", "prove content, values, steps and groups against SRC before publishing",
         a.verify);
  o.flag("--salvage", "write what can be read of a damaged SRC; exit 1 if anything is lost",
         a.salvage);
}

void add_verb_options(Options& o, Verb verb) {
  const bool writes = verb == Verb::kReshard || verb == Verb::kConvert;
  if (writes) {
    o.group("Target");
    o.format("--to",
             verb == Verb::kConvert
                 ? "format of the result, or hf: the Hugging Face preset of safetensors"
                 : "format of the result; default: the source's",
             o.to.to, true);
    add_layout(o);
    add_contents(o);
    add_writing(o);
  }
  if (verb == Verb::kSummary) {
    o.group("Listing");
    o.flag("--globals", "every pickle global: known, opaque or denied; exit 4 if any is denied",
           o.to.globals);
  }
  if (verb == Verb::kLs) add_ls(o);
  if (verb == Verb::kShow) add_show(o);
  if (verb == Verb::kVerify) add_verify(o);
  if (verb == Verb::kDiff) add_diff(o);
  if (verb == Verb::kStat || verb == Verb::kOptim) o.group("Checks");
  if (verb == Verb::kStat || verb == Verb::kOptim || verb == Verb::kVerify) add_strict(o);
  add_source(o, verb == Verb::kDiff);
  add_limits(o);
  add_output(o);
}

/// Options that every command and subcommand has. The help flag is ours: CLI11's would print by
/// itself.
void add_specials(CLI::App& app, Arguments& a) {
  app.add_flag_callback(
         "-h,--help", [&a] { a.special = Special::kHelp; }, "show this help")
      ->group("General");
  app.add_flag_callback(
         "--version", [&a] { a.special = Special::kVersion; }, "show the version")
      ->group("General");
  app.add_option_function<std::string>("--generate",
                                       [&a](const std::string& v) {
                                         a.generate = one_of("--generate", v, "man|bash|zsh|fish");
                                         a.special = Special::kGenerate;
                                       })
      ->group("");  // hidden: for packaging
}

void define(CLI::App& app, Arguments& arguments, Verb verb) {
  app.set_help_flag();
  app.allow_extras();
  Options options(app, arguments);
  add_verb_options(options, verb);
  add_specials(app, arguments);
}

OptionSpec describe(const CLI::Option& option) {
  OptionSpec spec;
  for (const std::string& name : option.get_snames()) spec.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) spec.names.push_back("--" + name);
  if (option.get_expected_max() > 0) spec.value = option.get_type_name();
  spec.choices = choices_of(spec.value);
  if (spec.value == kFormat) spec.choices.assign(std::begin(kFormatIds), std::end(kFormatIds));
  if (spec.names.back() == "--to") spec.choices.emplace_back("hf");
  spec.value_optional = option.get_option_text() == "optional";
  spec.repeatable = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  spec.description = option.get_description();
  spec.group = option.get_group();
  return spec;
}

CommandSpec describe(const CLI::App& app, std::string_view name, CommandText text) {
  CommandSpec spec;
  spec.name = name;
  spec.summary = text.summary;
  spec.usage.assign(text.usage.begin(), text.usage.end());
  spec.details.assign(text.details.begin(), text.details.end());
  spec.examples = std::move(text.examples);
  for (const CLI::Option* option : app.get_options({})) {
    if (!option->get_group().empty()) spec.options.push_back(describe(*option));
  }
  return spec;
}

std::vector<std::string> names_of(const CommandSpec& spec) {
  std::vector<std::string> names;
  for (const OptionSpec& option : spec.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

bool takes_value(const CommandSpec& spec, const std::string& flag) {
  for (const OptionSpec& option : spec.options) {
    if (option.value.empty() || option.value_optional) continue;
    if (std::find(option.names.begin(), option.names.end(), flag) != option.names.end())
      return true;
  }
  return false;
}

std::optional<Verb> inspect_verb(std::string_view word) {
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Verb::kDiff); ++i) {
    if (verb_name(static_cast<Verb>(i)) == word) return static_cast<Verb>(i);
  }
  return std::nullopt;
}

/// Index of the first word that is neither a flag nor a flag's value; words.size() when there is
/// none.
std::size_t first_plain_word(std::span<const std::string> words) {
  if (words.empty() || words[0].empty() || words[0][0] != '-') return 0;
  const CommandSpec all = command_spec(Tool::kInspect);
  const auto any_takes = [&](const std::string& flag) {
    return std::any_of(all.commands.begin(), all.commands.end(),
                       [&](const CommandSpec& verb) { return takes_value(verb, flag); });
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") return std::min(i + 1, words.size());
    if (words[i].size() < 2 || words[i][0] != '-') return i;
    if (any_takes(words[i])) ++i;
  }
  return words.size();
}

/// A bare word that is no subcommand must be a path that exists, or look like one.
void check_first_word(const std::string& word) {
  std::error_code error;
  if (word.find_first_of("/.") != std::string::npos || std::filesystem::exists(word, error)) return;
  std::vector<std::string> verbs;
  for (int i = 0; i <= static_cast<int>(Verb::kDiff); ++i) {
    verbs.emplace_back(verb_name(static_cast<Verb>(i)));
  }
  std::string near = did_you_mean(word, verbs);
  if (near.empty()) near = fmt::format("; subcommands: {}", fmt::join(verbs, ", "));
  fail(Code::kInvalidArgument,
       fmt::format("\"{}\" is neither a subcommand nor a path here{}", printable(word), near));
}

/// What CLI11 did not take: plain words in their order, or the first unknown flag.
void take_words(const CLI::App& app, const CommandSpec& spec, Arguments& arguments) {
  for (const std::string& word : app.remaining()) {
    if (word.size() < 2 || word[0] != '-') {
      arguments.words.push_back(word);
      continue;
    }
    const std::string flag = word.substr(0, word.find('='));
    fail(Code::kInvalidArgument,
         fmt::format("unknown flag {}{}", printable(flag), did_you_mean(flag, names_of(spec))),
         fmt::format("{}{} --help lists the flags", tool_name(arguments.tool),
                     arguments.tool == Tool::kInspect ? fmt::format(" {}", spec.name) : ""));
  }
}

void check_word_count(const Arguments& a) {
  const WordCount wanted = word_count(a.verb);
  const std::string command = a.tool == Tool::kInspect
                                  ? fmt::format("{} {}", tool_name(a.tool), verb_name(a.verb))
                                  : std::string(tool_name(a.tool));
  if (a.words.size() < wanted.minimum) {
    fail(Code::kInvalidArgument,
         fmt::format("{} needs {}, got {} of them", command, wanted.names, a.words.size()),
         command + " --help shows examples");
  }
  if (a.words.size() > wanted.maximum) {
    fail(Code::kInvalidArgument,
         fmt::format("unexpected word \"{}\": {} takes {}", printable(a.words[wanted.maximum]),
                     command, wanted.names));
  }
  for (const std::string& word : a.words) {
    if (word.empty())
      fail(Code::kInvalidArgument, fmt::format("an empty word among {}", wanted.names));
  }
}

/// Words as CLI11 wants them: reversed, "--copy-assets" given a value, "--flag=" refused (CLI11
/// would eat the next word).
std::vector<std::string> prepared(std::span<const std::string> words) {
  std::vector<std::string> result;
  for (const std::string& word : words) {
    if (word.size() > 2 && word.starts_with("--") && word.find('=') == word.size() - 1) {
      fail(Code::kInvalidArgument, fmt::format("{} has an empty value", printable(word)));
    }
    result.push_back(word == "--copy-assets" ? fmt::format("--copy-assets={}", kBareValue) : word);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

std::string_view tool_name(Tool tool) {
  switch (tool) {
    case Tool::kInspect:
      return "ckpt-inspect";
    case Tool::kReshard:
      return "ckpt-reshard";
    case Tool::kConvert:
      return "ckpt-convert";
  }
  return "";
}

std::string_view verb_name(Verb verb) {
  constexpr std::string_view kNames[] = {"summary", "ls",     "show", "stat",    "optim",
                                         "hash",    "verify", "diff", "reshard", "convert"};
  return kNames[static_cast<std::size_t>(verb)];
}

OutputFormat requested_format(std::span<const std::string> words) {
  OutputFormat format = OutputFormat::kHuman;
  const auto set = [&format](std::string_view word) {
    if (word == "json") format = OutputFormat::kJson;
    if (word == "ndjson") format = OutputFormat::kNdjson;
    if (word == "human") format = OutputFormat::kHuman;
  };
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == "--format" && i + 1 < words.size()) set(words[i + 1]);
    if (words[i].starts_with("--format=")) set(std::string_view(words[i]).substr(9));
  }
  return format;
}

CommandSpec verb_spec(Tool tool, Verb verb) {
  Arguments unused;
  CLI::App app;
  define(app, unused, verb);
  return describe(app, tool == Tool::kInspect ? verb_name(verb) : tool_name(tool), verb_text(verb));
}

CommandSpec command_spec(Tool tool) {
  if (tool != Tool::kInspect) {
    return verb_spec(tool, tool == Tool::kReshard ? Verb::kReshard : Verb::kConvert);
  }
  Arguments unused;
  CLI::App app;
  app.set_help_flag();
  add_specials(app, unused);
  CommandSpec spec = describe(app, tool_name(tool), tool_text(tool));
  for (int i = 0; i <= static_cast<int>(Verb::kDiff); ++i) {
    spec.commands.push_back(verb_spec(tool, static_cast<Verb>(i)));
  }
  return spec;
}

Arguments parse_arguments(Tool tool, std::span<const std::string> words) {
  Arguments arguments;
  arguments.tool = tool;
  if (words.empty()) {
    arguments.special = Special::kExamples;
    return arguments;
  }
  std::vector<std::string> rest(words.begin(), words.end());
  bool bare_path = false;
  if (tool == Tool::kInspect) {
    const std::size_t at = first_plain_word(words);
    const auto verb = at < words.size() ? inspect_verb(words[at]) : std::nullopt;
    arguments.verb = verb.value_or(Verb::kSummary);
    arguments.verb_given = verb.has_value();
    bare_path = !verb && at < words.size();
    if (verb) rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    arguments.verb = tool == Tool::kReshard ? Verb::kReshard : Verb::kConvert;
    arguments.verb_given = true;
  }

  const auto dashes = std::find(rest.begin(), rest.end(), "--");
  const std::vector<std::string> after(dashes == rest.end() ? dashes : dashes + 1, rest.end());
  rest.erase(dashes, rest.end());

  CLI::App app;
  define(app, arguments, arguments.verb);
  std::vector<std::string> reversed = prepared(rest);
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    fail(Code::kInvalidArgument, error.what());
  }
  if (arguments.special != Special::kNone) return arguments;
  take_words(app, describe(app, verb_name(arguments.verb), verb_text(arguments.verb)), arguments);
  arguments.words.insert(arguments.words.end(), after.begin(), after.end());
  if (bare_path && !arguments.words.empty()) check_first_word(arguments.words.front());
  check_word_count(arguments);
  return arguments;
}

}  // namespace tessera::tools

#include "tools/args/args.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>

#include "tools/args/options.h"
#include "tools/args/text.h"
#include "tools/args/typed.h"
#include "tools/args/values.h"

namespace tessera::tools {
namespace {

constexpr const char* kOptionalValue = "optional";  // marks such options for the walk

/// Options that every command and subcommand has. The help flag is ours: CLI11's would print by
/// itself.
void add_specials(CLI::App& app, Arguments& a) {
  app.add_flag_callback(
         "-h,--help", [&a] { a.special = Special::kHelp; }, "show this help")
      ->group("General");
  app.add_flag_callback(
         "--help-all", [&a] { a.special = Special::kHelp, a.help_all = true; }, "show every option")
      ->group("General");
  app.add_flag_callback(
         "--version", [&a] { a.special = Special::kVersion; }, "show the version")
      ->group("General");
  app.add_flag_callback(
         "--formats", [&a] { a.special = Special::kFormats; },
         "show the formats, which are read and which are written")
      ->group("General");
  app.add_option_function<std::string>(
         "--generate",
         [&a](const std::string& v) {
           a.generate =
               one_of("--generate", v, "man|bash|zsh|fish|verify-codes|optim-codes|audit-codes");
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
  if (spec.value == kFormatPlaceholder) spec.choices = handled_formats(/*to_write=*/false);
  if (spec.names.back() == "--to") spec.choices = handled_formats(/*to_write=*/true);
  spec.value_optional = option.get_option_text() == kOptionalValue;
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
  spec.first_options.assign(text.first_options.begin(), text.first_options.end());
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

/// The flag that was meant; of one letter any other is as near.
std::string near_flag(const std::string& flag, const std::vector<std::string>& known) {
  constexpr std::string_view kHowMany[] = {"-n", "--limit", "--top"};
  if (std::ranges::find(kHowMany, flag) != std::end(kHowMany))
    for (const std::string& name : known)
      if (std::ranges::find(kHowMany, name) != std::end(kHowMany))
        return fmt::format("; did you mean {}?", name);
  return flag.size() > 2 ? did_you_mean(flag, known) : std::string();
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
         fmt::format("unknown flag {}{}", printable(flag), near_flag(flag, names_of(spec))),
         fmt::format("{}{} --help lists the flags", tool_name(arguments.tool),
                     arguments.tool == Tool::kInspect ? fmt::format(" {}", spec.name) : ""));
  }
}

void check_word_count(const Arguments& a, const std::vector<std::string>& flags) {
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
                     command, wanted.names),
         std::ranges::find(flags, "--include") != flags.end()
             ? fmt::format("--include '{}' chooses by name", printable(a.words[wanted.maximum]))
             : "");
  }
  for (const std::string& word : a.words) {
    if (word.empty())
      fail(Code::kInvalidArgument, fmt::format("an empty word among {}", wanted.names));
  }
}

/// "--dequantize bf16": a type is no path, and can only be the flag's.
bool takes_next(std::string_view flag, std::span<const std::string> after) {
  if (flag != "--dequantize" || after.empty()) return false;
  const std::optional<DType> type = dtype_from_word(after.front());
  return type && is_floating(*type);
}

/// Words as CLI11 wants them: reversed, flags whose value is optional given one, "--flag=" refused
/// (CLI11 would eat the next word).
std::vector<std::string> prepared(const CLI::App& app, std::span<const std::string> words) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() > 2 && word.starts_with("--") && word.find('=') == word.size() - 1) {
      fail(Code::kInvalidArgument, fmt::format("{} has an empty value", printable(word)));
    }
    const CLI::Option* option = word.starts_with("--") ? app.get_option_no_throw(word) : nullptr;
    const bool bare = option != nullptr && option->get_option_text() == kOptionalValue;
    if (bare && takes_next(word, words.subspan(i + 1))) {
      result.push_back(fmt::format("{}={}", word, words[++i]));
      continue;
    }
    result.push_back(bare ? fmt::format("{}={}", word, kBareValue) : word);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

CLI::Option* Options::add(const char* names, const char* placeholder, const char* text,
                          Setter set) {
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
void Options::value(const char* names, const char* placeholder, const char* text, Setter set) {
  add(names, placeholder, text, std::move(set));
}
void Options::repeated(const char* names, const char* placeholder, const char* text, Setter set) {
  add(names, placeholder, text, std::move(set))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}
void Options::optional_value(const char* names, const char* placeholder, const char* text,
                             Setter set) {
  add(names, placeholder, text, std::move(set))->option_text(kOptionalValue);
}
void Options::flag(const char* names, const char* text, bool& into) {
  app_.add_flag(names, into, text)
      ->group(group_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}
void Options::switch_to(const char* names, const char* text, std::function<void()> set) {
  app_.add_flag_callback(names, std::move(set), text)->group(group_);
}

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
  constexpr std::string_view kNames[] = {"summary", "ls",   "show",    "stat",   "optim", "hash",
                                         "verify",  "scan", "explain", "report", "audit", "trend",
                                         "browse",  "diff", "reshard", "convert"};
  return kNames[static_cast<std::size_t>(verb)];
}

OutputFormat requested_format(Tool tool, std::span<const std::string> typed) {
  const std::vector<std::string> words = in_our_words(tool, typed);
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

Arguments parse_arguments(Tool tool, std::span<const std::string> typed) {
  const std::vector<std::string> words = in_our_words(tool, typed);
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
  std::vector<std::string> reversed = prepared(app, rest);
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    fail(Code::kInvalidArgument, error.what());
  }
  if (arguments.special != Special::kNone) return arguments;
  const CommandSpec spec = describe(app, verb_name(arguments.verb), verb_text(arguments.verb));
  take_words(app, spec, arguments);
  arguments.words.insert(arguments.words.end(), after.begin(), after.end());
  if (bare_path && !arguments.words.empty()) check_first_word(arguments.words.front());
  check_word_count(arguments, names_of(spec));
  return arguments;
}

}  // namespace tessera::tools

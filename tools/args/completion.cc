#include <fmt/format.h>

#include <algorithm>

#include "tools/args/command_spec.h"

namespace tessera::tools {
namespace {

bool is_path(const OptionSpec& option) { return option.value == "FILE" || option.value == "DIR"; }

/// Inside single quotes of sh, zsh and fish.
std::string quoted(std::string_view text, std::string_view quote_escape) {
  std::string result;
  for (const char c : text) {
    if (c == '\'')
      result += quote_escape;
    else
      result += c;
  }
  return result;
}

std::string all_flags(const CommandSpec& spec) {
  std::vector<std::string> names;
  for (const OptionSpec& option : spec.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::string verb_names(const CommandSpec& spec) {
  std::vector<std::string> names;
  for (const CommandSpec& command : spec.commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string function_name(const std::string& command) {
  std::string name = "_" + command;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Distinct options over the command and its subcommands.
std::vector<OptionSpec> every_option(const CommandSpec& spec) {
  std::vector<OptionSpec> result = spec.options;
  for (const CommandSpec& command : spec.commands) {
    for (const OptionSpec& option : command.options) {
      const bool known = std::any_of(result.begin(), result.end(), [&](const OptionSpec& other) {
        return other.names == option.names;
      });
      if (!known) result.push_back(option);
    }
  }
  return result;
}

std::string bash(const CommandSpec& spec) {
  const std::string function = function_name(spec.name);
  std::string text = fmt::format(
      "# bash completion for {0}\n"
      "{1}() {{\n"
      "  local cur prev verb word flags\n"
      "  cur=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  prev=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n"
      "  COMPREPLY=()\n"
      "  case \"$prev\" in\n",
      spec.name, function);
  for (const OptionSpec& option : every_option(spec)) {
    if (option.value.empty() || option.value_optional) continue;
    const std::string names = fmt::format("{}", fmt::join(option.names, "|"));
    if (!option.choices.empty()) {
      text += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return;;\n", names,
                          fmt::join(option.choices, " "));
    } else if (is_path(option)) {
      text += fmt::format(
          "    {}) compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\")); return;;\n", names);
    } else {
      text += fmt::format("    {}) return;;\n", names);
    }
  }
  text += "  esac\n";
  text += fmt::format("  flags='{}'\n", all_flags(spec));
  if (!spec.commands.empty()) {
    text +=
        "  verb=''\n  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$word\" in\n";
    for (const CommandSpec& command : spec.commands) {
      text += fmt::format("      {0}) verb={0}; flags='{1}'; break;;\n", command.name,
                          all_flags(command));
    }
    text += "    esac\n  done\n";
  }
  text +=
      "  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")); return; fi\n";
  if (!spec.commands.empty()) {
    text += fmt::format(
        "  if [[ -z $verb && $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W '{}' -- "
        "\"$cur\")); fi\n",
        verb_names(spec));
  }
  text +=
      "  compopt -o filenames 2>/dev/null\n"
      "  COMPREPLY+=($(compgen -f -- \"$cur\"))\n";
  return text + fmt::format("}}\ncomplete -F {} {}\n", function, spec.name);
}

/// "'(-n --limit)'{-n,--limit}'[text]:N:action'" for _arguments.
std::string zsh_option(const OptionSpec& option) {
  std::string about;
  for (const char c : option.description) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') about += '\\';
    about += c;
  }
  about = quoted(about, "'\\''");
  std::string action;
  if (!option.choices.empty())
    action = fmt::format("({})", fmt::join(option.choices, " "));
  else if (is_path(option))
    action = "_files";
  else
    action = " ";
  std::string value;
  if (!option.value.empty()) {
    value = fmt::format("{}{}:{}", option.value_optional ? "::" : ":",
                        option.names.back().substr(2), action);
  }
  const std::string star = option.repeatable ? "*" : "";
  std::string text;
  for (const std::string& name : option.names) {
    // "=-": the value stands in the same word; "=": in the same word or the next.
    const bool is_long = name.starts_with("--") && !option.value.empty();
    const char* joiner = !is_long ? "" : option.value_optional ? "=-" : "=";
    text += fmt::format(" \\\n    '{}{}{}[{}]{}'", star, name, joiner, about, value);
  }
  return text;
}

std::string zsh(const CommandSpec& spec) {
  std::string text = fmt::format("#compdef {}\n\n", spec.name);
  const auto arguments = [](const CommandSpec& command) {
    std::string lines = "_arguments -s -S";
    for (const OptionSpec& option : command.options) lines += zsh_option(option);
    return lines + " \\\n    '*:path:_files'\n";
  };
  if (spec.commands.empty()) return text + arguments(spec);
  text += "local -a verbs\nverbs=(\n";
  for (const CommandSpec& command : spec.commands) {
    text += fmt::format("  '{}:{}'\n", command.name, quoted(command.summary, "'\\''"));
  }
  text +=
      ")\nif (( CURRENT == 2 )) && [[ $words[CURRENT] != -* ]]; then\n"
      "  _describe subcommand verbs\n  _files\n  return\nfi\ncase $words[2] in\n";
  for (const CommandSpec& command : spec.commands) {
    text += fmt::format("  {})\n  shift words; (( CURRENT-- ))\n  {}  ;;\n", command.name,
                        arguments(command));
  }
  text += "  *)\n  " + arguments(spec) + "  ;;\nesac\n";
  return text;
}

std::string fish_option(const std::string& command, const std::string& condition,
                        const OptionSpec& option) {
  std::string text = fmt::format("complete -c {}", command);
  if (!condition.empty()) text += fmt::format(" -n '{}'", condition);
  for (const std::string& name : option.names) {
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!option.value.empty() && !option.value_optional) {
    if (!option.choices.empty())
      text += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
    else
      text += is_path(option) ? " -r -F" : " -x";
  }
  return text + fmt::format(" -d '{}'\n", quoted(option.description, "\\'"));
}

std::string fish(const CommandSpec& spec) {
  std::string text = fmt::format("# fish completion for {}\n", spec.name);
  const std::string verbs = verb_names(spec);
  const std::string before =
      spec.commands.empty() ? "" : "not __fish_seen_subcommand_from " + verbs;
  for (const CommandSpec& command : spec.commands) {
    text += fmt::format("complete -c {} -n '{}' -a {} -d '{}'\n", spec.name, before, command.name,
                        quoted(command.summary, "\\'"));
  }
  for (const OptionSpec& option : spec.options) text += fish_option(spec.name, before, option);
  for (const CommandSpec& command : spec.commands) {
    for (const OptionSpec& option : command.options) {
      text += fish_option(spec.name, "__fish_seen_subcommand_from " + command.name, option);
    }
  }
  return text;
}

}  // namespace

std::string render_completion(const CommandSpec& spec, Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return bash(spec);
    case Shell::kZsh:
      return zsh(spec);
    case Shell::kFish:
      return fish(spec);
  }
  return {};
}

}  // namespace tessera::tools

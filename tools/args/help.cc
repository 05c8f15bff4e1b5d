#include <fmt/format.h>

#include <algorithm>

#include "tools/args/command_spec.h"
#include "tools/render/screen.h"

namespace tessera::tools {
namespace {

constexpr int kTextColumn = 30;

std::vector<std::string> groups_in_order(const CommandSpec& spec) {
  std::vector<std::string> groups;
  for (const OptionSpec& option : spec.options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  return groups;
}

/// "  heading      text", the text wrapped behind its column.
std::string entry(const std::string& heading, const std::string& text, int width) {
  const std::string indent(kTextColumn, ' ');
  std::string lines = wrap(text, width, indent);
  if (display_width(heading) + 4 > kTextColumn) return "  " + heading + "\n" + lines;
  return pad_right("  " + heading, kTextColumn) +
         (lines.empty() ? "\n" : lines.substr(static_cast<std::size_t>(kTextColumn)));
}

std::string option_entry(const OptionSpec& option, int width) {
  return entry(option_heading(option),
               option.description + (option.repeatable ? "; repeatable" : ""), width);
}

std::string first_options_text(const CommandSpec& spec, const std::string& name, int width) {
  std::string text = "\nOptions that most people need:\n";
  for (const std::string& first : spec.first_options)
    for (const OptionSpec& option : spec.options)
      if (option.names.back() == first) text += option_entry(option, width);
  const std::size_t more = spec.options.size() - spec.first_options.size();
  return text + fmt::format("\n{} more: {} --help-all\n", more, name);
}

std::string options_text(const CommandSpec& spec, int width) {
  std::string text;
  for (const std::string& group : groups_in_order(spec)) {
    text += "\n" + group + ":\n";
    for (const OptionSpec& option : spec.options) {
      if (option.group != group) continue;
      text += option_entry(option, width);
    }
  }
  return text;
}

}  // namespace

std::string option_heading(const OptionSpec& option) {
  std::string text = fmt::format("{}", fmt::join(option.names, ", "));
  if (option.value.empty()) return text;
  return text + (option.value_optional ? "[=" + option.value + "]" : " " + option.value);
}

std::string render_help(const CommandSpec& spec, const std::string& prefix, int width, bool all) {
  const std::string name = prefix + spec.name;
  std::string text = name + ": " + spec.summary + "\n\n";
  for (const std::string& usage : spec.usage) text += "  " + name + " " + usage + "\n";
  for (const std::string& paragraph : spec.details) text += "\n" + wrap(paragraph, width, "");
  if (!spec.commands.empty()) {
    text += "\nSubcommands:\n";
    for (const CommandSpec& command : spec.commands)
      text += entry(command.name, command.summary, width);
    text += "\n" + name + " SUBCOMMAND --help lists the options of each.\n";
  }
  const bool short_list = !all && !spec.first_options.empty();
  text += short_list ? first_options_text(spec, name, width) : options_text(spec, width);
  if (!spec.examples.empty()) text += "\nExamples:\n";
  for (const CommandExample& example : spec.examples) {
    text += fmt::format("  # {}\n  {}\n", example.comment, example.command);
  }
  return text;
}

}  // namespace tessera::tools

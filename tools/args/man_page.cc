#include <fmt/format.h>

#include <algorithm>

#include "tools/args/command_spec.h"
#include "tools/version.h"

namespace tessera::tools {
namespace {

/// Text for troff: backslashes, hyphens that must stay hyphens, and control characters at a line's
/// start.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else if (c == '\'')
      result += "\\(aq";
    else
      result += c;
  }
  if (!result.empty() && result[0] == '.') result.insert(0, "\\&");
  return result;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

std::string option_entry(const OptionSpec& option) {
  std::string names;
  for (const std::string& name : option.names) {
    if (!names.empty()) names += ", ";
    names += "\\fB" + escaped(name) + "\\fR";
  }
  if (!option.value.empty()) {
    const std::string value = "\\fI" + escaped(option.value) + "\\fR";
    names += option.value_optional ? "[=" + value + "]" : " " + value;
  }
  return ".TP\n" + names + "\n" + escaped(option.description) +
         (option.repeatable ? "; repeatable" : "") + "\n";
}

std::string options_of(const CommandSpec& spec, const std::vector<OptionSpec>& leave_out) {
  std::string text;
  for (const OptionSpec& option : spec.options) {
    const bool known =
        std::any_of(leave_out.begin(), leave_out.end(),
                    [&](const OptionSpec& other) { return other.names == option.names; });
    if (!known) text += option_entry(option);
  }
  return text;
}

/// Options that every subcommand has: described once.
std::vector<OptionSpec> common_options(const CommandSpec& spec) {
  std::vector<OptionSpec> common;
  if (spec.commands.empty()) return common;
  for (const OptionSpec& option : spec.commands[0].options) {
    const bool everywhere =
        std::all_of(spec.commands.begin(), spec.commands.end(), [&](const CommandSpec& command) {
          return std::any_of(command.options.begin(), command.options.end(),
                             [&](const OptionSpec& other) { return other.names == option.names; });
        });
    if (everywhere) common.push_back(option);
  }
  return common;
}

std::string usage_lines(const CommandSpec& spec, const std::string& name) {
  std::string text;
  for (const std::string& usage : spec.usage) {
    text += ".PP\n\\fB" + escaped(name) + "\\fR " + escaped(usage) + "\n";
  }
  return text;
}

std::string example_lines(const CommandSpec& spec) {
  std::string text;
  for (const CommandExample& example : spec.examples) {
    text += ".PP\n" + escaped(example.comment) + ":\n.RS 4\n.nf\n" + escaped(example.command) +
            "\n.fi\n.RE\n";
  }
  return text;
}

std::string exit_status_section() {
  return ".SH EXIT STATUS\n"
         ".IP 0 4\nDone.\n"
         ".IP 1 4\nA check ran and is negative.\n"
         ".IP 2 4\nUsage.\n"
         ".IP 3 4\nPATH not found, permission, or I/O.\n"
         ".IP 4 4\nCorrupt, unsafe, or changed while read.\n"
         ".IP 5 4\nUnsupported, or an ambiguous format.\n"
         ".IP 6 4\nNot enough memory or disk.\n"
         ".IP 70 4\nInternal error.\n"
         ".IP \"130, 143, 141\" 4\nInterrupted, terminated, broken pipe.\n";
}

}  // namespace

std::string render_man(const CommandSpec& spec) {
  std::string text = fmt::format(".TH {} 1 \"\" \"tessera {}\" \"User Commands\"\n",
                                 escaped(upper(spec.name)), kVersion);
  text += ".SH NAME\n" + escaped(spec.name) + " \\- " + escaped(spec.summary) + "\n";
  text += ".SH SYNOPSIS\n" + usage_lines(spec, spec.name);
  text += ".SH DESCRIPTION\n";
  for (const std::string& paragraph : spec.details) {
    if (!paragraph.starts_with("Exit status")) text += ".PP\n" + escaped(paragraph) + "\n";
  }
  const std::vector<OptionSpec> common = common_options(spec);
  if (!spec.commands.empty()) text += ".SH SUBCOMMANDS\n";
  for (const CommandSpec& command : spec.commands) {
    text += ".SS " + escaped(command.name) + "\n" + escaped(command.summary) + ".\n";
    text += usage_lines(command, spec.name + " " + command.name);
    for (const std::string& paragraph : command.details) {
      if (!paragraph.starts_with("PATH is")) text += ".PP\n" + escaped(paragraph) + "\n";
    }
    text += options_of(command, common) + example_lines(command);
  }
  text += ".SH OPTIONS\n";
  for (const OptionSpec& option : common) text += option_entry(option);
  text += options_of(spec, common);
  text += exit_status_section();
  text +=
      ".SH ENVIRONMENT\n.TP\n\\fBNO_COLOR\\fR\nno colours when set\n"
      ".TP\n\\fBCOLUMNS\\fR\nwidth of the output\n";
  if (!spec.examples.empty()) text += ".SH EXAMPLES\n" + example_lines(spec);
  return text;
}

}  // namespace tessera::tools

#pragma once
// A command as data: what help, man pages and shell completions are printed from. Filled by walking
// the option definitions of the parser (args.cc), so that no flag can be parsed and missing from a
// page, or the reverse.
#include <string>
#include <vector>

namespace tessera::tools {

struct OptionSpec {
  std::vector<std::string> names;    // "-q", "--quiet"
  std::string value;                 // "SIZE", "human|json|ndjson"; empty for a switch
  std::vector<std::string> choices;  // of `value`, where it lists them
  bool value_optional = false;       // --copy-assets[=DIR]
  bool repeatable = false;
  std::string description;
  std::string group;  // heading it is printed under
};

struct CommandExample {
  std::string command;
  std::string comment;
};

struct CommandSpec {
  std::string name;                  // "ckpt-inspect", "ls"
  std::string summary;               // one line
  std::vector<std::string> usage;    // without the leading command's name
  std::vector<std::string> details;  // paragraphs
  std::vector<OptionSpec> options;
  std::vector<std::string> first_options;  // what --help lists; empty: all of them
  std::vector<CommandExample> examples;
  std::vector<CommandSpec> commands;
};

/// "-n, --limit N"; value placeholder included.
std::string option_heading(const OptionSpec& option);

/// Text of --help, wrapped at `width` columns. `prefix`: what stands before the command's name
/// ("ckpt-inspect " for a verb). `all`: every option, by groups; else those that most people need.
std::string render_help(const CommandSpec& spec, const std::string& prefix, int width, bool all);

/// Man page in man(7) macros.
std::string render_man(const CommandSpec& spec);

enum class Shell { kBash, kZsh, kFish };
std::string render_completion(const CommandSpec& spec, Shell shell);

}  // namespace tessera::tools

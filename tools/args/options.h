#pragma once
// Options: how a flag is declared, without CLI11's header. What a value means is ours
// (values.h), so that all messages about values read alike; CLI11 finds, splits and collects.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/args/args.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::tools {

/// Placeholder of options that take a format id.
inline constexpr const char* kFormatPlaceholder = "FORMAT";
/// Stands for the missing value of an option whose value is optional. No path holds this character.
inline constexpr const char* kBareValue = "\x01";

/// Adds options to a CLI11 app that write into an Arguments; both are borrowed until parsing is
/// done. A text ends as given; `names` are comma separated, the last one names the option in
/// messages.
class Options {
 public:
  using Setter = std::function<void(const std::string& flag, const std::string& value)>;

  Options(CLI::App& app, Arguments& arguments) : to(arguments), app_(app) {}

  /// Heading of the options that follow; "" hides them.
  void group(const char* name) { group_ = name; }

  void value(const char* names, const char* placeholder, const char* text, Setter set);
  void repeated(const char* names, const char* placeholder, const char* text, Setter set);
  /// "--flag" or "--flag=VALUE"; without a value, kBareValue.
  void optional_value(const char* names, const char* placeholder, const char* text, Setter set);
  void flag(const char* names, const char* text, bool& into);
  void switch_to(const char* names, const char* text, std::function<void()> set);

  void text(const char* names, const char* placeholder, const char* text, std::string& into);
  void texts(const char* names, const char* placeholder, const char* text,
             std::vector<std::string>& into);
  void choice(const char* names, const char* choices, const char* text, std::string& into);
  void format(const char* names, const char* text, std::string& into, bool presets = false);
  void whole(const char* names, const char* text, std::int64_t minimum,
             std::optional<std::int64_t>& into);
  void real(const char* names, const char* text, std::optional<double>& into);

  /// One that a format declares.
  void own(const FormatOption& option);

  Arguments& to;

 private:
  CLI::Option* add(const char* names, const char* placeholder, const char* text, Setter set);

  CLI::App& app_;
  std::string group_ = "Options";
};

/// Those that set ConvertOptions (lib/ops/convert/flags.h), into Arguments::convert.
void add_convert_flags(Options& options);
/// Every option of a verb.
void add_verb_options(Options& options, Verb verb);

}  // namespace tessera::tools

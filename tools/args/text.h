#pragma once
// What help and the manual say about each command beside its options.
#include <span>
#include <string_view>
#include <vector>

#include "tools/args/args.h"

namespace tessera::tools {

struct CommandText {
  std::string_view summary;
  std::vector<std::string_view> usage;
  std::vector<std::string_view> details;
  std::vector<CommandExample> examples;
  std::vector<std::string_view> first_options = {};  // the ten at most that --help lists
};

CommandText tool_text(Tool tool);
CommandText verb_text(Verb verb);
/// How many words (PATHs, names) a verb takes.
struct WordCount {
  std::size_t minimum = 1;
  std::size_t maximum = 1;
  std::string_view names;  // "PATH NAME"
};
WordCount word_count(Verb verb);

}  // namespace tessera::tools

#include "tools/args/typed.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tessera::tools {
namespace {

bool is_path(const std::string& word) {
  std::error_code error;
  return std::filesystem::exists(word, error);
}

/// The first word, where it is one of another tool's verbs.
void replace_verb(std::vector<std::string>& words) {
  if (words.empty() || is_path(words[0])) return;
  if (words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  } else if (words[0] == "formats" && words.size() == 1) {
    words[0] = "--formats";
  } else if (words[0] == "info") {
    words[0] = "summary";
  } else if (words[0] == "tree") {
    words[0] = "ls";
    words.push_back("--tree");
  }
}

}  // namespace

std::vector<std::string> in_our_words(Tool tool, std::span<const std::string> typed) {
  std::vector<std::string> words(typed.begin(), typed.end());
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> after(dashes, words.end());
  words.erase(dashes, words.end());
  for (std::string& word : words) {
    if (word == "--json") word = "--format=json";
    if (word == "-V") word = "--version";
  }
  if (tool == Tool::kInspect) {
    replace_verb(words);
  } else if (const auto flag = std::find(words.begin(), words.end(), "-o");
             flag != words.end() && flag + 1 != words.end()) {
    const std::string destination = flag[1];  // after SRC, wherever the flag stands
    words.erase(flag, flag + 2);
    words.push_back(destination);
  }
  words.insert(words.end(), after.begin(), after.end());
  return words;
}

}  // namespace tessera::tools

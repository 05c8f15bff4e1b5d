#include <tessera/base/text.h>

#include <optional>

namespace tessera {
namespace {

/// Matches the class that starts at pattern[at] == '[' against `c` and moves `at` past it. nullopt:
/// no closing bracket, so that the '[' stands for itself.
std::optional<bool> match_class(std::string_view pattern, std::size_t& at, char c) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  const auto letter = [&pattern](std::size_t& k) {
    if (pattern[k] == '\\' && k + 1 < pattern.size()) ++k;
    return static_cast<unsigned char>(pattern[k++]);
  };
  // A ']' right after the opening is a member.
  for (bool first = true; i < pattern.size() && (first || pattern[i] != ']'); first = false) {
    const unsigned char low = letter(i);
    unsigned char high = low;
    if (i + 1 < pattern.size() && pattern[i] == '-' && pattern[i + 1] != ']') {
      ++i;
      high = letter(i);
    }
    const auto value = static_cast<unsigned char>(c);
    found |= low <= value && value <= high;
  }
  if (i >= pattern.size()) return std::nullopt;
  at = i + 1;
  return found != negated;
}

/// Matches one non-star element at pattern[at] against `c`; on success moves `at` past the element.
bool match_one(std::string_view pattern, std::size_t& at, char c) {
  const char p = pattern[at];
  if (p == '?') {
    ++at;
    return true;
  }
  if (p == '[') {
    std::size_t next = at;
    if (const auto matched = match_class(pattern, next, c)) {
      if (*matched) at = next;
      return *matched;
    }
  }
  const bool quoted = p == '\\' && at + 1 < pattern.size();
  if (pattern[at + quoted] != c) return false;
  at += 1 + quoted;
  return true;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view name) {
  // Only the last star ever needs to take more: what stood before it has matched, and can stay. So
  // each character of the name is tried against each element of the pattern at most once per star.
  std::size_t p = 0;
  std::size_t n = 0;
  std::optional<std::size_t> star;
  std::size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
    } else if (p < pattern.size() && match_one(pattern, p, name[n])) {
      ++n;
    } else if (star) {
      p = *star;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace tessera

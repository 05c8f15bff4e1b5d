#include "lib/format/deepspeed_universal/name_pattern.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <string>

namespace tessera::deepspeed {
namespace {

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

}  // namespace

std::optional<NamePattern::Bytes> NamePattern::single(std::string_view& text) {
  constexpr std::string_view kSpecial = "()[]{}|^$*+?";
  const auto first = static_cast<unsigned char>(text[0]);
  Bytes out;
  if (first >= 0x80 || kSpecial.find(text[0]) != kSpecial.npos) return std::nullopt;
  text.remove_prefix(1);
  if (first == '.') return out.set().reset('\n');
  if (first != '\\') return out.set(first);
  if (text.empty()) return std::nullopt;
  const auto escaped = static_cast<unsigned char>(text[0]);
  if (escaped >= 0x80) return std::nullopt;
  text.remove_prefix(1);
  if (!is_word(static_cast<char>(escaped)) || escaped == '_') return out.set(escaped);
  if (escaped != 'd' && escaped != 'w') return std::nullopt;
  for (unsigned c = 0; c < out.size(); ++c) {
    const char byte = static_cast<char>(c);
    out.set(c, escaped == 'd' ? is_digit(byte) : is_word(byte));
  }
  return out;
}

/// False for what may not follow.
bool NamePattern::take_count(std::string_view& text, Element& element) {
  constexpr std::string_view kCounts = "*+?";
  if (text.empty() || kCounts.find(text[0]) == kCounts.npos) return true;
  element.may_lack = text[0] != '+';
  element.may_repeat = text[0] != '?';
  text.remove_prefix(1);
  if (!text.empty() && text[0] == '?') text.remove_prefix(1);  // lazy: matches the same names
  return text.empty() || kCounts.find(text[0]) == kCounts.npos;
}

std::optional<NamePattern> NamePattern::parse(std::string_view text) {
  NamePattern out;
  if (text.starts_with('^')) text.remove_prefix(1);
  while (!text.empty()) {
    if (text == "$") {
      out.whole_ = true;
      return out;
    }
    const auto bytes = single(text);
    if (!bytes) return std::nullopt;
    Element element{.bytes = *bytes};
    if (!take_count(text, element)) return std::nullopt;
    out.elements_.push_back(element);
  }
  return out;
}

void NamePattern::reach(std::vector<bool>& places, std::size_t place) const {
  while (!places[place]) {
    places[place] = true;
    if (place == elements_.size() || !elements_[place].may_lack) return;
    ++place;
  }
}

bool NamePattern::matches(std::string_view name) const {
  const std::size_t end = elements_.size();
  std::vector<bool> at(end + 1);
  reach(at, 0);
  for (const char c : name) {
    if (at[end] && !whole_) return true;
    std::vector<bool> next(end + 1);
    for (std::size_t i = 0; i < end; ++i) {
      if (!at[i] || !elements_[i].bytes.test(static_cast<unsigned char>(c))) continue;
      reach(next, i + 1);
      if (elements_[i].may_repeat) reach(next, i);
    }
    if (std::ranges::find(next, true) == next.end()) return false;
    at = std::move(next);
  }
  return at[end];
}

}  // namespace tessera::deepspeed

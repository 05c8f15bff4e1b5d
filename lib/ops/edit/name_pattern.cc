#include "lib/ops/edit/name_pattern.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

namespace tessera {

NamePattern::NamePattern(std::string_view pattern) {
  for (std::size_t at = 0; at < pattern.size();) {
    const std::size_t open = std::min(pattern.find('{', at), pattern.size());
    if (open > at) pieces_.push_back({false, std::string(pattern.substr(at, open - at))});
    if (open == pattern.size()) break;
    const std::size_t close = pattern.find('}', open);
    const bool adjacent = !pieces_.empty() && pieces_.back().capture;
    if (close == std::string_view::npos || close == open + 1 || adjacent) {
      fail(Code::kInvalidArgument,
           fmt::format(
               "\"{}\" is not a name pattern: each {{name}} needs text, and something between "
               "it and the next",
               printable(pattern)));
    }
    pieces_.push_back({true, std::string(pattern.substr(open + 1, close - open - 1))});
    at = close + 1;
  }
}

bool NamePattern::match_from(std::size_t piece, std::string_view rest, Captures& captures) const {
  if (piece == pieces_.size()) return rest.empty();
  const Piece& now = pieces_[piece];
  if (!now.capture) {
    return rest.starts_with(now.text) &&
           match_from(piece + 1, rest.substr(now.text.size()), captures);
  }
  const std::size_t most = std::min(rest.find('.'), rest.size());
  for (std::size_t length = 1; length <= most; ++length) {
    const std::string text(rest.substr(0, length));
    const auto known = captures.find(now.text);
    if (known != captures.end() && known->second != text) continue;
    Captures tried = captures;
    tried[now.text] = text;
    if (!match_from(piece + 1, rest.substr(length), tried)) continue;
    captures = std::move(tried);
    return true;
  }
  return false;
}

std::optional<Captures> NamePattern::match(std::string_view name) const {
  Captures captures;
  if (!match_from(0, name, captures)) return std::nullopt;
  return captures;
}

std::string NamePattern::text() const {
  std::string text;
  for (const Piece& piece : pieces_)
    text += piece.capture ? fmt::format("{{{}}}", piece.text) : piece.text;
  return text;
}

std::string NamePattern::fill(const Captures& captures) const {
  std::string name;
  for (const Piece& piece : pieces_) {
    if (!piece.capture) {
      name += piece.text;
      continue;
    }
    const auto found = captures.find(piece.text);
    if (found == captures.end()) {
      fail(Code::kInvalidArgument,
           fmt::format("the rules' name \"{}\": nothing on the other side gives {{{}}} a value",
                       text(), piece.text));
    }
    name += found->second;
  }
  return name;
}

bool NamePattern::has(std::string_view capture) const {
  return std::ranges::any_of(
      pieces_, [&](const Piece& piece) { return piece.capture && piece.text == capture; });
}

}  // namespace tessera

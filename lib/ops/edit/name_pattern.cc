#include "lib/ops/edit/name_pattern.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>

namespace tessera {
namespace {

constexpr std::size_t kMostDigits = 9;

/// A number as Python prints it.
std::optional<std::int64_t> plain_number(std::string_view text) {
  if (!is_decimal(text) || text.size() > kMostDigits || (text.size() > 1 && text[0] == '0'))
    return std::nullopt;
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

NamePattern::NamePattern(std::string_view pattern, const PatternNumbers& numbers) {
  for (std::size_t at = 0; at < pattern.size();) {
    const std::size_t open = std::min(pattern.find('{', at), pattern.size());
    if (open > at) pieces_.push_back({false, std::string(pattern.substr(at, open - at))});
    if (open == pattern.size()) break;
    const std::size_t close = pattern.find('}', open);
    const bool adjacent = !pieces_.empty() && pieces_.back().capture;
    Piece piece;
    if (close != std::string_view::npos && !adjacent)
      piece = capture_of(pattern.substr(open + 1, close - open - 1), numbers);
    if (piece.text.empty() || (piece.count != 0 && piece.number.empty())) {
      fail(Code::kInvalidArgument,
           fmt::format(
               "\"{}\" is not a name pattern: each {{name}} needs text, and something between "
               "it and the next",
               printable(pattern)));
    }
    pieces_.push_back(std::move(piece));
    at = close + 1;
  }
}

NamePattern::Piece NamePattern::capture_of(std::string_view inside, const PatternNumbers& numbers) {
  Piece piece;
  piece.capture = true;
  const std::size_t sign = std::min(inside.find_first_of("<+"), inside.size());
  piece.text = inside.substr(0, sign);
  if (sign == inside.size()) return piece;
  piece.count = inside[sign];
  piece.number = inside.substr(sign + 1);
  if (const auto found = numbers.find(piece.number); found != numbers.end())
    piece.value = found->second;
  return piece;
}

/// What `run` is captured as; nullopt: it is not taken.
std::optional<std::string> NamePattern::value_of(const Piece& piece, std::string_view run) {
  if (piece.count == 0 || (piece.count == '<' && !piece.value)) return std::string(run);
  const auto number = plain_number(run);
  if (!number || !piece.value) return std::nullopt;
  if (piece.count == '<')
    return *number < *piece.value ? std::optional(std::string(run)) : std::nullopt;
  if (*number < *piece.value) return std::nullopt;
  return fmt::format("{}", *number - *piece.value);
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
    const auto text = value_of(now, rest.substr(0, length));
    if (!text) continue;
    const auto known = captures.find(now.text);
    if (known != captures.end() && known->second != *text) continue;
    Captures tried = captures;
    tried[now.text] = *text;
    if (!match_from(piece + 1, rest.substr(length), tried)) continue;
    captures = std::move(tried);
    return true;
  }
  return false;
}

std::optional<Captures> NamePattern::match(std::string_view name) const {
  // Most names end in another way than a pattern; this is the quick way to see it.
  if (!pieces_.empty() && !pieces_.back().capture && !name.ends_with(pieces_.back().text))
    return std::nullopt;
  Captures captures;
  if (!match_from(0, name, captures)) return std::nullopt;
  return captures;
}

std::string NamePattern::text() const {
  std::string text;
  for (const Piece& piece : pieces_) {
    if (!piece.capture) {
      text += piece.text;
    } else if (piece.count == 0) {
      text += fmt::format("{{{}}}", piece.text);
    } else {
      text += fmt::format("{{{}{}{}}}", piece.text, piece.count, piece.number);
    }
  }
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
    if (piece.count != '+') {
      name += found->second;
      continue;
    }
    const auto number = plain_number(found->second);
    if (!piece.value || !number) {
      fail(Code::kInvalidArgument,
           fmt::format("the rules' name \"{}\": {}", text(),
                       piece.value ? fmt::format("\"{}\" is no number", printable(found->second))
                                   : fmt::format("the number of {} is not known", piece.number)),
           piece.value ? "" : fmt::format("add it: --rules NAME,{}=N", piece.number));
    }
    name += fmt::format("{}", *number + *piece.value);
  }
  return name;
}

std::set<std::string> NamePattern::captures() const {
  std::set<std::string> names;
  for (const Piece& piece : pieces_)
    if (piece.capture) names.insert(piece.text);
  return names;
}

std::set<std::string> NamePattern::numbers() const {
  std::set<std::string> names;
  for (const Piece& piece : pieces_)
    if (piece.count != 0) names.insert(piece.number);
  return names;
}

}  // namespace tessera

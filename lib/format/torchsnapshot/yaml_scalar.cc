#include "lib/format/torchsnapshot/yaml_scalar.h"

#include <tessera/base/text.h>

#include <charconv>
#include <cstdint>
#include <optional>

#include "lib/encoding/utf8.h"

namespace tessera::snapshot {
namespace {

/// What YAML 1.1 makes of a plain scalar, as far as JSON knows it.
Value plain_value(std::string_view text) {
  if (text == "null" || text == "~") return {};
  if (text == "true" || text == "false") return Value::boolean(text == "true");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  const bool octal = digits.size() > 1 && digits[0] == '0';
  if (error == std::errc() && end == text.data() + text.size() && !octal)
    return Value::integer(number);
  return Value::string(std::string(text));
}

bool starts_plain(std::string_view text) {
  if (text.empty()) return false;
  constexpr std::string_view kIndicators = ",[]{}#&*!|>'\"%@` \n\t\r";
  if (kIndicators.find(text[0]) != std::string_view::npos) return false;
  const bool lone = text.size() < 2 || text[1] == ' ' || text[1] == '\n';
  return !(lone && (text[0] == '-' || text[0] == '?' || text[0] == ':'));
}

/// The text of a scalar on one line, quotes and escapes as they stand.
class Scanner {
 public:
  Scanner(std::string_view text, bool one_line, std::size_t parent)
      : text_(text), one_line_(one_line), parent_(parent) {}

  YamlScalar scan() {
    if (text_.starts_with('\'')) {
      single_quoted();
    } else if (text_.starts_with('"')) {
      double_quoted();
    } else if (starts_plain(text_)) {
      plain();
    } else if (text_.starts_with("[]") || text_.starts_with("{}")) {
      out_.value = text_[0] == '[' ? Value::list({}) : Value::dict({});
      at_ = 2;
    } else {
      out_.error = "a value was expected";
    }
    out_.length = at_;
    if (out_.error.empty() && out_.value.is_string() && !is_valid_utf8(out_.value.as_string()))
      out_.error = "text is no UTF-8";
    return std::move(out_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }

  /// At a line end inside a scalar: to the first character of its next line. Line ends folded, or
  /// nullopt where the scalar does not go on.
  std::optional<std::size_t> fold() {
    if (one_line_) return std::nullopt;
    std::size_t breaks = 0;
    std::size_t at = at_;
    std::size_t column = 0;
    while (at < text_.size() && text_[at] == '\n') {
      ++breaks;
      ++at;
      column = 0;
      while (at < text_.size() && text_[at] == ' ') {
        ++at;
        ++column;
      }
    }
    if (at >= text_.size() || column <= parent_) return std::nullopt;
    out_.lines += breaks;
    at_ = at;
    return breaks;
  }
  static void append_fold(std::string& text, std::size_t breaks) {
    if (breaks == 1)
      text += ' ';
    else
      text.append(breaks - 1, '\n');
  }

  void plain() {
    std::string text;
    while (true) {
      const std::size_t start = at_;
      while (!at_end() && text_[at_] != '\n' && !is_colon()) ++at_;
      text += text_.substr(start, at_ - start);
      if (at_end() || text_[at_] != '\n') break;
      const std::size_t line_end = at_;
      const auto breaks = fold();
      if (!breaks) {
        at_ = line_end;
        break;
      }
      append_fold(text, *breaks);
    }
    if (text.ends_with(' ') || text.find(" #") != std::string::npos ||
        text.find_first_of("\t\r") != std::string::npos)
      out_.error = "no plain text";
    out_.value = plain_value(text);
  }
  bool is_colon() const {
    return text_[at_] == ':' &&
           (at_ + 1 >= text_.size() || text_[at_ + 1] == ' ' || text_[at_ + 1] == '\n');
  }

  void single_quoted() {
    std::string text;
    for (++at_; !at_end(); ++at_) {
      if (text_[at_] == '\'') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '\'') return close(std::move(text));
        ++at_;
      }
      if (text_[at_] != '\n') {
        text += text_[at_];
        continue;
      }
      if (!fold_into(text)) return;
      --at_;
    }
    out_.error = "a quote is not closed";
  }

  void double_quoted() {
    std::string text;
    for (++at_; !at_end(); ++at_) {
      if (text_[at_] == '"') return close(std::move(text));
      if (text_[at_] == '\\') {
        if (!escape(text)) return;
      } else if (text_[at_] == '\n') {
        if (!fold_into(text)) return;
        --at_;
      } else {
        text += text_[at_];
      }
    }
    out_.error = "a quote is not closed";
  }

  bool fold_into(std::string& text) {
    const auto breaks = fold();
    if (breaks)
      append_fold(text, *breaks);
    else
      out_.error = "a quote is not closed";
    return breaks.has_value();
  }

  /// At the backslash; ends at the last character of the escape.
  bool escape(std::string& text) {
    constexpr std::string_view kNames = "0abtnvfre \"\\/";
    constexpr std::string_view kMeanings("\0\a\b\t\n\v\f\r\x1b \"\\/", 13);
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    ++at_;
    if (c == '\n') {  // the line goes on: neither break nor blanks count
      const auto breaks = fold();
      if (!breaks || *breaks != 1) {
        out_.error = "a quote is not closed";
        return false;
      }
      --at_;
      return true;
    }
    if (const std::size_t i = kNames.find(c); c != '\0' && i != std::string_view::npos) {
      text += kMeanings[i];
      return true;
    }
    if (c == 'N' || c == '_' || c == 'L' || c == 'P') {
      append_utf8(text, c == 'N' ? 0x85 : c == '_' ? 0xa0 : c == 'L' ? 0x2028 : 0x2029);
      return true;
    }
    return hex_escape(c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, text);
  }
  bool hex_escape(std::size_t digits, std::string& text) {
    std::uint32_t code_point = 0;
    const char* begin = text_.data() + at_ + 1;
    const bool there = digits > 0 && text_.size() - at_ > digits;
    const auto end = there ? std::from_chars(begin, begin + digits, code_point, 16).ptr : begin;
    const bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
    if (!there || end != begin + digits || code_point > 0x10ffff || surrogate) {
      out_.error = "an escape that is not known";
      return false;
    }
    append_utf8(text, code_point);
    at_ += digits;
    return true;
  }

  void close(std::string text) {
    ++at_;
    out_.value = Value::string(std::move(text));
  }

  std::string_view text_;
  bool one_line_;
  std::size_t parent_;
  std::size_t at_ = 0;
  YamlScalar out_;
};

}  // namespace

YamlScalar read_key(std::string_view text) {
  YamlScalar key = Scanner(text.substr(0, text.find('\n')), true, 0).scan();
  const bool colon = key.error.empty() && key.length < text.size() && text[key.length] == ':' &&
                     (key.length + 1 >= text.size() || text[key.length + 1] == ' ' ||
                      text[key.length + 1] == '\n');
  const bool scalar = key.value.is_string() || key.value.is_int();
  if (!colon || !scalar) return {};
  ++key.length;
  return key;
}

YamlScalar read_scalar(std::string_view text, std::size_t parent) {
  return Scanner(text, false, parent).scan();
}

}  // namespace tessera::snapshot

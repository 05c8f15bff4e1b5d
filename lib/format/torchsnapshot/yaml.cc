#include "lib/format/torchsnapshot/yaml.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <charconv>
#include <set>
#include <string>

#include "lib/format/torchsnapshot/yaml_scalar.h"

namespace tessera::snapshot {
namespace {

constexpr int kMaxDepth = 16;

/// Stands at the first character of a node. `column()` is the node's column: nodes of one block
/// share it.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Value document() {
    begin_line();
    if (at_end()) fail_here("the document is empty");
    const std::size_t column = column_;
    Value root = block(0);
    if (!at_end() || column != 0) fail_here("text stands outside of the document");
    return root;
  }

 private:
  bool at_end() const { return pos_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\n';
  }
  static bool ends_token(char c) { return c == ' ' || c == '\n'; }
  bool at_indicator(char c) const { return peek() == c && ends_token(peek(1)); }
  [[noreturn]] void fail_here(std::string_view what) const {
    fail(Code::kCorrupt, fmt::format("line {}: {}", line_, what));
  }

  /// At the start of a line: stops at its first character.
  void begin_line() {
    const std::size_t start = pos_;
    while (!at_end() && text_[pos_] == ' ') ++pos_;
    column_ = pos_ - start;
    if (at_end()) return;
    const char c = text_[pos_];
    if (c == '\n' || c == '\t' || c == '\r' || c == '#' || c == '%' || c == '&' || c == '*' ||
        c == '!' || c == '|' || c == '>')
      fail_here(fmt::format("\"{}\" is not what dump() writes", printable(std::string(1, c))));
  }
  void end_line() {
    if (at_end()) return;
    if (text_[pos_] != '\n') fail_here("something follows the value");
    ++pos_;
    ++line_;
    begin_line();
  }
  /// Behind an indicator: the node stands on the same line, further right.
  void enter(std::size_t length) {
    pos_ += length;
    column_ += length;
  }

  Value block(int depth) {
    if (depth > kMaxDepth) fail_here("nested too deeply");
    if (at_indicator('-')) return sequence(depth);
    return mapping(depth);
  }

  Value sequence(int depth) {
    const std::size_t column = column_;
    ValueList items;
    while (!at_end() && column_ == column && at_indicator('-')) {
      if (peek(1) != ' ') fail_here("an empty item");
      enter(2);
      items.push_back(node(depth, column));
    }
    if (!at_end() && column_ > column) fail_here("unexpected indentation");
    return Value::list(std::move(items));
  }

  Value mapping(int depth) {
    const std::size_t column = column_;
    ValueDict items;
    std::set<std::string> seen;
    while (!at_end() && column_ == column && !at_indicator('-')) {
      if (at_indicator('?')) {
        if (peek(1) != ' ') fail_here("an empty key");
        enter(2);
        Value key = checked_key(scalar(column), seen);
        if (at_end() || column_ != column || !at_indicator(':')) fail_here("a key without a value");
        if (peek(1) != ' ') fail_here("an empty value");
        enter(2);
        items.emplace_back(std::move(key), node(depth, column));
      } else {
        Value key = checked_key(simple_key(), seen);
        const bool same_line = peek() == ' ';
        if (same_line) ++pos_;
        items.emplace_back(std::move(key), same_line ? scalar(column) : below(depth, column));
      }
    }
    if (!at_end() && column_ > column) fail_here("unexpected indentation");
    return Value::dict(std::move(items));
  }

  Value checked_key(Value key, std::set<std::string>& seen) const {
    if (!key.is_string() && !key.is_int()) fail_here("a key is neither text nor an integer");
    const std::string text =
        key.is_int() ? fmt::format("i{}", key.as_int()) : "s" + key.as_string();
    if (!seen.insert(text).second) fail_here("a key occurs twice");
    return key;
  }

  /// A scalar on one line and its colon.
  Value simple_key() {
    const YamlScalar key = read_key(text_.substr(pos_));
    if (key.length == 0) fail_here("a key was expected");
    pos_ += key.length;
    return key.value;
  }

  /// What follows "key:" on its own lines.
  Value below(int depth, std::size_t parent) {
    end_line();
    const bool deeper = !at_end() && column_ > parent;
    const bool indentless = !at_end() && column_ == parent && at_indicator('-');
    if (!deeper && !indentless) fail_here("a key without a value");
    return block(depth + 1);
  }

  /// What follows "- " or, of a long key, ": ": may be a block that starts on this line.
  Value node(int depth, std::size_t parent) {
    if (at_indicator('-') || at_indicator('?') || read_key(text_.substr(pos_)).length > 0)
      return block(depth + 1);
    return scalar(parent);
  }

  Value scalar(std::size_t parent) {
    const YamlScalar read = read_scalar(text_.substr(pos_), parent);
    if (!read.error.empty()) fail_here(read.error);
    pos_ += read.length;
    line_ += read.lines;
    end_line();
    return read.value;
  }

  std::string_view text_;
  std::size_t pos_ = 0;
  std::size_t column_ = 0;
  std::size_t line_ = 1;
};

}  // namespace

Value parse_yaml(std::string_view text) { return Reader(text).document(); }

}  // namespace tessera::snapshot

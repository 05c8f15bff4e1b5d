#pragma once
// JSON documents of the commands: built as ordered Values, printed whole (json) or cut into lines
// (ndjson). The rows of a field that may have a million are made while they are written.
#include <tessera/encoding/json.h>
#include <tessera/state/manifest.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/sink.h"

namespace tessera::tools {

/// Text from a file or a path: valid UTF-8 as it is, else with the offending bytes escaped.
Value json_text(std::string_view text);
/// A finite number, or "nan", "inf", "-inf" as a string.
Value json_real(double value);

/// An object under construction; keys stay in the order in which they are added.
class JsonObject {
 public:
  void add(std::string_view key, Value value) {
    entries_.emplace_back(json_text(key), std::move(value));
  }
  void add(std::string_view key, std::string_view text) { add(key, json_text(text)); }
  void add(std::string_view key, const std::string& text) { add(key, json_text(text)); }
  void add(std::string_view key, const char* text) { add(key, json_text(text)); }
  void add(std::string_view key, std::same_as<bool> auto value) { add(key, Value::boolean(value)); }
  void add(std::string_view key, std::integral auto value)
    requires(!std::same_as<decltype(value), bool>)
  {
    add(key, Value::integer(static_cast<std::int64_t>(value)));
  }
  void add(std::string_view key, double value) { add(key, json_real(value)); }
  /// null when absent.
  template <class T>
  void add(std::string_view key, const std::optional<T>& value) {
    value ? add(key, *value) : add(key, Value());
  }
  Value take() { return Value::dict(std::move(entries_)); }

 private:
  ValueDict entries_;
};

Value json_list(std::span<const std::int64_t> numbers);
Value json_list(std::span<const double> numbers);
Value json_list(std::span<const std::string> texts);
/// [f(item), ...]
template <class Items, class F>
Value json_map(const Items& items, F&& f) {
  ValueList list;
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(f(item));
  return Value::list(std::move(list));
}
/// {"name": value, ...} in order.
Value json_values_object(const std::vector<std::pair<std::string, Value>>& values);
/// {"code","severity","message","file","tensor"}
Value json_note(const Note& note);
Value json_notes(const std::vector<Note>& notes);

/// A field that ndjson cuts into lines of `type`: a list of objects, or (`values`) an object of
/// name -> value.
struct LineField {
  std::string_view field;
  std::string_view type;
};

/// Rows that stand for the list in `field` of a document: an object each.
struct JsonRows {
  std::string_view field;
  std::size_t count = 0;
  std::function<Value(std::size_t i)> row;
};

/// The whole document on one line.
std::string json_document(const Value& document);
void write_json(const Value& document, const JsonRows& rows, const Sink& sink);
/// A first line of `verb` type with every other field, a line per item, and
/// {"type":"end","count":lines before it}.
std::string ndjson_document(const Value& document, std::string_view verb,
                            std::span<const LineField> fields);
void write_ndjson(const Value& document, std::string_view verb, std::span<const LineField> fields,
                  const JsonRows& rows, const Sink& sink);

}  // namespace tessera::tools

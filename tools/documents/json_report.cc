#include "tools/documents/json_report.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace tessera::tools {
namespace {

Value with_type(std::string_view type, const ValueDict& rest) {
  ValueDict line{{Value::string("type"), Value::string(std::string(type))}};
  for (const auto& [key, value] : rest) line.emplace_back(key, value);
  return Value::dict(std::move(line));
}

const LineField* line_field(std::span<const LineField> fields, const Value& key) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const LineField& field) {
    return field.field == key.as_string();
  });
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace

Value json_text(std::string_view text) {
  constexpr std::size_t kRecent = 256;
  // Never destroyed: registering a destructor ends the program where memory is refused.
  thread_local auto* const recent = new std::array<Value, kRecent>;
  Value& last = (*recent)[std::hash<std::string_view>()(text) % kRecent];
  if (last.is_string() && last.as_string() == text) return last;
  return last = Value::string(is_valid_utf8(text) ? std::string(text) : printable(text));
}

Value json_real(double value) {
  if (std::isnan(value)) return Value::string("nan");
  if (std::isinf(value)) return Value::string(value > 0 ? "inf" : "-inf");
  return Value::real(value);
}

Value json_list(std::span<const std::int64_t> numbers) {
  return json_map(numbers, [](std::int64_t n) { return Value::integer(n); });
}
Value json_list(std::span<const double> numbers) {
  return json_map(numbers, [](double n) { return json_real(n); });
}
Value json_list(std::span<const std::string> texts) {
  return json_map(texts, [](const std::string& text) { return json_text(text); });
}

Value json_values_object(const std::vector<std::pair<std::string, Value>>& values) {
  ValueDict dict;
  dict.reserve(values.size());
  for (const auto& [name, value] : values) dict.emplace_back(json_text(name), value);
  return Value::dict(std::move(dict));
}

Value json_note(const Note& note) {
  JsonObject object;
  object.add("code", code_text(note.code));
  object.add("severity", severity_name(note.severity));
  object.add("file", note.file.empty() ? Value() : json_text(note.file));
  object.add("tensor", note.tensor.empty() ? Value() : json_text(note.tensor));
  object.add("message", printable(note.message));
  return object.take();
}
Value json_notes(const std::vector<Note>& notes) { return json_map(notes, json_note); }

std::string json_document(const Value& document) { return dump_json(document) + "\n"; }

std::string ndjson_document(const Value& document, std::string_view verb,
                            std::span<const LineField> fields) {
  ValueDict head;
  std::string lines;
  std::int64_t count = 1;
  const auto add_line = [&](std::string_view type, const ValueDict& content) {
    lines += dump_json(with_type(type, content)) + "\n";
    ++count;
  };
  for (const auto& [key, value] : document.as_dict()) {
    const LineField* field = line_field(fields, key);
    if (!field) {
      head.emplace_back(key, value);
    } else if (value.is_dict()) {
      for (const auto& [name, item] : value.as_dict()) {
        add_line(field->type, {{Value::string("name"), name}, {Value::string("value"), item}});
      }
    } else {
      for (const Value& item : value.as_list()) add_line(field->type, item.as_dict());
    }
  }
  const Value end = Value::dict({{Value::string("type"), Value::string("end")},
                                 {Value::string("count"), Value::integer(count)}});
  return dump_json(with_type(verb, head)) + "\n" + lines + dump_json(end) + "\n";
}

}  // namespace tessera::tools

#include "tools/documents/json_report.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>

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
  return Value::string(is_valid_utf8(text) ? std::string(text) : printable(text));
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

std::string json_document(const Value& document) {
  std::string text;
  write_json(document, {}, [&](std::string_view piece) { text += piece; });
  return text;
}

void write_json(const Value& document, const JsonRows& rows, const Sink& sink) {
  std::string_view separator = "{";
  for (const auto& [key, value] : document.as_dict()) {
    sink(fmt::format("{}{}:", separator, dump_json(key)));
    separator = ",";
    if (key.as_string() != rows.field) {
      sink(dump_json(value));
      continue;
    }
    sink("[");
    for (std::size_t i = 0; i < rows.count; ++i)
      sink(fmt::format("{}{}", i ? "," : "", dump_json(rows.row(i))));
    sink("]");
  }
  sink(document.as_dict().empty() ? "{}\n" : "}\n");
}

std::string ndjson_document(const Value& document, std::string_view verb,
                            std::span<const LineField> fields) {
  std::string text;
  write_ndjson(document, verb, fields, {}, [&](std::string_view piece) { text += piece; });
  return text;
}

void write_ndjson(const Value& document, std::string_view verb, std::span<const LineField> fields,
                  const JsonRows& rows, const Sink& sink) {
  ValueDict head;
  for (const auto& [key, value] : document.as_dict())
    if (line_field(fields, key) == nullptr) head.emplace_back(key, value);
  sink(dump_json(with_type(verb, head)) + "\n");
  std::int64_t count = 1;
  const auto add_line = [&](std::string_view type, const ValueDict& content) {
    sink(dump_json(with_type(type, content)) + "\n");
    ++count;
  };
  for (const auto& [key, value] : document.as_dict()) {
    const LineField* field = line_field(fields, key);
    if (field == nullptr) continue;
    if (field->field == rows.field) {
      for (std::size_t i = 0; i < rows.count; ++i) add_line(field->type, rows.row(i).as_dict());
    } else if (value.is_dict()) {
      for (const auto& [name, item] : value.as_dict())
        add_line(field->type, {{Value::string("name"), name}, {Value::string("value"), item}});
    } else {
      for (const Value& item : value.as_list()) add_line(field->type, item.as_dict());
    }
  }
  add_line("end", {{Value::string("count"), Value::integer(count)}});
}

}  // namespace tessera::tools

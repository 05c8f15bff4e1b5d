#include "tests/support/json_schema.h"

#include <fmt/format.h>
#include <tessera/base/bytes.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace tessera::testing {
namespace {

bool has_type(const Value& value, const std::string& type) {
  using Kind = Value::Kind;
  const Kind kind = value.kind();
  if (type == "null") return kind == Kind::kNone;
  if (type == "boolean") return kind == Kind::kBool;
  if (type == "integer") return kind == Kind::kInt;
  if (type == "number") return kind == Kind::kInt || kind == Kind::kFloat;
  if (type == "string") return kind == Kind::kString;
  if (type == "array") return kind == Kind::kList;
  if (type == "object") return value.is_dict();
  throw std::logic_error("unknown type in a schema: " + type);
}

class Validator {
 public:
  explicit Validator(const Value& root) : root_(root) {}
  std::vector<std::string> violations;

  void check(const Value& schema, const Value& value, const std::string& at) {
    for (const auto& [key, rule] : schema.as_dict())
      apply(key.as_string(), rule, schema, value, at);
  }

 private:
  void complain(const std::string& at, const std::string& what) {
    if (violations.size() < 20) violations.push_back(at + ": " + what);
  }

  void apply(const std::string& key, const Value& rule, const Value& schema, const Value& value,
             const std::string& at) {
    static const std::set<std::string> kSilent = {"$schema", "title", "description", "$defs"};
    if (kSilent.count(key)) return;
    if (key == "$ref") return check(referenced(rule.as_string()), value, at);
    if (key == "type") return check_type(rule, value, at);
    if (key == "const") {
      if (!(rule == value)) complain(at, "is not " + dump_json(rule));
    } else if (key == "enum") {
      const ValueList& all = rule.as_list();
      if (std::find(all.begin(), all.end(), value) == all.end())
        complain(at, dump_json(value) + " is none of " + dump_json(rule));
    } else if (key == "required") {
      for (const Value& name : rule.as_list()) {
        if (value.is_dict() && !value.find(name.as_string()))
          complain(at, "lacks " + name.as_string());
      }
    } else if (key == "properties") {
      for (const auto& [name, sub] : rule.as_dict()) {
        const Value* member = value.is_dict() ? value.find(name.as_string()) : nullptr;
        if (member) check(sub, *member, at + "." + name.as_string());
      }
    } else if (key == "additionalProperties") {
      check_additional(rule, schema, value, at);
    } else if (key == "items") {
      if (value.kind() != Value::Kind::kList) return;
      for (std::size_t i = 0; i < value.as_list().size(); ++i)
        check(rule, value.as_list()[i], fmt::format("{}[{}]", at, i));
    } else if (key == "minimum") {
      if (value.is_number() && value.as_real() < rule.as_real())
        complain(at, "is below " + dump_json(rule));
    } else if (key == "pattern") {
      check_pattern(rule.as_string(), value, at);
    } else {
      throw std::logic_error("a schema uses what the validator does not know: " + key);
    }
  }

  const Value& referenced(const std::string& ref) {
    const std::string prefix = "#/$defs/";
    const Value* defs = root_.find("$defs");
    const Value* found =
        defs && ref.starts_with(prefix) ? defs->find(ref.substr(prefix.size())) : nullptr;
    if (!found) throw std::logic_error("a schema refers to nothing: " + ref);
    return *found;
  }

  void check_type(const Value& rule, const Value& value, const std::string& at) {
    const ValueList one{rule};
    const ValueList& types = rule.is_string() ? one : rule.as_list();
    const bool fits = std::any_of(types.begin(), types.end(), [&](const Value& type) {
      return has_type(value, type.as_string());
    });
    if (!fits) complain(at, dump_json(value).substr(0, 60) + " is no " + dump_json(rule));
  }

  void check_additional(const Value& rule, const Value& schema, const Value& value,
                        const std::string& at) {
    if (!value.is_dict()) return;
    const Value* known = schema.find("properties");
    for (const auto& [name, member] : value.as_dict()) {
      if (known && known->find(name.as_string())) continue;
      if (rule.is_dict())
        check(rule, member, at + "." + name.as_string());
      else if (!rule.as_bool())
        complain(at, "has the unknown member " + name.as_string());
    }
  }

  void check_pattern(const std::string& pattern, const Value& value, const std::string& at) {
    if (pattern != "^[0-9a-f]{64}$")
      throw std::logic_error("unknown pattern in a schema: " + pattern);
    if (!value.is_string()) return;
    const std::string& text = value.as_string();
    if (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
      complain(at, text + " is not 64 hex digits");
    }
  }

  const Value& root_;
};

}  // namespace

std::vector<std::string> schema_violations(const Value& schema, const Value& document) {
  Validator validator(schema);
  validator.check(schema, document, "$");
  return validator.violations;
}

Value published_schema(const std::string& name) {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/docs/json/" + name + ".schema.json";
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("no schema at " + path);
  std::ostringstream text;
  text << stream.rdbuf();
  JsonLimits limits;
  limits.max_depth = 64;
  return parse_json(as_bytes(text.str()), limits);
}

}  // namespace tessera::testing

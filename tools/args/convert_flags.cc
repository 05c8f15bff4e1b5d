// The flags of ckpt-reshard and ckpt-convert as options of the parser: how a value is typed follows
// from the type of the field that it sets.
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "lib/ops/convert/flags.h"
#include "tools/args/options.h"
#include "tools/args/values.h"

namespace tessera::tools {
namespace {

/// A shipped name, else a file.
RulesRequest rules_request(const std::string& flag, const std::string& value) {
  RulesRequest request = parse_rules_flag(value);
  for (const BuiltinRules& builtin : builtin_rules())
    if (builtin.name == request.name) return request;
  std::error_code error;
  const bool is_path = request.name.find_first_of("/.") != std::string::npos ||
                       std::filesystem::exists(request.name, error);
  if (is_path) request.text = file_text(flag, request.name);
  if (is_path && request.text.empty())
    fail(Code::kInvalidArgument, fmt::format("{} {}: the file is empty", flag, request.name),
         "docs/rules.md describes the file");
  return request;
}

template <class Enum>
constexpr int first_choice() {
  // The choices of a flag are the enumerators in their order, but for the one that means "not said".
  if constexpr (requires { Enum::kDefault; }) return static_cast<int>(Enum::kDefault) + 1;
  return 0;
}

std::ptrdiff_t choice_number(const std::string& flag, const std::string& value,
                             const char* choices) {
  one_of(flag, value, choices);
  const std::vector<std::string> all = choices_of(choices);
  return std::ranges::find(all, value) - all.begin();
}

class FlagBinder {
 public:
  explicit FlagBinder(Options& options) : o_(options) {}

  void group(const char* name) { o_.group(name); }
  template <class Field>
  void run_flag(const ConvertFlag& f, Field&& field) {
    flag(f, field);
  }

  void flag(const ConvertFlag& f, bool& field) {
    if (f.placeholder == nullptr) return o_.flag(f.names, f.help, field);
    o_.value(f.names, f.placeholder, f.help, [&field, f](auto& name, auto& v) {
      field = choice_number(name, v, f.placeholder) == 1;
    });
  }
  void flag(const ConvertFlag& f, Cleared<bool> field) {
    o_.switch_to(f.names, f.help, [field] { field.field = false; });
  }
  void flag(const ConvertFlag& f, std::string& field) {
    o_.text(f.names, f.placeholder, f.help, field);
  }
  void flag(const ConvertFlag& f, std::vector<std::string>& field) {
    o_.texts(f.names, f.placeholder, f.help, field);
  }
  void flag(const ConvertFlag& f, std::optional<std::int64_t>& field) {
    o_.whole(f.names, f.help, 1, field);
  }
  void flag(const ConvertFlag& f, std::optional<Mesh>& field) {
    o_.value(f.names, f.placeholder, f.help, [&field](auto&, auto& v) { field = Mesh::parse(v); });
  }
  void flag(const ConvertFlag& f,
            std::vector<std::pair<std::string, std::vector<Placement>>>& field) {
    o_.repeated(f.names, f.placeholder, f.help, [&field](auto& name, auto& v) {
      auto [glob, list] = key_and_value(name, v);
      field.emplace_back(std::move(glob), Placement::parse_list(list));
    });
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void flag(const ConvertFlag& f, Enum& field) {
    o_.value(f.names, f.placeholder, f.help, [&field, f](auto& name, auto& v) {
      field = static_cast<Enum>(first_choice<Enum>() + choice_number(name, v, f.placeholder));
    });
  }
  void flag(const ConvertFlag& f, std::optional<BlockScheme>& field) {
    o_.value(f.names, f.placeholder, f.help, [&field, f](auto& name, auto& v) {
      field = static_cast<BlockScheme>(choice_number(name, v, f.placeholder));
    });
  }
  using Renames = std::vector<std::pair<std::string, std::string>>;
  void flag(const ConvertFlag& f, Renames& field) {
    o_.repeated(f.names, f.placeholder, f.help,
                [&field](auto&, auto& v) { field.push_back(parse_rename(v)); });
  }
  void flag(const ConvertFlag& f, NameFile<Renames> field) {
    o_.value(f.names, f.placeholder, f.help,
             [field](auto& name, auto& v) { field.field = parse_name_map(file_text(name, v), v); });
  }
  void flag(const ConvertFlag& f, std::optional<RulesRequest>& field) {
    o_.value(f.names, f.placeholder, f.help,
             [&field](auto& name, auto& v) { field = rules_request(name, v); });
  }
  void flag(const ConvertFlag& f, DTypeOrIndex<bool, std::optional<DType>> field) {
    o_.value(f.names, f.placeholder, f.help, [field](auto& name, auto& v) {
      field.as_index = v == "as-index";
      field.dtype = field.as_index ? std::nullopt : std::optional(parse_float_type(name, v));
    });
  }
  void flag(const ConvertFlag& f, std::vector<DTypeRule>& field) {
    o_.repeated(f.names, f.placeholder, f.help,
                [&field](auto&, auto& v) { field.push_back(parse_keep_dtype(v)); });
  }
  void flag(const ConvertFlag& f, OptionalFolder<bool, std::string> field) {
    o_.optional_value(f.names, f.placeholder, f.help, [field](auto&, auto& v) {
      field.given = true;
      field.folder = v == kBareValue ? std::string() : v;
    });
  }
  void flag(const ConvertFlag& f, DTypeOrDefault<std::optional<DType>> field) {
    o_.optional_value(f.names, f.placeholder, f.help, [field](auto& name, auto& v) {
      field.dtype = v == kBareValue ? DType::kBFloat16 : parse_float_type(name, v);
    });
  }

 private:
  Options& o_;
};

}  // namespace

void add_convert_flags(Options& options) {
  FlagBinder binder(options);
  visit_convert_flags(options.to.convert, binder);
}

}  // namespace tessera::tools

// Keras: a configuration names classes and functions to import, and may hold Python bytecode.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <array>

#include "lib/ops/scan/content.h"

namespace tessera {
namespace {

constexpr std::string_view kClassName = "class_name";

bool is_keras_module(std::string_view module) {
  constexpr std::array<std::string_view, 4> kModules = {"keras", "tf_keras", "keras_core",
                                                        "tensorflow"};
  return std::ranges::find(kModules, module.substr(0, module.find('.'))) != kModules.end();
}

class ConfigJudge {
 public:
  void visit(const Value& value) {
    if (value.kind() == Value::Kind::kList) {
      for (const Value& item : value.as_list()) visit(item);
    } else if (value.is_dict()) {
      object(value);
      for (const auto& [key, item] : value.as_dict()) visit(item);
    }
  }

  std::vector<std::pair<Safety, std::string>> found;

 private:
  static std::string text(const Value& value, std::string_view key) {
    const Value* item = value.find(key);
    return item != nullptr && item->is_string() ? item->as_string() : std::string();
  }

  void object(const Value& value) {
    const std::string name = text(value, kClassName);
    const std::string module = text(value, "module");
    if (name == "Lambda" || name == "__lambda__") return lambda(value);
    // What Keras itself writes in small letters: "function", "__keras_tensor__", "__tuple__".
    if (name.empty() || module.empty() || name == "function" || name.starts_with("__")) {
      if (name == "function" && !module.empty() && module != "builtins" && !is_keras_module(module))
        function(module, text(value, "config"));
      return;
    }
    const bool is_function = name.front() >= 'a' && name.front() <= 'z';
    if (is_keras_module(module)) {
      if (is_function) function(module, name);
      return;
    }
    const Safety safety = judge_global(module, name, GlobalRole::kCalled);
    if (safety != Safety::kSafe)
      found.emplace_back(
          safety, fmt::format("imports and calls {}.{}", printable(module), printable(name)));
  }

  void lambda(const Value& value) {
    const Value* config = value.find("config");
    const std::string name = config != nullptr ? text(*config, "name") : std::string();
    if (name.empty() && !found.empty() && found.back().first == Safety::kDangerous)
      return;  // the function of the layer that was just named
    found.emplace_back(Safety::kDangerous,
                       fmt::format("runs Python code when it is loaded: the lambda of a Lambda "
                                   "layer{}",
                                   name.empty() ? "" : fmt::format(" \"{}\"", printable(name))));
  }

  void function(std::string_view module, std::string_view name) {
    found.emplace_back(Safety::kDangerous,
                       fmt::format("imports and calls {}.{}", printable(module), printable(name)));
  }
};

}  // namespace

std::vector<std::pair<Safety, std::string>> judge_keras_config(std::string_view text) {
  if (text.find(kClassName) == std::string_view::npos) return {};
  ConfigJudge judge;
  try {
    JsonLimits limits;
    limits.max_depth = 100;
    judge.visit(parse_json(as_bytes(text), limits));
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
    // What is refused here, Python's parser may take.
    if (text.find("Lambda") != std::string_view::npos ||
        text.find("__lambda__") != std::string_view::npos)
      return {{Safety::kDangerous, "a configuration that cannot be parsed names a Lambda layer"}};
    return {{Safety::kUnknown, "a configuration of classes that cannot be parsed"}};
  }
  return std::move(judge.found);
}

}  // namespace tessera

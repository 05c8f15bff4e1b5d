#include "tests/support/cli_oracle.h"

#include <fmt/format.h>
#include <tessera/base/bytes.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/run_command.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// {"__tuple__": [...]} as a list, everywhere.
Value untupled(const Value& value) {
  if (value.is_dict()) {
    const Value* tuple = value.find("__tuple__");
    if (tuple && value.as_dict().size() == 1) return untupled(*tuple);
    ValueDict dict;
    for (const auto& [key, item] : value.as_dict()) dict.emplace_back(key, untupled(item));
    return Value::dict(std::move(dict));
  }
  if (value.kind() != Value::Kind::kList) return value;
  ValueList list;
  for (const Value& item : value.as_list()) list.push_back(untupled(item));
  return Value::list(std::move(list));
}

std::string without_torch(const std::string& dtype) {
  return dtype.starts_with("torch.") ? dtype.substr(6) : dtype;
}

std::string line_of(const Value& tensor) {
  return fmt::format("{} {} {}", without_torch(tensor.find("dtype")->as_string()),
                     dump_json(*tensor.find("shape")), tensor.find("sha256")->as_string());
}

std::map<std::string, std::string> expected_tensors(const Value& expected) {
  const Value* tensors = expected.find("tensors");
  const auto size = [](const Value& v) {
    return v.is_dict() ? v.as_dict().size() : v.as_list().size();
  };
  if (!tensors || tensors->is_none() || size(*tensors) == 0) tensors = expected.find("unflattened");
  std::map<std::string, std::string> result;
  if (!tensors || tensors->is_none()) return result;
  if (tensors->is_dict()) {
    for (const auto& [key, tensor] : tensors->as_dict()) result[key.as_string()] = line_of(tensor);
  } else {
    for (const Value& tensor : tensors->as_list())
      result[tensor.find("key")->as_string()] = line_of(tensor);
  }
  return result;
}

bool truthy(const Value* value) {
  if (!value || value->is_none()) return false;
  if (value->kind() == Value::Kind::kBool) return value->as_bool();
  if (value->kind() == Value::Kind::kList) return !value->as_list().empty();
  return !value->is_dict() || !value->as_dict().empty();
}

std::string failure_of(const std::string& verb, const CommandResult& result) {
  return fmt::format("{} exit {}: {}", verb, result.exit, result.err.substr(0, 300));
}

}  // namespace

Value parsed(const std::string& json) {
  JsonLimits limits;
  limits.max_depth = 400;
  return parse_json(as_bytes(json), limits);
}

std::vector<OracleCase> oracle_cases(const std::vector<std::string>& groups) {
  std::vector<OracleCase> cases;
  for (const std::string& group : groups) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(sample(group))) {
      const std::string name = entry.path().filename().string();
      if (fs::exists(entry.path() / "expected.json") &&
          name.find("rankfiles") == std::string::npos) {
        names.push_back(group + "/" + name);
      }
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      OracleCase one{name, case_path(name), parsed(file_text(sample(name) + "/expected.json"))};
      // TorchScript archives are refused by contract; their oracle is what torch.jit itself loads.
      one.refuse = truthy(one.expected.find("must_refuse")) || name.ends_with("/torchscript");
      one.nameless = truthy(one.expected.find("flat_params"));
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

std::vector<std::string> tensor_differences(const OracleCase& oracle, const std::string& path) {
  const CommandResult result = inspect({"hash", path, "--format", "json"});
  if (result.exit != 0) return {failure_of("hash", result)};
  std::map<std::string, std::string> got;
  const Value document = parsed(result.out);
  for (const Value& tensor : document.find("tensors")->as_list()) {
    got[tensor.find("name")->as_string()] = line_of(tensor);
  }
  std::vector<std::string> differences;
  const std::map<std::string, std::string> want = expected_tensors(oracle.expected);
  for (const auto& [name, line] : want) {
    const auto found = got.find(name);
    if (found == got.end())
      differences.push_back("missing " + name);
    else if (found->second != line)
      differences.push_back(name + ": " + found->second + " for " + line);
  }
  for (const auto& [name, line] : got) {
    if (!want.count(name)) differences.push_back("unexpected " + name);
  }
  return differences;
}

std::vector<std::string> value_differences(const OracleCase& oracle, const std::string& path) {
  const CommandResult result = inspect({"ls", path, "--format", "json"});
  if (result.exit != 0) return {failure_of("ls", result)};
  const Value document = parsed(result.out);
  const Value* want = oracle.expected.find("values");
  std::vector<std::string> differences;
  if (!want || want->is_none()) return differences;
  for (const auto& [name, value] : want->as_dict()) {
    const Value* got = document.find("values")->find(name.as_string());
    const std::string wanted = canonical_json(untupled(value));
    const std::string found = got ? canonical_json(*got) : "missing";
    if (found != wanted)
      differences.push_back(fmt::format("value {}: {} for {}", name.as_string(),
                                        found.substr(0, 80), wanted.substr(0, 80)));
  }
  return differences;
}

}  // namespace tessera::testing

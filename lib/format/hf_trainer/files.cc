#include "lib/format/hf_trainer/files.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace tessera::hf_trainer {
namespace {

/// One model's weights, in the order in which a loader takes them.
struct Weights {
  std::string_view name;
  bool is_safetensors;
  bool is_adapter;
};
constexpr std::array<Weights, 7> kWeights = {{
    {kFsdpWeights, false, false},
    {"model.safetensors", true, false},
    {"model.safetensors.index.json", true, false},
    {"pytorch_model.bin", false, false},
    {"pytorch_model.bin.index.json", false, false},
    {"adapter_model.safetensors", true, true},
    {"adapter_model.bin", false, true},
}};

constexpr std::array<std::string_view, 3> kKeys = {"optimizer", "scheduler", "scaler"};
constexpr std::array<std::string_view, 2> kEndings = {".pt", ".bin"};

}  // namespace

std::optional<std::uint64_t> number_of(std::string_view key, std::string_view of) {
  constexpr std::size_t kMostDigits = 6;
  if (key == of) return 0;
  if (!key.starts_with(of) || key.size() < of.size() + 2 || key[of.size()] != '_')
    return std::nullopt;
  key.remove_prefix(of.size() + 1);
  if (!is_decimal(key) || key.starts_with('0') || key.size() > kMostDigits) return std::nullopt;
  std::uint64_t number = 0;
  for (const char digit : key) number = number * 10 + static_cast<std::uint64_t>(digit - '0');
  return number;
}

std::string numbered(std::string_view file, std::uint64_t number) {
  if (number == 0) return std::string(file);
  const std::size_t dot = file.rfind('.');
  return fmt::format("{}_{}{}", file.substr(0, dot), number,
                     dot == file.npos ? "" : file.substr(dot));
}

std::vector<StateFile> state_files(std::span<const std::string> keys) {
  std::vector<StateFile> all;
  for (const std::string_view key : kKeys) {
    const std::string file = std::string(key) + std::string(kEndings[0]);
    all.push_back({file, std::string(key)});
    std::set<std::uint64_t> numbers;
    for (const std::string& other : keys)
      if (const auto number = number_of(other, key); number && *number > 0) numbers.insert(*number);
    for (const std::uint64_t number : numbers)
      all.push_back({numbered(file, number), numbered(key, number)});
  }
  return all;
}

namespace {

using Names = std::set<std::string, std::less<>>;

/// The optimizers, schedules and loss scales. Empty: none, or two files that are the same one.
std::vector<StateFile> find_files(const Names& names) {
  std::vector<StateFile> files;
  for (const std::string_view key : kKeys) {
    for (std::uint64_t number = 0;; ++number) {
      std::vector<std::string> found;
      for (const std::string_view ending : kEndings)
        if (std::string name = numbered(std::string(key) + std::string(ending), number);
            names.contains(name))
          found.push_back(std::move(name));
      if (found.size() > 1) return {};
      if (found.empty()) break;
      files.push_back({std::move(found[0]), numbered(key, number)});
    }
  }
  return files;
}

}  // namespace

std::optional<StateFolder> find_state(const Directory& directory) {
  Names names;
  for (const FileInfo& info : directory.list())
    if (info.type == FileType::kRegular) names.insert(info.name);
  StateFolder out;
  out.files = find_files(names);
  if (out.files.empty() || out.files[0].key != kKeys[0]) return std::nullopt;
  for (const Weights& weights : kWeights) {
    if (!names.contains(weights.name) || out.is_fsdp) continue;
    if (!out.weights.empty() && out.is_adapter != weights.is_adapter) return std::nullopt;
    if (!out.weights.empty()) continue;
    out.weights = weights.name;
    out.is_safetensors = weights.is_safetensors;
    out.is_adapter = weights.is_adapter;
    out.is_fsdp = weights.name == kFsdpWeights;
  }
  if (out.weights.empty()) return std::nullopt;
  out.has_index = std::ranges::any_of(
      names, [](const std::string& name) { return name.ends_with(".safetensors.index.json"); });
  for (std::uint64_t number = 1; names.contains(numbered(out.weights, number)); ++number)
    out.more_weights.push_back({numbered(out.weights, number), numbered(kModel, number)});
  return out;
}

}  // namespace tessera::hf_trainer

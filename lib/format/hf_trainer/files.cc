#include "lib/format/hf_trainer/files.h"

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

std::vector<StateFile> state_files() {
  std::vector<StateFile> all;
  for (const std::string_view key : kKeys)
    all.push_back({std::string(key) + std::string(kEndings[0]), std::string(key)});
  return all;
}

std::optional<StateFolder> find_state(const Directory& directory) {
  std::set<std::string, std::less<>> names;
  for (const FileInfo& info : directory.list())
    if (info.type == FileType::kRegular) names.insert(info.name);
  StateFolder out;
  for (const std::string_view key : kKeys) {
    std::vector<std::string> found;
    for (const std::string_view ending : kEndings)
      if (std::string name = std::string(key) + std::string(ending); names.contains(name))
        found.push_back(std::move(name));
    if (found.size() > 1) return std::nullopt;
    if (!found.empty()) out.files.push_back({std::move(found[0]), std::string(key)});
  }
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
  return out;
}

}  // namespace tessera::hf_trainer

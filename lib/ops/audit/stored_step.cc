#include "lib/ops/audit/stored_step.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lib/base/damage.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/optim_values.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

/// The surest first.
constexpr std::array<std::string_view, 8> kStepWords = {
    "global_step", "global_steps", "iteration", "train_step", "current_step", "step", "iter", "it"};

/// Rank among the words; nullopt: no counter of steps. A scheduler's and a data loader's are their
/// own.
std::optional<std::size_t> step_rank(std::string_view name) {
  for (const std::string_view other : {"sched", "loader", "sampler", "ema", "scaler"})
    if (name.find(other) != std::string_view::npos) return std::nullopt;
  // Composer counts steps as batches; its iterations are of other things.
  constexpr std::string_view kComposer = "Timestamp.";
  if (const std::size_t at = name.rfind(kComposer); at != name.npos)
    return name.substr(at + kComposer.size()) == "batch" ? std::optional<std::size_t>(0)
                                                         : std::nullopt;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  const auto found = std::ranges::find(kStepWords, last);
  if (found == kStepWords.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kStepWords.begin());
}

/// `global_step` at the top of trainer_state.json, whose log may be long.
class GlobalStepHandler final : public JsonHandler {
 public:
  void begin_object() override { ++depth_, wanted_ = false; }
  void end_object() override { --depth_, wanted_ = false; }
  void begin_array() override { ++depth_, wanted_ = false; }
  void end_array() override { --depth_, wanted_ = false; }
  void key(std::string&& name) override { wanted_ = depth_ == 1 && name == "global_step"; }
  void scalar(Value value) override {
    if (wanted_ && value.is_number()) found = value.as_real();
    wanted_ = false;
  }
  std::optional<double> found;

 private:
  int depth_ = 0;
  bool wanted_ = false;
};

std::optional<double> step_of_trainer(FileSystem& fs, const std::string& folder) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  constexpr const char* kName = "trainer_state.json";
  try {
    const auto directory = fs.open_directory(folder);
    const auto info = directory->stat(kName);
    if (!info || info->type != FileType::kRegular || info->size_bytes > kMostBytes)
      return std::nullopt;
    Bytes text(static_cast<std::size_t>(info->size_bytes));
    directory->open(kName)->read_at(0, text);
    GlobalStepHandler handler;
    parse_json_events(text, handler);
    return handler.found;
  } catch (const Error&) {
    return std::nullopt;  // somebody else's file
  }
}

}  // namespace

std::optional<double> number_in_tensor(OpenedCheckpoint& opened, std::uint32_t tensor,
                                       const TransferOptions& transfer) {
  if (opened.manifest.tensors[tensor].spec.shape.numel() != 1) return std::nullopt;
  try {
    opened.locate({&tensor, 1}, read_options(transfer));
    const TensorReader reader(opened.manifest, *opened.directory, looking(transfer));
    return one_number(opened.manifest, reader, tensor);
  } catch (const Error& error) {
    if (!is_damage(error.code())) throw;
    return std::nullopt;
  }
}

StoredStep find_stored_step(OpenedCheckpoint& opened, FileSystem& fs,
                            const TransferOptions& transfer) {
  const StateDict& state = opened.manifest.state;
  const Roles roles = find_roles(state);
  const StateEntry* best = nullptr;
  std::pair<std::size_t, std::size_t> best_rank;  // of the word, of the depth
  for (std::size_t i = 0; i < state.entries.size(); ++i) {
    const StateEntry& entry = state.entries[i];
    if (roles.entries[i].role != Role::kOther) continue;
    if (!entry.value.is_number() && !entry.value.is_tensor()) continue;
    const std::string name(entry.name);
    const auto word = step_rank(name);
    if (!word) continue;
    const std::pair rank(*word, entry.path.size());
    if (best == nullptr || rank < best_rank) best = &entry, best_rank = rank;
  }
  if (best != nullptr) {
    const auto value = best->value.is_number()
                           ? std::optional(best->value.as_real())
                           : number_in_tensor(opened, best->value.tensor_index(), transfer);
    if (value && std::isfinite(*value)) return {value, std::string(best->name)};
  }
  std::string folder = opened.beside_folder;
  if (folder.empty()) folder = opened.file.empty() ? opened.path : split_path(opened.path).first;
  if (const auto step = step_of_trainer(fs, folder)) return {step, "trainer_state.json"};
  return {};
}

OddSteps find_odd_steps(const OptimState& optim, const std::vector<std::optional<double>>& steps) {
  std::map<std::int64_t, std::map<double, std::vector<std::size_t>>> by_group;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] && std::isfinite(*steps[i]))
      by_group[optim.parameters[i].group][*steps[i]].push_back(i);
  OddSteps out;
  for (const auto& [group, by_step] : by_group) {
    const auto usual =
        std::ranges::max_element(by_step, {}, [](const auto& each) { return each.second.size(); });
    for (const auto& [step, members] : by_step) {
      if (step == usual->first) continue;
      if (out.count == 0)
        out.first = fmt::format("{} is at {:g} where {} are at {:g}",
                                printable(optim.parameters[members[0]].fqn), step,
                                usual->second.size(), usual->first);
      out.count += static_cast<std::uint32_t>(members.size());
    }
  }
  return out;
}

}  // namespace tessera

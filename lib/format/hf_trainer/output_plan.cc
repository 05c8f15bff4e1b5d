#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/aliases.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lib/format/hf_trainer/files.h"
#include "lib/format/hf_trainer/reader.h"
#include "lib/format/joined_plan.h"
#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/parts.h"
#include "lib/format/torch_save/parts.h"

namespace tessera::hf_trainer {
namespace {

std::string_view top_of(const Path& path) {
  return !path.empty() && path[0].kind == PathItem::Kind::kKey ? std::string_view(path[0].key)
                                                               : std::string_view();
}

/// What stands below a key, as a state by itself. Tensors keep their numbers.
Manifest part_below(const Manifest& source, std::string_view key) {
  Manifest part = source;
  part.state = {};
  std::vector<std::size_t> before;  // entries of the part, before each of the source
  for (const StateEntry& entry : source.state.entries) {
    before.push_back(part.state.entries.size());
    if (top_of(entry.path) != key) continue;
    StateEntry inner = entry;
    inner.path.erase(inner.path.begin());
    inner.name = entry.name.substr(std::min(key.size() + 1, entry.name.view().size()));
    if (inner.value.is_tensor()) part.tensors[inner.value.tensor_index()].name = inner.name;
    part.state.entries.push_back(std::move(inner));
  }
  for (const ContainerNote& note : source.state.containers) {
    if (top_of(note.path) != key) continue;
    ContainerNote inner = note;
    inner.path.erase(inner.path.begin());
    inner.entries_before = note.entries_before < before.size() ? before[note.entries_before]
                                                               : part.state.entries.size();
    part.state.containers.push_back(std::move(inner));
  }
  return part;
}

class PlanBuilder {
 public:
  PlanBuilder(const Manifest& source, const TargetRequest& request)
      : source_(source), request_(request) {}

  OutputPlan build() {
    find_keys();
    check_state();
    OutputPlan plan;
    for (const std::string& key : keys_) {
      const auto number = number_of(key, kModel);
      if (!number) continue;
      OutputPlan part =
          by_name_ ? archive({numbered(kFsdpWeights, *number), key}) : weights(key, *number);
      plan = *number == 0 ? std::move(part) : join_plans(std::move(plan), std::move(part));
    }
    for (StateFile file : state_files(keys_)) {
      if (!has(file.key)) continue;
      file.file = file_name(file);
      plan = join_plans(std::move(plan), archive(file));
    }
    plan.format = "hf-trainer";
    return plan;
  }

 private:
  /// The keys at the top, a model's by their numbers.
  void find_keys() {
    for (const StateEntry& entry : source_.state.entries)
      if (std::string key(top_of(entry.path)); std::ranges::find(keys_, key) == keys_.end())
        keys_.push_back(std::move(key));
    std::ranges::stable_sort(keys_, {}, [](const std::string& key) {
      return number_of(key, kModel).value_or(std::numeric_limits<std::uint64_t>::max());
    });
  }

  bool has(std::string_view key) const {
    return std::ranges::any_of(source_.state.entries,
                               [&](const StateEntry& entry) { return top_of(entry.path) == key; });
  }

  /// As its folder had it: Trainer and accelerate give the files other suffixes. An optimizer by
  /// names is FSDP's, whose file has one name.
  std::string file_name(const StateFile& file) const {
    const auto optimizer = number_of(file.key, kOptimizer);
    if (optimizer && by_name_) return numbered("optimizer.bin", *optimizer);
    const auto recorded = source_.provenance.find(std::string(kFileOf) + file.key);
    const bool as_source = was_by_name() == by_name_ || !optimizer;
    return recorded != source_.provenance.end() && as_source ? recorded->second : file.file;
  }
  bool was_by_name() const {
    const auto weights = source_.provenance.find(std::string(kFileOf) + std::string(kModel));
    return weights != source_.provenance.end() && weights->second == kFsdpWeights;
  }

  void check_state() {
    const Roles roles = find_roles(source_.state);
    if (!has(kModel) || !has(kOptimizer))
      fail(Code::kUnsupported,
           "hf-trainer is a model below \"model\" and its optimizer below \"optimizer\"",
           has(kModel) ? "use --to hf for the model alone" : "use --to torch-dcp");
    by_name_ = std::ranges::all_of(roles.optimizers, [](const OptimizerRoot& optimizer) {
      return optimizer.dialect == OptimDialect::kByFqn;
    });
    std::set<std::string, std::less<>> places;
    for (const std::string& key : keys_)
      if (number_of(key, kModel)) places.insert(key);
    for (const StateFile& file : state_files(keys_)) places.insert(file.key);
    for (const StateEntry& entry : source_.state.entries)
      if (!places.contains(top_of(entry.path)))
        fail(Code::kUnsupported,
             fmt::format("hf-trainer has no place for \"{}\"", printable(entry.name)),
             "leave it out with --exclude, or use --to torch-dcp");
  }

  OutputPlan weights(const std::string& key, std::uint64_t number) const {
    Manifest part = part_below(source_, key);
    part.format = "safetensors";
    // Hugging Face's loaders ask for it.
    part.provenance[std::string(st::kProvenancePrefix) + "format"] = "pt";
    // A plain file of tensors, as others write it.
    for (StateEntry& entry : part.state.entries)
      if (entry.value.is_tensor()) entry.path = {key_item(entry.name)};
    part.state.containers.clear();
    const std::string prefix = key + ".";
    const auto inner = [&](const Alias& alias) -> std::optional<Alias> {
      if (!alias.first.starts_with(prefix) || !alias.second.starts_with(prefix))
        return std::nullopt;
      return Alias(alias.first.substr(prefix.size()), alias.second.substr(prefix.size()));
    };
    edit_aliases(part, inner);
    TargetRequest request = request_;
    request.aliases.clear();
    for (const Alias& alias : request_.aliases)
      if (const auto kept = inner(alias)) request.aliases.push_back(*kept);
    OutputPlan plan = st::plan_output(part, request);
    const bool adapter = std::ranges::all_of(part.state.entries, [](const StateEntry& entry) {
      return entry.name.starts_with(kAdapterPrefix);
    });
    plan.files.at(0).path =
        numbered(adapter ? "adapter_model.safetensors" : "model.safetensors", number);
    return plan;
  }

  OutputPlan archive(const StateFile& file) const {
    TargetRequest request = request_;
    request.single_file = true;
    request.file_stem = file.key;
    OutputPlan plan = torch_save::plan_output(part_below(source_, file.key), request);
    plan.single_file = false;
    plan.files.at(0).path = file.file;
    return plan;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  std::vector<std::string> keys_;
  bool by_name_ = false;  // as FSDP has it with FULL_STATE_DICT
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanBuilder(source, request).build();
}

}  // namespace tessera::hf_trainer

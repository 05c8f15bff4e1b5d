#include "lib/format/megatron_torch/as_written.h"

#include <tessera/state/roles.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/args.h"

namespace tessera::megatron_torch {
namespace {

/// Megatron's rank files have the model under a key of its own, whatever the source has.
void place_model_as_written(Manifest& source, const StateDict& written) {
  const Roles roles = find_roles(source.state);
  const Roles there = find_roles(written);
  if (roles.model_roots != std::vector<std::string>{""} || there.model_roots.size() != 1) return;
  const std::string& root = there.model_roots[0];
  if (root.empty()) return;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    StateEntry& entry = source.state.entries[i];
    if (roles.entries[i].role != Role::kModel) continue;
    entry.name = root + "." + entry.name;
    entry.path.insert(entry.path.begin(), key_item(root));
    if (entry.value.is_tensor()) source.tensors[entry.value.tensor_index()].name = entry.name;
  }
}

/// Its arguments are those of a job with the result's ranks: the source's are compared with these
/// sizes.
void size_arguments_as_written(StateDict& source, const StateDict& written) {
  const StateEntry* after = written.find("args");
  const auto before = std::ranges::find(source.entries, "args", &StateEntry::name);
  if (after == nullptr || before == source.entries.end()) return;
  const Args args(before->value), now(after->value);
  if (!args.is_namespace() || !now.is_namespace()) return;
  std::vector<std::pair<std::string, Value>> sizes, vocabulary;
  for (const std::string_view name : kLayoutArguments)
    if (const Value* size = now.attributes()->find(name)) sizes.emplace_back(name, *size);
  if (const Value* rows = now.attributes()->find(kTrueVocabulary))
    vocabulary.emplace_back(kTrueVocabulary, *rows);
  before->value = args.with(sizes, vocabulary);
}

}  // namespace

void restate_as_written(Manifest& source, const StateDict& written) {
  place_model_as_written(source, written);
  size_arguments_as_written(source.state, written);
}

}  // namespace tessera::megatron_torch

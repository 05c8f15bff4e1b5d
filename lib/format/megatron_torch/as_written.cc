#include "lib/format/megatron_torch/as_written.h"

#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/args.h"

namespace tessera::megatron_torch {
namespace {

/// How many items of the path say the dotted root; nullopt: it does not begin with it.
std::optional<std::ptrdiff_t> root_length(const Path& path, const std::string& root) {
  if (root.empty()) return 0;
  for (std::size_t i = 1; i <= path.size(); ++i) {
    const auto length = static_cast<std::ptrdiff_t>(i);
    if (dotted(Path(path.begin(), path.begin() + length)) == root) return length;
  }
  return std::nullopt;
}

void move_path(Path& path, std::ptrdiff_t old_length, const std::string& root) {
  Path moved;
  for (const std::string_view item : split(root, '.')) moved.push_back(key_item(std::string(item)));
  moved.insert(moved.end(), path.begin() + old_length, path.end());
  path = std::move(moved);
}

/// What stands below the root `from` of the source stands below `to` in the result.
void move_root(Manifest& source, const std::string& from, const std::string& to,
               const std::vector<bool>& moves) {
  if (from == to || to.empty()) return;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    StateEntry& entry = source.state.entries[i];
    const auto length = moves[i] ? root_length(entry.path, from) : std::nullopt;
    if (!length) continue;
    move_path(entry.path, *length, to);
    entry.name = dotted(entry.path);
    for_each_tensor(entry.value, [&](std::uint32_t t) { source.tensors[t].name = entry.name; });
  }
  if (from.empty()) return;  // of containers nobody knows then whose they are
  for (ContainerNote& note : source.state.containers)
    if (const auto length = root_length(note.path, from)) move_path(note.path, *length, to);
}

/// Megatron's rank files have model and optimizer under keys of their own, whatever the source has.
void place_as_written(Manifest& source, const StateDict& written) {
  const Roles roles = find_roles(source.state), there = find_roles(written);
  const auto moves = [&](auto&& test) {
    std::vector<bool> out;
    for (const EntryRole& role : roles.entries) out.push_back(test(role));
    return out;
  };
  if (roles.model_roots.size() == 1 && there.model_roots.size() == 1)
    move_root(source, roles.model_roots[0], there.model_roots[0],
              moves([](const EntryRole& role) { return role.role == Role::kModel; }));
  if (roles.optimizers.size() == 1 && there.optimizers.size() == 1)
    move_root(source, roles.optimizers[0].name, there.optimizers[0].name,
              moves([](const EntryRole& role) { return role.root == 0; }));
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
  place_as_written(source, written);
  size_arguments_as_written(source.state, written);
}

}  // namespace tessera::megatron_torch

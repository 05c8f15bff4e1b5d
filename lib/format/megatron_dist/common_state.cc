#include "lib/format/megatron_dist/common_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lib/format/megatron_dist/config.h"
#include "lib/format/megatron_torch/odd_file.h"
#include "lib/format/torch_dcp/item_value.h"
#include "lib/state/edit/take_out.h"
#include "lib/state/role_names.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;

/// Does it hold a tensor, or an optimizer's groups, in dicts and lists?
bool is_entered(const Value& value, ValueBudget& budget) {
  budget.spend();
  if (value.is_tensor()) return true;
  if (value.kind() == Value::Kind::kList) {
    return std::ranges::any_of(value.as_list(),
                               [&](const Value& item) { return is_entered(item, budget); });
  }
  if (!value.is_dict()) return false;
  return std::ranges::any_of(value.as_dict(), [&](const auto& item) {
    const bool groups = item.first.is_string() && (item.first.as_string() == "param_groups" ||
                                                   starts_with_root(item.first.as_string()));
    return groups || is_entered(item.second, budget);
  });
}

/// The entries that one dict stands for. `shared`: keys below which sharded entries lie, too.
StateDict entries_of(const Value& root, const std::set<std::string>& shared, ValueBudget& budget) {
  StateDict out;
  for (const auto& [key, value] : root.as_dict()) {
    const bool whole = key.is_string() && !shared.contains(key.as_string());
    if (whole && !is_entered(value, budget)) {
      out.entries.push_back({key.as_string(), {key_item(key.as_string())}, value});
      continue;
    }
    StateDict part = flatten(Value::dict({{key, value}}), budget);
    for (ContainerNote& note : part.containers) {
      note.entries_before = out.entries.size() + std::min(note.entries_before, part.entries.size());
      out.containers.push_back(std::move(note));
    }
    std::ranges::move(part.entries, std::back_inserter(out.entries));
  }
  return out;
}

/// Tensors that are entries now are no longer embedded in another one.
void own_tensors(Manifest& manifest, const std::vector<StateEntry>& entries) {
  for (const StateEntry& entry : entries) {
    const bool leaf = entry.value.is_tensor();
    for_each_tensor(entry.value, [&](std::uint32_t index) {
      StoredTensor& tensor = manifest.tensors.at(index);
      tensor.name = entry.name;
      tensor.embedded = !leaf;
    });
  }
}

const Value& common_dict(const Value& value) {
  const bool boxed = value.kind() == Value::Kind::kList && value.as_list().size() == 1;
  const Value& root = boxed ? value.as_list()[0] : value;
  if (!root.is_dict()) fail(Code::kCorrupt, "the common state is no dict");
  return root;
}

void add_globals(Manifest& manifest, std::vector<GlobalUse> globals, const std::string& path) {
  std::set<std::string> known;
  for (const GlobalUse& use : manifest.globals) known.insert(use.name);
  for (GlobalUse& use : globals) {
    if (!known.insert(use.name).second) continue;
    use.file = path;
    manifest.globals.push_back(std::move(use));
  }
}

void require_new_name(const Manifest& manifest, const std::set<std::string_view>& names,
                      const StateEntry& entry) {
  if (!names.contains(entry.name)) return;
  fail(Code::kCorrupt, fmt::format("\"{}\" stands in the common state and among the sharded "
                                   "entries of {}",
                                   entry.name, manifest.format));
}

/// The common dict with more options in that of the optimizer.
Value with_options(const Value& root, const ValueDict& options) {
  constexpr std::string_view kOptimizer = "optimizer";
  if (options.empty()) return root;
  ValueDict out = root.as_dict();
  auto found = std::ranges::find_if(out, [&](const auto& item) {
    return item.first.is_string() && item.first.as_string() == kOptimizer;
  });
  if (found == out.end())
    found = out.emplace(found, Value::string(std::string(kOptimizer)), Value::dict({}));
  if (!found->second.is_dict()) return root;
  ValueDict optimizer = found->second.as_dict();
  for (const auto& [key, value] : options)
    if (found->second.find(key.as_string()) == nullptr) optimizer.emplace_back(key, value);
  found->second = Value::dict(std::move(optimizer));
  return Value::dict(std::move(out));
}

void append(Manifest& manifest, const Value& root) {
  ValueBudget budget(kMaxLeaves);
  std::set<std::string> shared;
  for (const StateEntry& entry : manifest.state.entries)
    if (entry.path.size() > 1) shared.insert(entry.path[0].text());
  StateDict state = entries_of(common_dict(root), shared, budget);
  std::set<std::string_view> names;
  for (const StateEntry& entry : manifest.state.entries) names.insert(entry.name);
  for (const StateEntry& entry : state.entries) require_new_name(manifest, names, entry);
  own_tensors(manifest, state.entries);
  for (ContainerNote& note : state.containers) {
    note.entries_before += manifest.state.entries.size();
    manifest.state.containers.push_back(std::move(note));
  }
  std::ranges::move(state.entries, std::back_inserter(manifest.state.entries));
}

}  // namespace

Value read_object_file(const Directory& directory, const std::string& path, const std::string& name,
                       Manifest& manifest, const ReadOptions& options) {
  const auto info = directory.stat(path);
  if (!info) in_file(path, [] { fail(Code::kCorrupt, "the file is missing"); });
  if (const auto odd = megatron_torch::odd_file(info->type))
    in_file(path, [&] { fail(Code::kCorrupt, std::string(*odd)); });
  const auto number = static_cast<std::uint32_t>(manifest.files.size());
  manifest.files.push_back({path, info->size_bytes, info->mtime_ns});
  return in_file(path, [&] {
    if (info->size_bytes == 0) fail(Code::kCorrupt, "the file is empty: the save was interrupted");
    const dcp::Item item{number, 0, 0, info->size_bytes};
    dcp::ItemReader reader(directory, manifest, options);
    const dcp::OpenItem open = reader.open(item, info->size_bytes);
    dcp::DecodedValue decoded = dcp::decode_value(manifest, item, open, options);
    if (decoded.raw) fail(Code::kCorrupt, "it is no torch.save archive");
    add_globals(manifest, std::move(decoded.globals), path);
    dcp::SideTables tables(manifest);
    std::vector<std::uint32_t> numbers;
    for (dcp::EmbeddedTensor& tensor : decoded.tensors)
      numbers.push_back(dcp::add_embedded(manifest, tables, name, std::move(tensor)));
    return numbers.empty() ? decoded.value : remap_tensors(decoded.value, numbers);
  });
}

void append_common_file(const Directory& directory, const std::string& path, Manifest& manifest,
                        const ReadOptions& options, const ValueDict& optimizer) {
  const Value root = read_object_file(directory, path, path, manifest, options);
  in_file(path, [&] { append(manifest, with_options(common_dict(root), optimizer)); });
}

void expand_common_entry(Manifest& manifest, std::string_view name, const ValueDict& optimizer) {
  const auto found = std::ranges::find_if(
      manifest.state.entries, [&](const StateEntry& entry) { return entry.name == name; });
  if (found == manifest.state.entries.end() || found->value.is_tensor()) return;
  const Value root = found->value;
  std::vector<bool> taken(manifest.state.entries.size());
  taken[static_cast<std::size_t>(found - manifest.state.entries.begin())] = true;
  take_out(manifest.state, taken);
  in_tensor(name, [&] { append(manifest, with_options(common_dict(root), optimizer)); });
}

}  // namespace tessera::megatron_dist

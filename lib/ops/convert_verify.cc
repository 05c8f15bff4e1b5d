#include "lib/ops/convert_verify.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/ls.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>

#include "lib/ops/canonical_state.h"
#include "lib/ops/hashed_compare.h"
#include "lib/state/role_names.h"

namespace tessera {

namespace {

using Sums = std::map<std::uint32_t, std::string>;  // by tensor index

/// The leaves by the names the state has now; what `sums` does not know yet is read.
std::vector<HashedTensor> hash_leaves(const OpenedCheckpoint& checkpoint, Sums& sums,
                                      const TransferOptions& transfer) {
  std::vector<std::uint32_t> unknown;
  for (const StateEntry& entry : checkpoint.manifest.state.entries) {
    if (!entry.value.is_tensor()) continue;
    if (sums.try_emplace(entry.value.tensor_index()).second) {
      unknown.push_back(entry.value.tensor_index());
    }
  }
  std::vector<std::string> read =
      hash_tensors(checkpoint.manifest, *checkpoint.directory, unknown, transfer);
  for (std::size_t i = 0; i < unknown.size(); ++i) sums[unknown[i]] = std::move(read[i]);
  std::vector<HashedTensor> out;
  for (const StateEntry& entry : checkpoint.manifest.state.entries) {
    if (!entry.value.is_tensor()) continue;
    std::uint32_t index = entry.value.tensor_index();
    const TensorSpec& spec = checkpoint.manifest.tensors[index].spec;
    std::span<const std::int64_t> extents = spec.shape.extents();
    out.push_back({entry.name,
                   std::string(torch_name(spec.dtype)),
                   {extents.begin(), extents.end()},
                   sums[index]});
  }
  return out;
}

std::string in_words(const HashedDifference& difference) {
  using What = HashedDifference::What;
  const std::string& name = difference.name;
  switch (difference.what) {
    case What::kMissing:
      return fmt::format("tensor \"{}\" is missing in the result", name);
    case What::kUnexpected:
      return fmt::format("tensor \"{}\" is not in the source", name);
    case What::kSpec:
      return fmt::format("tensor \"{}\" has another type or shape", name);
    case What::kContent:
      return fmt::format("tensor \"{}\" has other bytes: sha256 {} in the source, {} in the result",
                         name, difference.expected_sha256, difference.found_sha256);
  }
  return name;
}

void compare_values(OpenedCheckpoint& source, OpenedCheckpoint& written, bool may_drop,
                    const TransferOptions& transfer, std::vector<std::string>& findings) {
  std::map<std::string, std::string> there;
  for (const auto& [name, value] : json_values(written, transfer))
    there[name] = canonical_json(value);
  for (const auto& [name, value] : json_values(source, transfer)) {
    auto found = there.find(name);
    if (found == there.end()) {
      if (!may_drop) findings.push_back(fmt::format("value \"{}\" is missing in the result", name));
      continue;
    }
    if (found->second != canonical_json(value)) {
      findings.push_back(fmt::format("value \"{}\" differs", name));
    }
    there.erase(found);
  }
  for (const auto& [name, value] : there) {
    findings.push_back(fmt::format("value \"{}\" is not in the source", name));
  }
}

bool any_keyed_otherwise(const Roles& roles) {
  return std::ranges::any_of(roles.optimizers, keyed_otherwise, &OptimizerRoot::dialect);
}

/// Whether the entry is a group's option that is an attribute of an HDF5 group, "0@lr".
bool is_attribute(const EntryRole& role, const StateEntry& entry) {
  return role.role == Role::kOptimGroup && role.group >= 0 &&
         entry.name.ends_with(fmt::format("{}@{}", role.group, role.leaf));
}

/// Formats that write groups anew have attributes of them as options.
void place_options_as_written(StateDict& source, const StateDict& written) {
  const Roles there = find_roles(written);
  for (std::size_t i = 0; i < there.entries.size(); ++i)
    if (is_attribute(there.entries[i], written.entries[i])) return;
  const Roles roles = find_roles(source);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    StateEntry& entry = source.entries[i];
    if (!is_attribute(roles.entries[i], entry)) continue;
    entry.name.replace(entry.name.size() - roles.entries[i].leaf.size() - 1, 1, ".");
    entry.path.pop_back();
    entry.path.push_back(key_item(fmt::format("{}", roles.entries[i].group)));
    entry.path.push_back(key_item(roles.entries[i].leaf));
  }
}

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

/// Formats that hold state by name alone wrote names for ids: the source is compared by these.
void name_as_written(Manifest& source, const Manifest& result) {
  const StateDict& written = result.state;
  if (result.format == "megatron-torch") place_model_as_written(source, written);
  place_options_as_written(source.state, written);
  const Roles there = find_roles(written);
  if (there.optimizers.empty() || any_keyed_otherwise(there)) return;
  if (any_keyed_otherwise(find_roles(source.state))) rekey_optimizers(source, OptimKeys::kFqn);
}

}  // namespace

VerifyProof prove_equal(OpenedCheckpoint& source, OpenedCheckpoint& written, bool may_drop,
                        const TransferOptions& transfer) {
  VerifyProof proof;
  Sums source_sums;
  Sums written_sums;
  proof.tensors = hash_leaves(written, written_sums, transfer);  // by the names that are stored
  proof.root = content_root(proof.tensors);
  name_as_written(source.manifest, written.manifest);
  // Writers of old releases flattened by other rules: both sides are compared as the trees they
  // stand for.
  CanonicalState canonical_source(source.manifest.state);
  CanonicalState canonical_written(written.manifest.state);
  const auto in_source = hash_leaves(source, source_sums, transfer);
  const auto in_result = hash_leaves(written, written_sums, transfer);
  for (const HashedDifference& difference : compare_hashed(in_source, in_result))
    proof.findings.push_back(in_words(difference));
  compare_values(source, written, may_drop, transfer, proof.findings);
  return proof;
}

}  // namespace tessera

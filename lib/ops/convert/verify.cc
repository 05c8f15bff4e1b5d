#include "lib/ops/convert/verify.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/registry.h>
#include <tessera/ops/ls.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/append.h"
#include "lib/ops/inspect/canonical_state.h"
#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/inspect/hashed_compare.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/value_difference.h"
#include "lib/state/key_text.h"
#include "lib/state/role_names.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {

namespace {

using Sums = std::map<std::uint32_t, std::string>;  // by tensor index

/// The parts of the tensors that are made of several, as they are listed.
std::vector<HashedTensor> hashed_parts(const Manifest& manifest, ContentDigests& contents) {
  std::vector<HashedTensor> out;
  for (const PartRow& row : part_rows(manifest.state)) {
    const StoredTensor& tensor = manifest.tensors[row.tensor];
    const std::span<const std::int64_t> extents = tensor.spec.shape.extents();
    out.push_back({manifest.state.entries[row.entry].name + row.suffix,
                   std::string(torch_name(tensor.spec.dtype)),
                   {extents.begin(), extents.end()},
                   contents.tensors().at(row.tensor),
                   contents.quantizer(tensor)});
  }
  return out;
}

/// The leaves by the names the state has now; what `sums` does not know yet is read.
std::vector<HashedTensor> hash_leaves(const OpenedCheckpoint& checkpoint, Sums& sums,
                                      ContentDigests& contents, const TransferOptions& transfer) {
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
    const StoredTensor& tensor = checkpoint.manifest.tensors[index];
    std::span<const std::int64_t> extents = tensor.spec.shape.extents();
    out.push_back({entry.name,
                   std::string(torch_name(tensor.spec.dtype)),
                   {extents.begin(), extents.end()},
                   sums[index],
                   contents.quantizer(tensor)});
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
    case What::kQuantizer:
      return fmt::format("tensor \"{}\" has another scale, zero point or axis", name);
    case What::kContent:
      return fmt::format("tensor \"{}\" has other bytes: sha256 {} in the source, {} in the result",
                         name, difference.expected_sha256, difference.found_sha256);
  }
  return name;
}

class ValueProof {
 public:
  ValueProof(const Manifest& source, const Manifest& written, ContentDigests& of_source,
             ContentDigests& of_written, VerifyProof& proof)
      : source_(source),
        written_(written),
        of_source_(of_source),
        of_written_(of_written),
        proof_(proof) {}

  /// `may_drop`: a value that is absent in the result was left out on request.
  void run(bool may_drop) {
    std::map<std::string, const Value*> there;
    for (const StateEntry& entry : written_.state.entries)
      if (!entry.value.is_tensor()) there[entry.name] = &entry.value;
    for (const StateEntry& entry : source_.state.entries) {
      if (entry.value.is_tensor()) continue;
      const auto found = there.find(entry.name);
      if (found == there.end()) {
        if (!may_drop) differs("value \"{}\" is missing in the result", entry.name);
        continue;
      }
      compare(entry.name, entry.value, *found->second);
      there.erase(found);
    }
    for (const auto& [name, value] : there) differs("value \"{}\" is not in the source", name);
    if (keep_container_types(source_.format, written_.format)) compare_containers(may_drop);
  }

 private:
  template <class... Args>
  void differs(fmt::format_string<Args...> text, Args&&... args) {
    proof_.findings.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void compare(const std::string& name, const Value& before, const Value& after) {
    const auto found =
        first_difference({before, of_source_.digester()}, {after, of_written_.digester()}, false);
    if (!found) {
      proof_.not_compared += of_source_.digester().is_whole(before) ? 0 : 1;
      return;
    }
    const std::string place = found->path.empty() ? "" : fmt::format(" at {}", found->path);
    if (!keeps_types_ && prints_alike(before, after)) {
      proof_.transformed.push_back(
          fmt::format("value \"{}\"{}: its type cannot be held by {}, and became a similar one",
                      name, place, written_.format));
    } else {
      differs("value \"{}\" differs{}", name, place);
    }
  }

  bool prints_alike(const Value& before, const Value& after) {
    ValueBudget budget(kMostPrinted);
    return canonical_json(json_value(source_, before, of_source_.tensors(), budget)) ==
           canonical_json(json_value(written_, after, of_written_.tensors(), budget));
  }

  /// Compares dicts that are not values themselves.
  void compare_containers(bool may_drop) {
    auto before = typed_containers(source_.state), after = typed_containers(written_.state);
    if (!keep_top_kind(source_.format, written_.format)) {
      before = with_plain_top(std::move(before));
      after = with_plain_top(std::move(after));
    }
    std::set<std::string> names;
    for (const auto* side : {&before, &after})
      for (const auto& [name, type] : *side) names.insert(name);
    for (const std::string& name : names) {
      const auto there = before.find(name), here = after.find(name);
      const bool same = there != before.end() && here != after.end()
                            ? is_same_type(there->second, here->second)
                            : false;
      const bool gone = may_drop && here == after.end();
      if (!same && !gone)
        differs("the dict {} is of another kind, or has other keys that are no text", quoted(name));
    }
  }
  static std::string quoted(const std::string& name) {
    return name.empty() ? "at the top" : fmt::format("\"{}\"", name);
  }
  /// Dicts that are of the same kind have the same keys that are no text.
  static bool is_same_type(const Value& a, const Value& b) {
    const auto keys = [](const Value& dict) {
      std::set<std::pair<Value::Kind, std::string>> out;
      for (const auto& [key, none] : dict.as_dict())
        if (!key.is_string()) out.emplace(key.kind(), key_text(key));
      return out;
    };
    return a.kind() == b.kind() && keys(a) == keys(b);
  }

  static constexpr std::uint64_t kMostPrinted = std::uint64_t{1} << 22;

  const Manifest& source_;
  const Manifest& written_;
  const bool keeps_types_ = capabilities_of(written_.format).keeps_opaque;  // of Python's values
  ContentDigests& of_source_;
  ContentDigests& of_written_;
  VerifyProof& proof_;
};

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
    const SharedText& leaf = roles.entries[i].leaf;
    entry.name = entry.name.substr(0, entry.name.size() - leaf.size() - 1) + "." + leaf;
    entry.path.pop_back();
    entry.path.push_back(key_item(fmt::format("{}", roles.entries[i].group)));
    entry.path.push_back(key_item(leaf));
  }
}

/// Formats that hold state by name alone wrote names for ids: the source is compared by these.
void name_as_written(Manifest& source, const OpenedCheckpoint& result) {
  const StateDict& written = result.manifest.state;
  result.driver->restate_as_written(source, written);
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
  ContentDigests of_source(source, transfer);
  ContentDigests of_written(written, transfer);
  proof.tensors =
      hash_leaves(written, written_sums, of_written, transfer);  // by the names that are stored
  append(proof.tensors, hashed_parts(written.manifest, of_written));
  proof.root = content_root_v1(proof.tensors);  // the seal has no quantizers
  name_as_written(source.manifest, written);
  // Writers of old releases flattened by other rules: both sides are compared as the trees they
  // stand for.
  CanonicalState canonical_source(source.manifest.state);
  CanonicalState canonical_written(written.manifest.state);
  const auto in_source = hash_leaves(source, source_sums, of_source, transfer);
  const auto in_result = hash_leaves(written, written_sums, of_written, transfer);
  for (const HashedDifference& difference : compare_hashed(in_source, in_result))
    proof.findings.push_back(in_words(difference));
  ValueProof(source.manifest, written.manifest, of_source, of_written, proof).run(may_drop);
  return proof;
}

namespace {

/// "39 tensors and 24 values", "1 tensor"
std::string tensors_and_values(const LeftOutGroup& group) {
  const auto counted = [](std::size_t n, std::string_view noun) {
    return n ? fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s") : std::string();
  };
  const std::string tensors = counted(group.tensors.size(), "tensor");
  const std::string values = counted(group.values.size(), "value");
  return tensors + (tensors.empty() || values.empty() ? "" : " and ") + values;
}

}  // namespace

VerifyScope verify_scope(const Manifest& written, const ConvertReport& report) {
  VerifyScope scope;
  bool content = false, values = false, steps = false, groups = false;
  const Roles roles = find_roles(written.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Role role = roles.entries[i].role;
    content = content || written.state.entries[i].value.is_tensor();
    steps = steps || (role == Role::kOptimState && roles.entries[i].leaf == "step");
    groups = groups || role == Role::kOptimGroup;
    values = values || (!written.state.entries[i].value.is_tensor() && role != Role::kOptimGroup &&
                        role != Role::kOptimState);
  }
  for (const auto& [is_there, word] : {std::pair(content, "content"), std::pair(values, "values"),
                                       std::pair(steps, "steps"), std::pair(groups, "groups")})
    if (is_there) scope.compared.emplace_back(word);
  for (const LeftOutGroup& group : report.balance.left_out())
    scope.not_compared.push_back(
        fmt::format("{} left out: {}", tensors_and_values(group), group.reason));
  for (const AppliedTransformation& applied : report.transformations) {
    if (applied.of_values()) {
      scope.not_compared.push_back(applied.detail);
      continue;
    }
    scope.not_compared.push_back(fmt::format("{} tensors compared as {}{}{}", applied.tensors,
                                             applied.kind == "dtype" ? "cast"
                                             : applied.kind == "rename"
                                                 ? "renamed"
                                                 : "changed by " + applied.kind,
                                             applied.detail.empty() ? "" : ": ", applied.detail));
  }
  return scope;
}

}  // namespace tessera

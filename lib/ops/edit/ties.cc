#include "lib/ops/edit/ties.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "lib/ops/open/shared_storage.h"

namespace tessera {

namespace {

constexpr std::int64_t kSampleNumel = 64;

struct Sample {
  Bytes bytes;
  bool varied = false;
};

Sample take_sample(const Manifest& manifest, const TensorReader& reader, std::uint32_t index) {
  const TensorSpec& spec = manifest.tensors[index].spec;
  std::int64_t numel = spec.shape.numel();
  std::int64_t count = std::min(kSampleNumel, numel);
  Sample sample;
  TensorReader::Reading reading(reader, {&index, 1});
  auto es = static_cast<std::size_t>(element_bytes(spec.dtype));
  for (std::int64_t begin : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
    Bytes part(static_cast<std::size_t>(count) * es);
    reading.read(index, begin, begin + count, part);
    sample.bytes.insert(sample.bytes.end(), part.begin(), part.end());
  }
  for (std::size_t at = es; at < sample.bytes.size(); at += es) {
    if (!std::equal(sample.bytes.begin(), sample.bytes.begin() + static_cast<std::ptrdiff_t>(es),
                    sample.bytes.begin() + static_cast<std::ptrdiff_t>(at))) {
      sample.varied = true;
    }
  }
  return sample;
}

Sha256Digest digest_of(const TensorReader& reader, std::uint32_t index) {
  Sha256 hash;
  std::uint32_t list[] = {index};
  reader.stream(list, [&hash](const TensorReader::Block& block) { hash.update(block.bytes); });
  return hash.finish();
}

/// A weight of the model, and whether the optimizer keeps state of its own for it.
struct Weight {
  std::uint32_t tensor = 0;
  std::string fqn;
  bool has_state = false;
};

/// The weights of each model root; names under different roots (an average beside the model) are
/// never tied.
std::map<std::string, std::vector<Weight>> weights_by_root(const Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  std::set<std::string> with_state;
  for (const OptimState& optim : canonical_optim_states(manifest, roles))
    for (const OptimParameter& parameter : optim.parameters)
      if (!parameter.leaves.empty()) with_state.insert(parameter.fqn);
  std::map<std::string, std::vector<Weight>> weights;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    const EntryRole& role = roles.entries[i];
    if (role.role != Role::kModel || !entry.value.is_tensor()) continue;
    const std::string root = entry.name.substr(0, entry.name.size() - role.fqn.size());
    weights[root].push_back({entry.value.tensor_index(), role.fqn, with_state.contains(role.fqn)});
  }
  return weights;
}

bool is_outside_of_layers(const Weight& weight) { return !in_numbered_layer(weight.fqn); }

/// T5's and BART's embedding, which encoder, decoder and output layer have copies of.
bool is_shared_embedding(const Weight& weight) {
  return weight.fqn == "shared.weight" || weight.fqn.ends_with(".shared.weight");
}

/// Loaders look for the embedding rather than for the output layer.
bool is_embedding(const Weight& weight) {
  const bool named =
      weight.fqn.find("embed") != std::string::npos || weight.fqn.ends_with("wte.weight");
  return named && is_outside_of_layers(weight);
}

using TieGroup = std::vector<Weight>;  // the same bytes, as stored

/// Groups of two or more weights of one root that hold the same bytes.
std::vector<TieGroup> tie_groups(const Manifest& manifest, const TensorReader& reader,
                                 const std::vector<Weight>& weights) {
  std::map<std::pair<std::string, StoredPlace>, TieGroup> by_place;
  std::map<std::pair<std::string, Bytes>, TieGroup> by_sample;  // one of each place
  std::map<std::uint32_t, const TieGroup*> place_group;
  std::vector<TieGroup> groups;
  for (const Weight& weight : weights) {
    const StoredTensor& tensor = manifest.tensors[weight.tensor];
    if (is_sub_byte(tensor.spec.dtype) || tensor.spec.shape.numel() == 0) continue;
    const std::string kind = tensor.spec.to_string();
    if (auto place = stored_place_of(manifest, tensor)) {
      TieGroup& same = by_place[{kind, *place}];
      same.push_back(weight);
      place_group[same.front().tensor] = &same;
      if (same.size() > 1) continue;
    }
    if (tensor.spec.shape.rank() < 2) continue;
    Sample sample = take_sample(manifest, reader, weight.tensor);
    if (sample.varied) by_sample[{kind, std::move(sample.bytes)}].push_back(weight);
  }
  std::set<std::uint32_t> joined;
  for (const auto& [key, alike] : by_sample) {
    if (alike.size() < 2) continue;
    std::map<Sha256Digest, TieGroup> by_digest;
    for (const Weight& weight : alike) {
      TieGroup& same = by_digest[digest_of(reader, weight.tensor)];
      const auto place = place_group.find(weight.tensor);
      if (place == place_group.end()) {
        same.push_back(weight);
      } else {  // with all that share its place
        same.insert(same.end(), place->second->begin(), place->second->end());
      }
    }
    for (auto& [digest, same] : by_digest) {
      if (same.size() < 2) continue;
      for (const Weight& weight : same) joined.insert(weight.tensor);
      groups.push_back(std::move(same));
    }
  }
  for (const auto& [key, same] : by_place)
    if (same.size() > 1 && !joined.contains(same.front().tensor)) groups.push_back(same);
  return groups;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> find_ties(const Manifest& manifest,
                                                           const Directory& directory,
                                                           const TransferOptions& options) {
  TransferOptions quiet = options;
  quiet.progress = nullptr;
  const TensorReader reader(manifest, directory, quiet);
  std::vector<std::pair<std::string, std::string>> ties;
  for (const auto& [root, weights] : weights_by_root(manifest)) {
    for (const TieGroup& group : tie_groups(manifest, reader, weights)) {
      auto kept = std::ranges::find_if(group, &Weight::has_state);
      for (const auto& is_preferred : {is_shared_embedding, is_embedding, is_outside_of_layers})
        if (kept == group.end()) kept = std::ranges::find_if(group, is_preferred);
      if (kept == group.end()) kept = group.begin();
      for (const Weight& weight : group) {
        // One with state of its own was trained apart: equal, and not tied.
        if (weight.tensor == kept->tensor || weight.has_state) continue;
        ties.emplace_back(manifest.tensors[weight.tensor].name,
                          manifest.tensors[kept->tensor].name);
      }
    }
  }
  std::sort(ties.begin(), ties.end());
  return ties;
}

std::vector<std::pair<std::string, std::string>> ties_at_one_place(
    const Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties) {
  std::map<std::string_view, std::optional<StoredPlace>> places;
  for (const auto& [name, kept] : ties) places[name] = places[kept] = std::nullopt;
  for (const StoredTensor& tensor : manifest.tensors)
    if (const auto at = places.find(tensor.name.view()); at != places.end() && !tensor.embedded)
      at->second = stored_place_of(manifest, tensor);
  std::vector<std::pair<std::string, std::string>> same;
  for (const auto& tie : ties)
    if (places[tie.first] && places[tie.first] == places[tie.second]) same.push_back(tie);
  return same;
}

namespace {

/// A dict of which nothing is kept (a copy of the whole model) goes with what was in it.
void forget_emptied_dicts(StateDict& state, const std::vector<bool>& keep) {
  std::set<std::string> emptied;
  const auto each_dict_around = [&](std::size_t entry, auto&& visit) {
    const Path& path = state.entries[entry].path;
    for (std::size_t n = 1; n < path.size(); ++n)
      visit(std::string(dotted(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(n)))));
  };
  for (std::size_t i = 0; i < keep.size(); ++i)
    if (!keep[i]) each_dict_around(i, [&](std::string dict) { emptied.insert(std::move(dict)); });
  for (std::size_t i = 0; i < keep.size() && !emptied.empty(); ++i)
    if (keep[i]) each_dict_around(i, [&](const std::string& dict) { emptied.erase(dict); });
  std::erase_if(state.containers, [&](const ContainerNote& note) {
    return emptied.contains(std::string(dotted(note.path)));
  });
}

}  // namespace

bool in_numbered_layer(std::string_view fqn) {
  return std::ranges::any_of(split(fqn, '.'), is_decimal);
}

bool same_content(const Manifest& manifest, const Directory& directory, std::uint32_t a,
                  std::uint32_t b, const TransferOptions& options) {
  if (!(manifest.tensors[a].spec == manifest.tensors[b].spec)) return false;
  TransferOptions quiet = options;
  quiet.progress = nullptr;
  const TensorReader reader(manifest, directory, quiet);
  return digest_of(reader, a) == digest_of(reader, b);
}

void drop_ties(Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties) {
  if (ties.empty()) return;
  std::set<std::string_view> dropped;
  for (const auto& tie : ties) dropped.insert(tie.first);
  const Roles roles = find_roles(manifest.state);
  std::vector<bool> keep;
  std::vector<std::string> forget;  // groups may list a name that has no state
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    keep.push_back(!dropped.contains(manifest.state.entries[i].name));
    if (!keep.back()) forget.push_back(roles.entries[i].fqn);
  }
  forget_emptied_dicts(manifest.state, keep);
  keep_entries(manifest, keep, forget);
}

}  // namespace tessera

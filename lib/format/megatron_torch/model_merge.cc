#include "lib/format/megatron_torch/model_merge.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lib/format/megatron_torch/packed_experts.h"
#include "lib/format/megatron_torch/target_cut.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kTiedHead = "word_embeddings_for_head.weight";
constexpr std::string_view kOutput = "output_layer.weight";

StateDict leaves_of(const Value& model) {
  ValueBudget budget(kMaxLeaves);
  if (!model.is_dict()) fail(Code::kCorrupt, "its model is no dict");
  return flatten(model, budget);
}

std::vector<std::string> names_of(const StateDict& state) {
  std::vector<std::string> names;
  for (const StateEntry& entry : state.entries) names.push_back(entry.name);
  return names;
}

LayerCounts count_experts(const StateDict& state) {
  LayerCounts counts;
  for (const StateEntry& entry : state.entries) {
    const auto expert = expert_name(entry.name);
    if (!expert) continue;
    std::int64_t& count = counts[expert->before + "*" + expert->after];
    count = std::max(count, expert->expert + 1);
  }
  return counts;
}

bool is_extra_state(std::string_view name) { return name.ends_with("_extra_state"); }

/// What a module has beside weights, of each rank its own: Transformer Engine's _extra_state, and what
/// modelopt's quantizers measured (weight_quantizer._amax).
bool is_of_rank(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return is_extra_state(name) || (dot != name.npos && name.substr(0, dot).ends_with("_quantizer"));
}

}  // namespace

std::vector<std::string> model_keys(const Value& root) {
  if (root.find(kModel)) return {std::string(kModel)};
  std::vector<std::string> keys;
  for (std::size_t i = 0; root.find(fmt::format("{}{}", kModel, i)); ++i)
    keys.push_back(fmt::format("{}{}", kModel, i));
  return keys;
}

ModelMerge::ModelMerge(Ranks& ranks) : ranks_(ranks), local_(ranks.files.size()) {
  keys_ = model_keys(ranks.root(ranks.files[0]));
}

void ModelMerge::run() {
  find_offsets();
  for (std::size_t chunk = 0; chunk < keys_.size(); ++chunk)
    for (std::int64_t pp = 0; pp < ranks_.grid.pp; ++pp)
      for (std::int64_t ep = 0; ep < ranks_.grid.ep; ++ep) add_rank_set(chunk, pp, ep);
  const bool experts =
      std::ranges::any_of(leaves_, [](const Leaf& leaf) { return is_expert(leaf.rule_name); });
  check_expert_tensor_parallel(ranks_.args, ranks_.grid.tp, experts, Code::kUnsupported);
  keep_container();
  const bool of_ranks = keep_extra_state();
  TensorMerge merge(ranks_);
  for (const Leaf* leaf : ordered()) {
    if (of_ranks && is_of_rank(leaf->rule_name)) continue;
    if (leaf->replicas.empty()) {
      ranks_.builder.add_value(leaf->file, leaf->path, leaf->value);
    } else {
      merge.add(leaf->path, leaf->rule_name, leaf->replicas);
    }
  }
}

/// As one rank that holds all experts would list them.
std::vector<const ModelMerge::Leaf*> ModelMerge::ordered() const {
  std::vector<const Leaf*> out;
  for (const Leaf& leaf : leaves_) out.push_back(&leaf);
  std::ranges::stable_sort(out, {}, [](const Leaf* leaf) { return leaf->anchor; });
  return out;
}

std::vector<std::string> ModelMerge::names() const {
  std::vector<std::string> out;
  for (const Leaf* leaf : ordered()) out.push_back(dotted(leaf->path).substr(kModel.size() + 1));
  return out;
}

/// state_dict() is an OrderedDict; its versions of modules are a rank's own and are left out.
void ModelMerge::keep_container() {
  const Value& root = ranks_.root(ranks_.files[0]);
  if (keys_.empty() || root.find(keys_[0])->kind() != Value::Kind::kOrderedDict) return;
  Manifest& manifest = ranks_.builder.manifest();
  manifest.state.containers.push_back(
      {{key_item(kModel)}, Value::Kind::kOrderedDict, Value(), manifest.state.entries.size()});
}

/// Where what modules keep besides tensors of the model differs among the ranks that share a module,
/// all of it is kept rank by rank. False: it is the same, or there is none.
bool ModelMerge::keep_extra_state() {
  bool differs = false;
  for (const auto& [name, copies] : extra_)
    for (std::size_t i = 1; i < copies.size() && !differs; ++i)
      differs = !same_value(ranks_.builder.archive(copies[0].first), copies[0].second,
                            ranks_.builder.archive(copies[i].first), copies[i].second);
  if (!differs) return false;
  for (const RankFile& file : ranks_.files) {
    const std::int64_t rank = ranks_.number(file.rank);
    for (const std::string& key : keys_) {
      ValueDict own;
      for (const StateEntry& entry : leaves_of(*ranks_.root(file).find(key)).entries)
        if (is_of_rank(entry.name)) own.emplace_back(Value::string(entry.name), entry.value);
      if (own.empty()) continue;
      ranks_.builder.add_state(file.file, Value::dict({{Value::string(key), Value::dict(own)}}),
                               {key_item(kRankExtraState), key_item(fmt::format("rank_{}", rank))},
                               rank);
    }
  }
  Manifest& manifest = ranks_.builder.manifest();
  manifest.provenance[std::string(kGridProvenance)] =
      grid_text(ranks_.grid.tp, ranks_.grid.pp, ranks_.grid.ep);
  manifest.notes.push_back({Finding::kRankState, Severity::kInfo,
                            "the modules' _extra_state (Transformer Engine's), or what their "
                            "quantizers measured, differs from rank to rank: each rank's own is "
                            "kept, and fits the same mesh alone",
                            "", ""});
  return true;
}

/// Chunk v of stage p comes after chunk v of all earlier stages, and after all of chunk v - 1.
void ModelMerge::find_offsets() {
  LayerCounts done, last;
  for (const std::string& key : keys_) {
    offsets_.emplace_back();
    for (std::int64_t pp = 0; pp < ranks_.grid.pp; ++pp) {
      offsets_.back().push_back(done);
      const auto file =
          std::ranges::find_if(ranks_.files, [&](const RankFile& f) { return f.rank.pp == pp; });
      if (file != ranks_.files.end()) {
        const Value* model = ranks_.root(*file).find(key);
        in_file(file->path, [&] {
          if (!model) fail(Code::kCorrupt, fmt::format("it has no \"{}\"", key));
          last = count_layers(names_of(leaves_of(*model)));
        });
      }  // a missing stage (tolerated) counts as many as the one before
      for (const auto& [prefix, count] : last) done[prefix] += count;
    }
  }
}

void ModelMerge::check_same_names(const RankFile& first, const RankFile& other, const StateDict& a,
                                  const StateDict& b) const {
  const std::vector<std::string> list = names_of(a), there = names_of(b);
  const std::set<std::string> left(list.begin(), list.end()), right(there.begin(), there.end());
  const auto compare = [&](const auto& x, const auto& y, const RankFile& lacks,
                           const RankFile& has) {
    for (const std::string& name : x)
      if (!y.contains(name))
        ranks_.findings.error(Finding::kMissingOnRank,
                              fmt::format("it lacks the tensor, which {} has", has.path),
                              lacks.path, name);
  };
  compare(left, right, other, first);
  compare(right, left, first, other);
}

void ModelMerge::add_rank_set(std::size_t chunk, std::int64_t pp, std::int64_t ep) {
  const RankFile* first = nullptr;
  StateDict reference;
  LayerCounts experts;
  for (const RankFile& file : ranks_.files) {
    if (file.rank.pp != pp || file.rank.ep != ep) continue;
    in_file(file.path, [&] {
      const Value* model = ranks_.root(file).find(keys_[chunk]);
      if (!model) fail(Code::kCorrupt, fmt::format("it has no \"{}\"", keys_[chunk]));
      StateDict state = leaves_of(*model);
      if (first) check_same_names(*first, file, reference, state);
      if (!first) experts = count_experts(state);
      const Offsets& layers = offsets_[chunk][static_cast<std::size_t>(pp)];
      for (const StateEntry& entry : state.entries)
        add_leaf(chunk, file, entry, layers, experts, view_of(file, state, entry));
      if (!first) reference = std::move(state);
    });
    if (!first) first = &file;
  }
}

bool ModelMerge::is_tied_copy(const RankFile& file, const std::string& name) const {
  if (ranks_.grid.pp == 1 || file.rank.pp == 0) return false;
  if (name.ends_with(kTiedHead)) return true;
  return name.ends_with(kOutput) &&
         ranks_.args.boolean("untie_embeddings_and_output_weights") == false;
}

Path ModelMerge::whole_path(const RankFile& file, const Path& path, const Offsets& layers,
                            const LayerCounts& experts) const {
  const std::string name = dotted(path);
  if (is_tied_copy(file, name)) {
    const auto embedding = std::ranges::find_if(
        leaves_, [](const Leaf& known) { return dotted(known.path).ends_with(kEmbedding); });
    if (embedding != leaves_.end()) return embedding->path;
  }
  Path out = path;
  if (const auto layer = layer_name(name)) {
    const auto offset = layers.find(layer->before);
    if (offset != layers.end()) out = with_layer_offset(out, offset->second);
  }
  if (const auto expert = expert_name(name)) {
    const auto count = experts.find(expert->before + "*" + expert->after);
    if (count != experts.end()) out = with_expert_offset(out, file.rank.ep * count->second);
  }
  out.insert(out.begin(), key_item(kModel));
  return out;
}

ModelMerge::Leaf& ModelMerge::leaf(const Path& path) {
  const std::string name = dotted(path);
  const auto [found, fresh] = index_.try_emplace(name, leaves_.size());
  if (fresh) {
    leaves_.emplace_back();
    leaves_.back().path = path;
    leaves_.back().rule_name = name;
    leaves_.back().anchor = found->second;
    if (const auto expert = expert_name(name))
      leaves_.back().anchor = anchors_.try_emplace(expert->before, found->second).first->second;
  }
  return leaves_[found->second];
}

/// How packed experts are to be seen; nullopt: it is none of them, or the only rank's, as it
/// stands.
std::optional<Shape> ModelMerge::view_of(const RankFile& file, const StateDict& state,
                                         const StateEntry& entry) const {
  const bool several = is_expert(entry.name) && !expert_name(entry.name) &&
                       !is_extra_state(entry.name) && ranks_.grid.ep > 1;
  if (!entry.value.is_tensor() || (!is_packed(entry.name) && !several)) return std::nullopt;
  return in_tensor(entry.name, [&]() -> std::optional<Shape> {
    if (!is_packed(entry.name)) fail_packed_name();
    const auto shape_of = [&](const std::string& name) -> std::optional<Shape> {
      const StateEntry* found = state.find(name);
      if (!found || !found->value.is_tensor()) return std::nullopt;
      return ranks_.tensor(file.file, found->value.tensor_index()).shape;
    };
    auto view = packed_view(entry.name, shape_of, ranks_.args, ranks_.grid.ep);
    if (!view && ranks_.grid.ep * ranks_.grid.tp > 1) fail_packed();
    return view;
  });
}

void ModelMerge::add_leaf(std::size_t chunk, const RankFile& file, const StateEntry& entry,
                          const Offsets& layers, const LayerCounts& experts,
                          std::optional<Shape> view) {
  const Path path = whole_path(file, entry.path, layers, experts);
  const std::string name = dotted(path);
  Leaf& known = leaf(path);
  if (is_of_rank(entry.name)) extra_[name].emplace_back(file.file, entry.value);
  if (!entry.value.is_tensor()) {
    if (known.value.is_none() && known.replicas.empty()) {
      known.file = file.file;
      known.value = entry.value;
    } else if (!(known.value == entry.value) && !is_of_rank(entry.name)) {
      ranks_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                           "ranks stored different values; the first rank's is used", file.path,
                           name);
    }
    return;
  }
  local_[static_cast<std::size_t>(&file - ranks_.files.data())].push_back(
      {name.substr(kModel.size() + 1), entry.value.tensor_index(), is_tied_copy(file, entry.name),
       chunk, view});
  // One set of parts per (chunk, stage, expert rank); quantization state belongs to a rank.
  const SetPlace place = ranks_.place(file.rank, view.has_value());
  const auto set = static_cast<std::uint32_t>(
      static_cast<std::int64_t>(chunk) * ranks_.grid.pp * ranks_.grid.ep + place.set);
  const auto [last, fresh] = set_of_.try_emplace(name, set, 0);
  if (!fresh && is_extra_state(entry.name)) return;
  if (fresh || last->second.first != set) {
    known.replicas.emplace_back(place.slots);
    last->second = {set, known.replicas.size() - 1};
  }
  known.replicas[last->second.second][place.slot] =
      Part{file.file, entry.value.tensor_index(), 0, std::move(view)};
}

}  // namespace tessera::megatron_torch

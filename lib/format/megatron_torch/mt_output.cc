// A Manifest -> mp_rank_XX[_YYY]/model_optim_rng.pt (and distrib_optim.pt) for a mesh of tp and pp.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/mt_parts.h"
#include "lib/format/megatron_torch/optimizer_output.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/megatron_torch/rank_writer.h"
#include "lib/format/megatron_torch/stage_plan.h"
#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/value_policy.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kFormat = "megatron-torch";
constexpr std::int64_t kMostRanks = 1 << 16;

struct TargetGrid {
  std::int64_t tp = 1, pp = 1;
};

TargetGrid grid_of(const TargetRequest& request) {
  if (request.world_size && !request.mesh)
    fail(Code::kInvalidArgument, "--world-size does not say how Megatron's ranks cut tensors",
         "use --mesh, for example --mesh tp=2,pp=2");
  TargetGrid grid;
  if (!request.mesh) return grid;
  for (const MeshDim& dim : request.mesh->dims()) {
    if (dim.name == "tp") {
      grid.tp = dim.size;
    } else if (dim.name == "pp") {
      grid.pp = dim.size;
    } else if (dim.name == "ep" && dim.size > 1) {
      fail(Code::kUnsupported, "megatron-torch is not written for several expert-parallel ranks");
    } else if (dim.name != "dp" && dim.name != "cp" && dim.name != "ep") {
      fail(Code::kInvalidArgument,
           fmt::format("mesh dim \"{}\": Megatron's are tp, pp, and dp", printable(dim.name)));
    }
  }
  if (grid.tp > kMostRanks || grid.pp > kMostRanks || grid.tp * grid.pp > kMostRanks)
    fail(Code::kInvalidArgument, fmt::format("more than {} ranks", kMostRanks));
  return grid;
}

/// The number of "rank_<n>", the second item of an entry that belongs to one rank.
std::optional<std::int64_t> own_rank(const Path& path) {
  constexpr std::string_view kRank = "rank_";
  if (path.size() < 2 || path[1].kind != PathItem::Kind::kKey) return std::nullopt;
  const std::string_view key = path[1].key;
  if (!key.starts_with(kRank) || !is_number(key.substr(kRank.size()))) return std::nullopt;
  return std::stoll(std::string(key.substr(kRank.size())));
}

class Writer {
 public:
  Writer(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        grid_(grid_of(request)),
        args_(find_args(source)),
        cut_(source, request, args_, grid_.tp),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, kFormat, builder_.notes()),
        optimizer_(source, args_, ranks() > 1),
        stages_(model_names(), grid_.pp) {}

  OutputPlan plan() {
    if (request_.single_file)
      fail(Code::kUnsupported,
           "megatron-torch is a folder of files, the destination names one file");
    choose_entries();
    for (std::int64_t pp = 0; pp < grid_.pp; ++pp)
      for (std::int64_t tp = 0; tp < grid_.tp; ++tp) add_rank(tp, pp);
    note_root();
    return builder_.finish(std::string(kFormat));
  }

 private:
  std::int64_t ranks() const { return grid_.tp * grid_.pp; }

  static Args find_args(const Manifest& source) {
    const StateEntry* args = source.state.find("args");
    return args ? Args(args->value) : Args();
  }

  static bool in_model(const StateEntry& entry) {
    return entry.path.size() > 1 && is_key(entry.path[0], kModel);
  }
  static std::string name_in_model(const StateEntry& entry) {
    return dotted(Path(entry.path.begin() + 1, entry.path.end()));
  }

  std::vector<std::string> model_names() const {
    std::vector<std::string> names;
    for (const StateEntry& entry : source_.state.entries)
      if (in_model(entry) && entry.value.is_tensor()) names.push_back(name_in_model(entry));
    return names;
  }

  void choose_entries() {
    // State of single ranks goes back to them where they are as many as before.
    std::set<std::int64_t> seen;
    for (const StateEntry& entry : source_.state.entries)
      if (const auto rank = own_rank(entry.path); rank && !in_model(entry)) seen.insert(*rank);
    per_rank_ = static_cast<std::int64_t>(seen.size()) == ranks() && !seen.empty() &&
                *seen.rbegin() == ranks() - 1;
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      in_tensor(entry.name, [&] {
        keep_.push_back(entry.value.is_tensor() || policy_.keeps(entry));
        if (entry.value.is_tensor() && !in_model(entry) && !optimizer_.owns(i)) check_loose(entry);
      });
    }
  }

  /// What stands outside of the model is written whole to every rank, which is right for state that
  /// ranks share, and wrong for weights.
  void check_loose(const StateEntry& entry) const {
    if (ranks() == 1 || own_rank(entry.path)) return;
    const StoredTensor& tensor = source_.tensors[entry.value.tensor_index()];
    if (tensor.kind != TensorKind::kParam) return;
    fail(Code::kUnsupported,
         "a parameter outside of the subtree \"model\", which is what Megatron's ranks share",
         "put the weights there with --rename or --rules");
  }

  void note_root() {
    if (source_.state.entries.empty() || !model_names().empty()) return;
    builder_.notes().push_back(
        {"", "warning", "no tensor lies under \"model\", where Megatron looks for it", "", ""});
  }

  void add_rank(std::int64_t tp, std::int64_t pp) {
    const std::string folder =
        rank_folder_name(tp, grid_.pp > 1 ? std::optional(pp) : std::nullopt);
    RankWriter out(source_, cut_);
    std::vector<WrittenTensor> tensors;
    add_containers(out);
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      if (!keep_[i] || optimizer_.owns(i)) continue;
      in_tensor(entry.name, [&] {
        in_model(entry) ? add_model_entry(out, entry, tp, pp, tensors)
                        : add_other(out, entry, pp * grid_.tp + tp);
      });
    }
    add_tied_copy(out, tp, pp, tensors);
    optimizer_.write(out, cut_, tp, tensors);
    builder_.add(out.finish(folder + "/" + std::string(kModelFile), "model_optim_rng"));
    auto buckets =
        optimizer_.buckets(cut_, tp, tensors, folder + "/" + std::string(kOptimizerFile));
    if (buckets) builder_.add(std::move(*buckets));
  }

  void add_containers(RankWriter& out) {
    for (const ContainerNote& note : source_.state.containers) {
      ContainerNote copy = note;
      copy.attributes = policy_.keeps_attributes(note) ? out.value(note.attributes) : Value();
      copy.entries_before = static_cast<std::size_t>(-1);
      out.state().containers.push_back(std::move(copy));
    }
  }

  void add_model_entry(RankWriter& out, const StateEntry& entry, std::int64_t tp, std::int64_t pp,
                       std::vector<WrittenTensor>& tensors) {
    const std::string name = name_in_model(entry);
    const StagePlace place = stages_.place(name);
    if (place.stage != pp) return;
    Path path =
        with_layer_offset(Path(entry.path.begin() + 1, entry.path.end()), place.layer_offset);
    path.insert(path.begin(), entry.path[0]);
    if (!entry.value.is_tensor()) return out.add(std::move(path), out.value(entry.value));
    const std::uint32_t index = entry.value.tensor_index();
    out.add(std::move(path), out.tensor(index, cut_.part(index, name, tp)));
    const bool shared = is_tied() && name.ends_with(kEmbedding);
    tensors.push_back({name, index, false, shared});
  }

  /// Embedding and output weights are one parameter, and lie in different stages.
  bool is_tied() const {
    return grid_.pp > 1 && args_.boolean("untie_embeddings_and_output_weights") == false;
  }

  /// The last stage computes with a copy of the embedding.
  void add_tied_copy(RankWriter& out, std::int64_t tp, std::int64_t pp,
                     std::vector<WrittenTensor>& tensors) {
    if (!is_tied() || pp != grid_.pp - 1) return;
    for (const StateEntry& entry : source_.state.entries) {
      if (!in_model(entry) || !entry.value.is_tensor()) continue;
      const std::string name = name_in_model(entry);
      if (!name.ends_with(kEmbedding)) continue;
      const std::uint32_t index = entry.value.tensor_index();
      out.add(tied_path(entry), out.tensor(index, cut_.part(index, name, tp)));
      tensors.push_back({name, index, true, true});
      return;
    }
  }

  static Path tied_path(const StateEntry& entry) {
    if (name_in_model(entry).find("language_model.") != std::string::npos)
      return {entry.path[0], key_item("word_embeddings_for_head"), key_item("weight")};
    Path path = entry.path;
    const std::string_view whole = "embedding.word_embeddings.weight";
    std::string& key = path.back().key;
    if (key.ends_with(whole)) {
      key = key.substr(0, key.size() - whole.size()) + "output_layer.weight";
      return path;
    }
    return {entry.path[0], key_item("output_layer.weight")};
  }

  void add_other(RankWriter& out, const StateEntry& entry, std::int64_t number) {
    Path path = entry.path;
    if (const auto rank = own_rank(path); rank && per_rank_) {
      if (*rank != number) return;
      path.erase(path.begin() + 1);
    }
    if (entry.name == "args") return out.add(std::move(path), written_args(out, entry.value));
    out.add(std::move(path), entry.value.is_tensor() ? out.whole(entry.value.tensor_index())
                                                     : out.value(entry.value));
  }

  /// Megatron compares these with its own command line.
  Value written_args(RankWriter& out, const Value& value) {
    if (!args_.is_namespace()) return out.value(value);
    std::vector<std::pair<std::string, Value>> set = {
        {"tensor_model_parallel_size", Value::integer(grid_.tp)},
        {"pipeline_model_parallel_size", Value::integer(grid_.pp)},
        {"transformer_pipeline_model_parallel_size", Value::integer(grid_.pp)},
        {"expert_model_parallel_size", Value::integer(1)},
        {"virtual_pipeline_model_parallel_size", Value()},
        {"num_layers_per_virtual_pipeline_stage", Value()}};
    std::vector<std::pair<std::string, Value>> added;
    if (const auto rows = vocabulary_rows()) {
      const std::int64_t padded = cut_.padded_rows(*rows, "word_embeddings");
      set.emplace_back("padded_vocab_size", Value::integer(padded));
      if (padded != *rows) {
        added.emplace_back(std::string(kTrueVocabulary), Value::integer(*rows));
      } else {
        set.emplace_back(std::string(kTrueVocabulary), Value());
      }
    }
    return out.value(args_.with(set, added));
  }

  std::optional<std::int64_t> vocabulary_rows() const {
    for (const StateEntry& entry : source_.state.entries) {
      if (!in_model(entry) || !entry.value.is_tensor() || !entry.name.ends_with(kEmbedding))
        continue;
      const Shape& shape = source_.tensors[entry.value.tensor_index()].spec.shape;
      if (shape.rank() == 2) return shape[0];
    }
    return std::nullopt;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  TargetGrid grid_;
  Args args_;
  TargetCut cut_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  OptimizerOutput optimizer_;
  StagePlan stages_;
  std::vector<bool> keep_;
  bool per_rank_ = false;
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return Writer(source, request).plan();
}

}  // namespace tessera::megatron_torch

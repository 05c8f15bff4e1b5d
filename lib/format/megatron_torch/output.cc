// A Manifest -> mp_rank_XX[_YYY][_ZZZ]/model_optim_rng.pt (and distrib_optim.pt) for a mesh of tp,
// pp, ep and vpp.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/bucket_names.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/format/megatron_torch/optim_output.h"
#include "lib/format/megatron_torch/parts.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/megatron_torch/rank_writer.h"
#include "lib/format/megatron_torch/stage_plan.h"
#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/value_policy.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kFormat = "megatron-torch";
constexpr std::int64_t kMostRanks = 1 << 16;

std::int64_t* size_of(TargetGrid& grid, std::string_view dim) {
  if (dim == "tp") return &grid.tp;
  if (dim == "pp") return &grid.pp;
  if (dim == "ep") return &grid.ep;
  return dim == "vpp" ? &grid.vpp : nullptr;
}

TargetGrid grid_of(const TargetRequest& request) {
  if (request.world_size && !request.mesh)
    fail(Code::kInvalidArgument, "--world-size does not say how Megatron's ranks cut tensors",
         "use --mesh, for example --mesh tp=2,pp=2");
  TargetGrid grid;
  if (!request.mesh) return grid;
  for (const MeshDim& dim : request.mesh->dims()) {
    if (dim.size > kMostRanks)
      fail(Code::kInvalidArgument, fmt::format("more than {} ranks", kMostRanks));
    if (std::int64_t* size = size_of(grid, dim.name)) {
      *size = dim.size;
    } else if (dim.name != "dp" && dim.name != "cp") {
      fail(Code::kInvalidArgument,
           fmt::format("mesh dim \"{}\": Megatron's are tp, pp, ep, vpp, and dp",
                       printable(dim.name)));
    }
  }
  if (grid.tp * grid.pp > kMostRanks || grid.ranks() > kMostRanks)
    fail(Code::kInvalidArgument, fmt::format("more than {} ranks", kMostRanks));
  return grid;
}

/// The number of "rank_<n>", the second item of an entry that belongs to one rank.
std::optional<std::int64_t> own_rank(const Path& path) {
  constexpr std::string_view kRank = "rank_";
  constexpr std::size_t kMostDigits = 9;
  if (path.size() < 2 || path[1].kind != PathItem::Kind::kKey) return std::nullopt;
  const std::string_view key = path[1].key;
  if (!key.starts_with(kRank)) return std::nullopt;
  const std::string_view digits = key.substr(kRank.size());
  if (!is_number(digits) || digits.size() > kMostDigits) return std::nullopt;
  return std::stoll(std::string(digits));
}

/// A rank of the target.
struct TargetRank {
  std::int64_t tp = 0, pp = 0, ep = 0;
};

/// One whose file is being put together.
struct OpenRank {
  OpenRank(const TargetRank& of, const Manifest& source) : rank(of), out(source) {}
  TargetRank rank;
  RankWriter out;
  std::vector<WrittenTensor> tensors = {};
};

class Writer {
 public:
  Writer(const Manifest& source, const TargetRequest& request)
      : source_(source),
        request_(request),
        grid_(grid_of(request)),
        args_(find_args(source.state, request)),
        roles_(find_roles(source.state)),
        model_(find_model(source.state, roles_)),
        cut_(source, request, args_, grid_.tp, grid_.ep),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, kFormat, builder_.notes(),
                builder_.left_out()),
        stages_(model_names(), grid_),
        optimizer_(source, roles_, args_, grid_.ranks(), grid_.ep > 1) {}

  OutputPlan plan() {
    if (request_.single_file)
      fail(Code::kUnsupported,
           "megatron-torch is a folder of files, the destination names one file");
    choose_entries();
    if (request_.values != KeepPolicy::kDrop) refuse_split_lists(source_.state, roles_, kFormat);
    const std::vector<std::string> names = model_names();
    has_further_tokens_ = std::ranges::any_of(
        names, [](const std::string& name) { return name.starts_with("mtp."); });
    optimizer_.check_complete({names.begin(), names.end()});
    optimizer_.plan_order(names, grid_.ep);
    note_expert_cuts();
    for (TargetRank rank; rank.pp < grid_.pp; ++rank.pp)
      for (rank.ep = 0; rank.ep < grid_.ep; ++rank.ep)
        for (rank.tp = 0; rank.tp < grid_.tp; ++rank.tp) begin_rank(rank);
    for (; !ranks_.empty(); ranks_.pop_front()) finish_rank(ranks_.front());
    note_root();
    return builder_.finish(std::string(kFormat));
  }

 private:
  static Args find_args(const StateDict& state, const TargetRequest& request) {
    const Args stated = args_of(state);
    return stated.known() ? stated : Args(request.own.get(kRunArguments));
  }

  /// Per entry its path in the model; empty: it is no part of it. The model lies under `model`, or,
  /// where nothing does, under the one root that the names show.
  static std::vector<Path> find_model(const StateDict& state, const Roles& roles) {
    const bool named = std::ranges::any_of(state.entries, [](const StateEntry& entry) {
      return entry.path.size() > 1 && is_key(entry.path[0], kModel);
    });
    std::vector<Path> out(state.entries.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const StateEntry& entry = state.entries[i];
      std::size_t root = 1;
      if (named ? entry.path.size() < 2 || !is_key(entry.path[0], kModel)
                : roles.model_roots.size() != 1 || roles.entries[i].role != Role::kModel)
        continue;
      if (!named)
        for (root = 0; root < entry.path.size(); ++root)
          if (dotted(Path(entry.path.begin(), entry.path.begin() + static_cast<long>(root))) ==
              roles.model_roots[0])
            break;
      out[i] = Path(entry.path.begin() + static_cast<long>(root), entry.path.end());
    }
    return out;
  }

  bool in_model(std::size_t entry) const { return !model_[entry].empty(); }

  std::vector<std::string> model_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < model_.size(); ++i)
      if (in_model(i) && source_.state.entries[i].value.is_tensor())
        names.push_back(dotted(model_[i]));
    return names;
  }

  void choose_entries() {
    // State of single ranks goes back to them where they are as many as before.
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; i < model_.size(); ++i)
      if (const auto rank = own_rank(source_.state.entries[i].path); rank && !in_model(i))
        seen.insert(*rank);
    per_rank_ = static_cast<std::int64_t>(seen.size()) == grid_.ranks() && !seen.empty() &&
                *seen.rbegin() == grid_.ranks() - 1;
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      in_tensor(entry.name, [&] {
        keep_.push_back(entry.value.is_tensor() || policy_.keeps(entry));
        const bool at_top = keep_.back() && !in_model(i) && !entry.path.empty();
        if (at_top && is_key(entry.path[0], kRankExtraState)) check_extra_state();
        if (at_top && entry.path[0].kind != PathItem::Kind::kKey)
          fail(Code::kUnsupported,
               fmt::format("the key {} at the top is no text, which Megatron's files have there",
                           entry.path[0].index),
               "leave it out (--exclude), or rename it");
        if (entry.value.is_tensor() && !in_model(i) && !optimizer_.owns(i)) check_loose(entry);
      });
    }
  }

  /// Fp8 scales and the like of the parts that a rank holds mean nothing to ranks with other parts.
  void check_extra_state() const {
    const auto grid = source_.provenance.find(std::string(kGridProvenance));
    if (per_rank_ && grid != source_.provenance.end() &&
        grid->second == grid_text(grid_.tp, grid_.pp, grid_.ep) && grid_.vpp == 1)
      return;
    fail(Code::kUnsupported,
         "the modules' _extra_state (Transformer Engine's) differs from rank to rank, and belongs "
         "to the mesh it was saved on",
         "write the same mesh, or leave it out with --rank-state drop: it is made anew then");
  }

  /// What stands outside of the model is written whole to every rank, which is right for state that
  /// ranks share, and wrong for weights.
  void check_loose(const StateEntry& entry) const {
    if (grid_.ranks() == 1 || own_rank(entry.path)) return;
    const StoredTensor& tensor = source_.tensors[entry.value.tensor_index()];
    if (tensor.kind != TensorKind::kParam) return;
    fail(Code::kUnsupported,
         "a parameter outside of the subtree \"model\", which is what Megatron's ranks share",
         "put the weights there with --rename or --rules");
  }

  /// They are whole here, and each rank's files have them cut as all else.
  void note_expert_cuts() {
    const auto experts = args_.integer("expert_tensor_parallel_size");
    const auto all = args_.integer("tensor_model_parallel_size");
    if (!stages_.has_experts() || !experts || !all || *experts == *all) return;
    builder_.notes().push_back(
        {Finding::kNone, Severity::kWarning,
         fmt::format("the source's run cut experts for {} tensor-parallel ranks, and all else for "
                     "{} (expert_tensor_parallel_size); here they are cut for {} like all else, "
                     "which args say: a run that loads them needs the same",
                     *experts, *all, grid_.tp),
         "", ""});
  }

  void note_root() {
    if (optimizer_.found() && !optimizer_.root().empty() && !optimizer_.stands_in_place())
      builder_.notes().push_back(
          {Finding::kNames, Severity::kInfo,
           fmt::format("the optimizer \"{}\" is written as \"{}\", where Megatron looks for it",
                       printable(optimizer_.root()), kOptimizer),
           "", ""});
    if (source_.state.entries.empty() || !model_names().empty()) return;
    builder_.notes().push_back({Finding::kNone, Severity::kWarning,
                                "no tensor lies under \"model\", where Megatron looks for it", "",
                                ""});
  }

  /// The rank as TargetCut numbers those of a stage.
  std::int64_t in_stage(const TargetRank& rank) const { return rank.ep * grid_.tp + rank.tp; }

  std::string folder_of(const TargetRank& rank) const {
    return rank_folder_name(rank.tp, grid_.pp > 1 ? std::optional(rank.pp) : std::nullopt,
                            grid_.ep > 1 ? std::optional(rank.ep) : std::nullopt);
  }

  /// A rank's file without the optimizer, which all ranks write alike.
  void begin_rank(const TargetRank& rank) {
    OpenRank& open = ranks_.emplace_back(rank, source_);
    add_containers(open.out);
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      if (!keep_[i] || optimizer_.owns(i)) continue;
      in_tensor(entry.name, [&] {
        in_model(i) ? add_model_entry(open.out, i, rank, open.tensors)
                    : add_other(open.out, entry, rank);
      });
    }
    add_tied_copy(open.out, rank, open.tensors);
    std::ranges::stable_sort(open.tensors, {}, &WrittenTensor::chunk);
    optimizer_.plan_record(cut_, in_stage(rank), open.tensors);
  }

  void finish_rank(OpenRank& open) {
    const std::string folder = folder_of(open.rank);
    const std::int64_t number = in_stage(open.rank);
    optimizer_.write(open.out, cut_, number, open.tensors,
                     [this](std::size_t i) { return keep_[i]; });
    builder_.add(open.out.finish(folder + "/" + std::string(kModelFile), "model_optim_rng"));
    auto buckets =
        optimizer_.buckets(cut_, number, open.tensors, folder + "/" + std::string(kOptimizerFile));
    if (buckets) builder_.add(std::move(*buckets));
  }

  /// Those of the optimizer are made anew with it; that of the model is one for each chunk.
  void add_containers(RankWriter& out) {
    for (const ContainerNote& note : source_.state.containers) {
      const bool of_optimizer = !note.path.empty() && is_key(note.path[0], kOptimizer);
      if (optimizer_.found() && of_optimizer) {
        optimizer_.add_container(out, note);
        continue;
      }
      ContainerNote copy = note;
      copy.attributes = policy_.keeps_attributes(note) ? out.value(note.attributes) : Value();
      copy.entries_before = static_cast<std::size_t>(-1);
      if (note.path.empty() || !is_key(note.path[0], kModel)) {
        out.state().containers.push_back(std::move(copy));
        continue;
      }
      for (std::int64_t chunk = 0; chunk < grid_.vpp; ++chunk) {
        copy.path[0] = chunk_item(chunk);
        out.state().containers.push_back(copy);
      }
    }
  }

  /// "model", or "model1" of an interleaved pipeline.
  PathItem chunk_item(std::int64_t chunk) const {
    return key_item(grid_.vpp > 1 ? fmt::format("{}{}", kModel, chunk) : std::string(kModel));
  }

  void add_model_entry(RankWriter& out, std::size_t entry, const TargetRank& rank,
                       std::vector<WrittenTensor>& tensors) {
    const std::string name = dotted(model_[entry]);
    const StagePlace place = stages_.place(name);
    if (is_copied_embedding(name) && rank.pp == grid_.pp - 1 && place.stage != rank.pp)
      return add_embedding_copy(out, entry, rank, tensors);
    if (place.stage != rank.pp || place.expert_rank.value_or(rank.ep) != rank.ep) return;
    Path path = with_expert_offset(with_layer_offset(model_[entry], place.layer_offset),
                                   place.expert_offset);
    path.insert(path.begin(), chunk_item(place.chunk));
    const Value& value = source_.state.entries[entry].value;
    if (!value.is_tensor()) return out.add(std::move(path), out.value(value));
    const std::uint32_t index = value.tensor_index();
    out.add(std::move(path), out.tensor(index, cut_.part(index, name, in_stage(rank))));
    const bool shared = is_tied() && name.ends_with(kEmbedding);
    tensors.push_back({name, index, false, shared, static_cast<std::size_t>(place.chunk)});
  }

  /// Layers that predict further tokens embed those: the last stage, which has them, keeps the
  /// whole embedding. Source: megatron/core/models/gpt/gpt_model.py, mtp_process.
  bool is_copied_embedding(const std::string& name) const {
    return has_further_tokens_ && grid_.pp > 1 && name.starts_with("embedding.");
  }
  void add_embedding_copy(RankWriter& out, std::size_t entry, const TargetRank& rank,
                          std::vector<WrittenTensor>& tensors) {
    Path path = model_[entry];
    const std::string name = dotted(path);
    const std::int64_t chunk = grid_.vpp - 1;
    path.insert(path.begin(), chunk_item(chunk));
    const Value& value = source_.state.entries[entry].value;
    if (!value.is_tensor()) return out.add(std::move(path), out.value(value));
    const std::uint32_t index = value.tensor_index();
    out.add(std::move(path), out.tensor(index, cut_.part(index, name, in_stage(rank))));
    tensors.push_back({name, index, true, true, static_cast<std::size_t>(chunk)});
  }

  /// Embedding and output weights are one parameter, and lie in different stages.
  bool is_tied() const {
    return grid_.pp > 1 && args_.boolean("untie_embeddings_and_output_weights") == false;
  }

  /// The last stage computes with a copy of the embedding.
  void add_tied_copy(RankWriter& out, const TargetRank& rank, std::vector<WrittenTensor>& tensors) {
    if (!is_tied() || rank.pp != grid_.pp - 1) return;
    for (std::size_t i = 0; i < model_.size(); ++i) {
      const Value& value = source_.state.entries[i].value;
      if (!in_model(i) || !value.is_tensor()) continue;
      const std::string name = dotted(model_[i]);
      if (!name.ends_with(kEmbedding)) continue;
      const std::uint32_t index = value.tensor_index();
      Path path = tied_path(model_[i]);
      path.insert(path.begin(), chunk_item(grid_.vpp - 1));
      out.add(std::move(path), out.tensor(index, cut_.part(index, name, in_stage(rank))));
      tensors.push_back({name, index, true, true, static_cast<std::size_t>(grid_.vpp - 1)});
      return;
    }
  }

  static Path tied_path(const Path& embedding) {
    if (dotted(embedding).find("language_model.") != std::string::npos)
      return {key_item("word_embeddings_for_head"), key_item("weight")};
    Path path = embedding;
    const std::string_view whole = "embedding.word_embeddings.weight";
    SharedText& key = path.back().key;
    if (!key.ends_with(whole)) return {key_item("output_layer.weight")};
    key = key.substr(0, key.size() - whole.size()) + "output_layer.weight";
    return path;
  }

  void add_other(RankWriter& out, const StateEntry& entry, const TargetRank& rank) {
    const std::int64_t number = (rank.pp * grid_.ep + rank.ep) * grid_.tp + rank.tp;
    Path path = entry.path;
    if (const auto own = own_rank(path); own && per_rank_) {
      if (*own != number) return;
      path.erase(path.begin() + 1);
    }
    // Under the rank's own names, as the reader keeps it.
    if (is_key(path[0], kRankExtraState)) path.erase(path.begin());
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
        {"expert_model_parallel_size", Value::integer(grid_.ep)},
        {"expert_tensor_parallel_size", Value::integer(grid_.tp)},
        {"virtual_pipeline_model_parallel_size",
         grid_.vpp > 1 ? Value::integer(grid_.vpp) : Value()},
        {"num_layers_per_virtual_pipeline_stage",
         grid_.vpp > 1 ? Value::integer(stages_.layers_per_chunk()) : Value()}};
    std::vector<std::pair<std::string, Value>> added;
    if (const auto embedding = vocabulary()) {
      const auto& [name, rows] = *embedding;
      const std::int64_t padded = cut_.padded_rows(rows, name);
      set.emplace_back("padded_vocab_size", Value::integer(padded));
      if (padded != rows) {
        added.emplace_back(std::string(kTrueVocabulary), Value::integer(rows));
      } else {
        set.emplace_back(std::string(kTrueVocabulary), Value());
      }
    }
    return out.value(args_.with(set, added));
  }

  /// Name and rows of the embedding.
  std::optional<std::pair<std::string, std::int64_t>> vocabulary() const {
    for (std::size_t i = 0; i < model_.size(); ++i) {
      const Value& value = source_.state.entries[i].value;
      if (!in_model(i) || !value.is_tensor() || !dotted(model_[i]).ends_with(kEmbedding)) continue;
      const Shape& shape = source_.tensors[value.tensor_index()].spec.shape;
      if (shape.rank() == 2) return std::pair(dotted(model_[i]), shape[0]);
    }
    return std::nullopt;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  TargetGrid grid_;
  Args args_;
  Roles roles_;
  std::vector<Path> model_;  // per entry
  TargetCut cut_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  StagePlan stages_;
  OptimizerOutput optimizer_;
  std::vector<bool> keep_;
  bool per_rank_ = false;
  std::deque<OpenRank> ranks_;
  bool has_further_tokens_ = false;  // layers of multi-token prediction
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  check_undecoded(source, std::nullopt);
  return Writer(source, request).plan();
}

}  // namespace tessera::megatron_torch

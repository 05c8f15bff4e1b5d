#include "lib/format/deepspeed_zero/checkpoint.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>

#include "lib/format/rank_names.h"
#include "lib/format/torch_files/first_reason.h"
#include "lib/format/torch_files/flat_tensors.h"

namespace tessera::deepspeed {
namespace {

class CheckpointOpener {
 public:
  explicit CheckpointOpener(ZeroCheckpoint& checkpoint) : c_(checkpoint) {}

  void run() {
    report_unusable(c_.folder, c_.findings);
    open_models();
    open_optims();
    if (c_.ranks.empty()) return;
    open_fragments();
    place_parameters();
  }

 private:
  void open_models() {
    if (c_.folder.models.empty())
      fail(Code::kCorrupt,
           fmt::format("{} optimizer files, but no model file ({} or {}): it holds the names and "
                       "shapes of the parameters",
                       c_.folder.optims.size(), model_file_name(), model_file_name(0)));
    c_.model = open_first_model();
    for (const auto& [missing, stored] : c_.model.shared) c_.shared.emplace(missing, stored);
    for (const NamedShape& item : c_.model.frozen_shapes) c_.frozen.emplace(item.name, item.shape);
  }
  /// Opens the model file of the lowest rank whose file can be read: each has all names and shapes.
  ModelFile open_first_model() {
    FirstReason first;
    while (!c_.folder.models.empty()) {
      Status why;
      if (auto model = open_model(c_.folder.models.front(), why)) return std::move(*model);
      first.add(why);
      c_.folder.models.erase(c_.folder.models.begin());
    }
    first.raise();
  }
  /// nullopt: it cannot be read, which is a finding then.
  std::optional<ModelFile> open_model(const FileName& name, Status& why) {
    const auto opened = open_file(name, why);
    if (!opened) {
      lost_models_.insert(name.dp_rank);
      return std::nullopt;
    }
    const std::uint32_t file = *opened;
    ModelFile out;
    if (!parse(name, file, why, [&] { out = parse_model_file(c_.builder.archive(file)); })) {
      lost_models_.insert(name.dp_rank);
      return std::nullopt;
    }
    out.file = file;
    out.dp_rank = name.dp_rank;
    return out;
  }

  std::optional<std::uint32_t> open_file(const FileName& name, Status& why) {
    const std::string path = c_.folder.prefix + name.name;
    const auto file = c_.builder.try_open(path, why);
    if (!file) lose(name, path, why);
    return file;
  }
  void lose(const FileName& name, const std::string& path, const Status& why) {
    const std::string whose = name.dp_rank < 0 ? "the model" : fmt::format("rank {}", name.dp_rank);
    c_.findings.error(Finding::kUnreadableFile, unreadable_text(whose, why), path);
  }
  /// Takes what is in the file. False: it is a file of another kind or another save, which is a
  /// finding where those are asked for.
  template <class Take>
  bool parse(const FileName& name, std::uint32_t file, Status& why, Take take) {
    try {
      in_file(c_.path(file), take);
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt || !c_.findings.tolerate()) throw;
      why = error.status();
      lose(name, c_.path(file), why);
      return false;
    }
    return true;
  }

  void open_optims() {
    std::vector<OptimFile> found;
    FirstReason first;
    for (const auto& [rank, name] : c_.folder.optims) {
      Status why;
      const auto opened = open_file(name, why);
      if (!opened) {
        first.add(why);
        continue;
      }
      const std::uint32_t file = *opened;
      const bool taken = parse(name, file, why, [&] {
        OptimFile optim = parse_optim_file(c_.builder.archive(file));
        optim.file = file;
        optim.rank = rank;
        if (!found.empty()) check_same_save(optim, found.front());
        found.push_back(std::move(optim));
      });
      if (!taken) first.add(why);
    }
    if (found.empty()) first.raise_if_any();
    if (found.empty()) {
      if (!c_.model.has_shapes) return;
      fail(Code::kCorrupt,
           fmt::format("the optimizer files of all ranks are missing ({}, ...): ZeRO keeps the "
                       "fp32 weights there",
                       optim_file_name(0, false)));
    }
    c_.stage = found.front().stage.value_or(1);
    std::int64_t world_size = found.front().world_size();
    if (world_size == 0) world_size = static_cast<std::int64_t>(found.size());
    if (world_size > most_ranks(found.size()))
      in_file(c_.path(found.front().file), [&] {
        fail(Code::kCorrupt,
             fmt::format("partition_count is {}, but {} optimizer file{} here", world_size,
                         found.size(), found.size() == 1 ? " is" : "s are"));
      });
    check_ranks(world_size);
    c_.ranks.resize(static_cast<std::size_t>(world_size));
    for (OptimFile& optim : found)
      if (optim.rank < world_size)
        c_.ranks[static_cast<std::size_t>(optim.rank)] = std::move(optim);
  }
  void check_same_save(const OptimFile& optim, const OptimFile& first) {
    if (optim.stage != first.stage)
      fail(Code::kCorrupt,
           fmt::format("its ZeRO stage differs from that of {}", c_.path(first.file)),
           "files of two saves are mixed here");
    if (optim.world_size() != first.world_size())
      fail(Code::kCorrupt,
           fmt::format("it is of a run over {} ranks, {} is of one over {}", optim.world_size(),
                       c_.path(first.file), first.world_size()),
           "files of two saves are mixed here");
  }

  /// One file per rank, no more and no less; the model file agrees.
  void check_ranks(std::int64_t world_size) {
    const std::vector<std::int64_t> missing = missing_ranks(c_.folder.optims, world_size);
    const FileName& last = c_.folder.optims.rbegin()->second;
    if (!missing.empty())
      c_.findings.error(Finding::kMissingFile,
                        fmt::format("{} optimizer files for {} ranks; missing: rank {}",
                                    c_.folder.optims.size(), world_size, list_ranks(missing)),
                        c_.folder.prefix + optim_file_name(missing.front(), last.bf16));
    if (last.dp_rank >= world_size)
      c_.findings.error(Finding::kStaleFile,
                        fmt::format("a file of rank {}, but the checkpoint is of {} ranks: left "
                                    "from another save",
                                    last.dp_rank, world_size),
                        c_.folder.prefix + last.name);
    const ModelFile& model = c_.model;
    const Value* recorded = model.root.find(kDpWorldSize);
    if (recorded && recorded->is_int() && recorded->as_int() != world_size)
      c_.findings.error(Finding::kDifferentValues,
                        fmt::format("the model file is of {} data-parallel ranks, the optimizer "
                                    "files of {}",
                                    recorded->as_int(), world_size),
                        c_.path(model.file));
    if (!model.has_shapes)
      in_file(c_.path(model.file), [&] { Field(model.root).at(kParamShapes); });
    if ((c_.stage == 3) != (model.dp_rank >= 0))
      fail(Code::kCorrupt,
           fmt::format("the optimizer files are of stage {}, but the model file is {}", c_.stage,
                       c_.path(model.file)));
  }

  /// Frozen parameters of stage 3 are cut over the model files of all ranks.
  void open_fragments() {
    if (c_.stage != 3) return;
    std::set<std::int64_t> there;
    for (const FileName& name : c_.folder.models) there.insert(name.dp_rank);
    std::vector<std::int64_t> missing;
    for (std::int64_t rank = 0; rank < c_.world_size(); ++rank)
      if (!there.contains(rank) && !lost_models_.contains(rank)) missing.push_back(rank);
    if (!missing.empty())
      c_.findings.error(Finding::kMissingFile,
                        fmt::format("{} model files for {} ranks; missing: rank {}",
                                    c_.folder.models.size(), c_.ranks.size(), list_ranks(missing)),
                        c_.folder.prefix + model_file_name(missing.front()));
    // Without frozen parameters they hold nothing that the first one lacks: they are opened only to
    // report their damage.
    if (c_.frozen.empty() && !c_.findings.tolerate()) return;
    for (const FileName& name : c_.folder.models) {
      if (name.dp_rank < 0 || name.dp_rank >= c_.world_size()) continue;
      Status why;
      auto model =
          name.dp_rank == c_.model.dp_rank ? std::optional(c_.model) : open_model(name, why);
      if (model && !c_.frozen.empty()) c_.fragments.push_back(std::move(*model));
    }
  }

  std::vector<std::optional<FlatSizes>> flat_sizes() {
    std::vector<std::optional<FlatSizes>> sizes(c_.ranks.size());
    for (std::size_t r = 0; r < c_.ranks.size(); ++r) {
      if (!c_.ranks[r]) continue;
      const OptimFile& rank = *c_.ranks[r];
      sizes[r].emplace();
      in_file(c_.path(rank.file), [&] {
        for (const std::uint32_t tensor : rank.fp32) {
          const Shape& shape = c_.tensor(rank.file, tensor).shape;
          if (shape.rank() != 1)
            fail(Code::kCorrupt, fmt::format("a flat buffer has shape {}", shape.to_string()));
          sizes[r]->push_back(shape.numel());
        }
      });
    }
    return sizes;
  }

  void place_parameters() {
    const std::vector<std::optional<FlatSizes>> sizes = flat_sizes();
    const OptimFile& first = c_.first_rank();
    const auto& shapes = c_.model.param_shapes;
    const std::vector<std::int64_t> over = ranks_of_groups(first);
    const StackedExperts& stacked = c_.model.stacked;
    c_.parameters = c_.stage == 3 ? places_of_stage_3(shapes, sizes, over, stacked)
                    : over.empty()
                        ? places_of_stage_2(shapes, first.alignment, sizes)
                        : places_with_experts(shapes, first.alignment, over, stacked, sizes);
    add_empty_parameters(first);
    if (!c_.parameters.empty() && first.fp32.empty())
      fail(Code::kCorrupt, "there are parameters, but no flat buffers");
    for (std::size_t i = 0; i < c_.parameters.size(); ++i)
      if (!c_.trained.emplace(c_.parameters[i].name, i).second)
        in_file(c_.path(c_.model.file), [&] {
          fail(Code::kCorrupt,
               fmt::format("param_shapes lists \"{}\" twice", printable(c_.parameters[i].name)));
        });
    share_routers();
  }

  /// A router's second name is in the module alone.
  void share_routers() {
    if (c_.model.stacked.empty()) return;
    for (const NamedTensor& item : c_.model.module)
      if (const auto router = c_.model.stacked.router(item.name);
          router && c_.trained.contains(*router) && !c_.trained.contains(item.name) &&
          !c_.frozen.contains(item.name) && !c_.model.buffers.contains(item.name))
        c_.shared.emplace(item.name, *router);
  }

  /// Over how many ranks each group is cut, where that is not over all of them: groups of experts.
  std::vector<std::int64_t> ranks_of_groups(const OptimFile& first) {
    if (std::ranges::all_of(first.partition_count,
                            [&](std::int64_t count) { return count == c_.world_size(); }))
      return {};
    for (const auto& rank : c_.ranks)
      if (rank) in_file(c_.path(rank->file), [&] { check_partition_ranks(*rank); });
    return in_file(c_.path(first.file), [&] {
      if (is_round_robin(c_.model.root))
        fail(Code::kUnsupported, "experts whose parameters are dealt out (round_robin_gradients)");
      for (const std::int64_t count : first.partition_count) {
        if (count < 1 || count > c_.world_size() || c_.world_size() % count != 0)
          fail(Code::kUnsupported,
               fmt::format("a group that is cut over {} of {} ranks", count, c_.ranks.size()));
        c_.expert_ranks = std::max(c_.expert_ranks, c_.world_size() / count);
      }
      return first.partition_count;
    });
  }

  /// Every n-th rank shares a part with this one.
  void check_partition_ranks(const OptimFile& rank) {
    for (const std::vector<std::int64_t>& ranks : rank.partition_ranks) {
      const auto count = static_cast<std::int64_t>(ranks.size());
      if (count < 1 || c_.world_size() % count != 0)
        fail(Code::kUnsupported,
             fmt::format("a sub-group that is cut over {} of {} ranks", count, c_.ranks.size()));
      const std::int64_t step = c_.world_size() / count;
      for (std::int64_t i = 0; i < count; ++i)
        if (ranks[static_cast<std::size_t>(i)] != rank.rank % step + i * step)
          fail(Code::kUnsupported,
               "experts that are shared out among ranks in another order than every n-th");
    }
  }

  /// Trained parameters without elements, which stand among the frozen ones.
  void add_empty_parameters(const OptimFile& first) {
    for (const auto& [name, group, place] : c_.model.naming.empty) {
      const auto shape = c_.frozen.find(name);
      if (shape == c_.frozen.end() || shape->second.numel() != 0) continue;
      auto flat = static_cast<std::size_t>(group);
      if (c_.stage == 3 && flat < first.groups.size())
        if (const auto ids = Field(first.groups[flat]).at(kParams).counts(); !ids.empty())
          flat = static_cast<std::size_t>(ids.front());
      c_.parameters.push_back({name, shape->second, flat, {}});
    }
  }

  ZeroCheckpoint& c_;
  std::set<std::int64_t> lost_models_;  // ranks whose file cannot be read
};

}  // namespace

std::optional<std::uint32_t> open_or_report(ArchiveManifestBuilder& builder, Findings& findings,
                                            const std::string& path, std::string_view whose) {
  Status why;
  const auto file = builder.try_open(path, why);
  if (!file) findings.error(Finding::kUnreadableFile, unreadable_text(whose, why), path);
  return file;
}

ZeroFiles::ZeroFiles(const Place& place, const ReadOptions& options)
    : builder(*place.directory, options),
      bytes(*place.directory, builder),
      findings(options.tolerate_damage, builder.manifest().notes) {}

ZeroCheckpoint::ZeroCheckpoint(ZeroFiles& files, Folder its_files)
    : folder(std::move(its_files)),
      builder(files.builder),
      bytes(files.bytes),
      findings(files.findings) {}

const OptimFile& ZeroCheckpoint::first_rank() const {
  const auto found =
      std::find_if(ranks.begin(), ranks.end(), [](const auto& rank) { return bool(rank); });
  TESSERA_CHECK(found != ranks.end());
  return **found;
}

DType ZeroCheckpoint::master_type(const TrainedParameter& parameter) const {
  const OptimFile& first = first_rank();
  return tensor(first.file, first.fp32.at(std::min(parameter.flat, first.fp32.size() - 1))).dtype;
}

std::vector<ArchivePiece> ZeroCheckpoint::pieces_of(
    const TrainedParameter& parameter,
    const std::function<std::optional<std::uint32_t>(const FlatRun&)>& tensor) const {
  std::vector<FlatRun> runs = parameter.runs;
  if (runs.empty() && parameter.shape.numel() == 0) {
    const OptimFile& first = first_rank();
    runs.push_back({static_cast<std::size_t>(first.rank),
                    std::min(parameter.flat, first.fp32.size() - 1), 0, 0, 0});
  }
  return tessera::pieces_of(runs, parameter.shape,
                            [&](const FlatRun& run) -> std::optional<TensorRef> {
                              const auto from = tensor(run);
                              if (!from) return std::nullopt;
                              return TensorRef{rank_of(run).file, *from};
                            });
}

void open_checkpoint(ZeroCheckpoint& checkpoint) { CheckpointOpener(checkpoint).run(); }

}  // namespace tessera::deepspeed

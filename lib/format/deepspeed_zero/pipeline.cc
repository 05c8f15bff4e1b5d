#include "lib/format/deepspeed_zero/pipeline.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lib/format/deepspeed_zero/pipeline_layout.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/torch_files/archive_names.h"

namespace tessera::deepspeed {
namespace {

/// "tied_modules.embed.word_embeddings.weight" is held by several stages, under layers' own numbers
/// in their files.
constexpr std::string_view kTied = "tied_modules.";

std::string_view behind(std::string_view text, char separator) {
  const std::size_t at = text.find(separator);
  return at == std::string_view::npos ? text : text.substr(at + 1);
}

class PipelineReader {
 public:
  PipelineReader(ZeroFiles& files, const Folder& folder) : files_(files), folder_(folder) {}

  Manifest read() {
    open_stages();
    report_renamed(files_.builder, files_.findings);
    for (const auto& stage : stages_) add_weights(*stage);
    add_layers();
    const bool with_zero =
        std::ranges::any_of(stages_, [](const auto& stage) { return !stage->ranks.empty(); });
    if (with_zero) add_optimizers();
    ZeroCheckpoint& first = *stages_.front();
    StateAssembler(files_.builder, first.model).add_other_state();
    for (const auto& stage : stages_) compare_fields(first, *stage);
    std::string dialect = describe(first);
    return files_.builder.finish(std::string(kZeroFormat), std::move(dialect));
  }

 private:
  void open_stages() {
    std::int64_t expected = 0;
    for (auto& [number, folder] : stages_of(folder_)) {
      if (number != expected++)
        files_.findings.error(
            Finding::kMissingFile,
            fmt::format("files of stage {} are missing, those of stage {} are here", expected - 1,
                        number),
            folder_.prefix + fmt::format("mp_rank_{:02}_model_states.pt", expected - 1));
      expected = number + 1;
      auto stage = std::make_unique<ZeroCheckpoint>(files_, std::move(folder));
      open_checkpoint(*stage);
      check_kind(*stage);
      if (!stage->ranks.empty()) {
        check_slices(*stage);
        if (files_.findings.tolerate()) check_pads(*stage);
      }
      keep_names(*stage);
      drop_known(*stage);
      stages_.push_back(std::move(stage));
    }
    if (stages_.empty())
      fail(Code::kCorrupt,
           "files of layers, but no mp_rank_.._model_states.pt: the state of the "
           "engine stands there");
  }
  void check_kind(ZeroCheckpoint& stage) const {
    if (stage.model.has_module)
      fail(Code::kUnsupported,
           fmt::format("pipeline parallelism ({}), but {} has a module of its own",
                       layers_of(folder_).front().name, stage.path(stage.model.file)));
    const Value* known = stage.model.root.find(kParallelDimensions);
    const Value* degree = known ? known->find(kTpDegree) : nullptr;
    if (degree && degree->is_int() && degree->as_int() > 1)
      fail(Code::kUnsupported,
           fmt::format(
               "a pipeline over {} tensor-parallel ranks, of which the layers' files are one",
               degree->as_int()));
    const Value* optimizer = stage.model.root.find(kOptimizer);
    if (stage.ranks.empty() && optimizer && !optimizer->is_none())
      fail(Code::kUnsupported,
           "a pipeline without ZeRO: the optimizer of each stage numbers its own parameters",
           "load it where it was trained, and save the model's state_dict() there");
  }
  /// A tied parameter is in every stage that uses it, with the same elements: the first one's counts.
  void drop_known(ZeroCheckpoint& stage) {
    std::erase_if(stage.parameters, [&](const TrainedParameter& parameter) {
      return !names_.insert(parameter.name).second;
    });
    stage.trained.clear();
    for (std::size_t i = 0; i < stage.parameters.size(); ++i)
      stage.trained.emplace(stage.parameters[i].name, i);
  }

  /// What the stage trains, in the order of its buffers, and of which type.
  void keep_names(ZeroCheckpoint& stage) {
    auto& groups = layout_.stages.emplace_back();
    for (const auto& shapes : stage.model.param_shapes) {
      PipelineLayout::Names& names = groups.emplace_back();
      for (const NamedShape& item : shapes) names.push_back(item.name);
    }
    for (const TrainedParameter& parameter : stage.parameters)
      types_.emplace(parameter.name, stage.master_type(parameter));
  }

  void add_weights(ZeroCheckpoint& stage) {
    StateAssembler state(files_.builder, stage.model);
    for (const TrainedParameter& parameter : stage.parameters) {
      if (parameter.name.starts_with(kTied))
        tied_.emplace(std::pair(std::string(behind(
                                    std::string_view(parameter.name).substr(kTied.size()), '.')),
                                parameter.shape.to_string()),
                      parameter.name);
      const auto pieces =
          stage.pieces_of(parameter, [&](const FlatRun& run) { return stage.master_of(run); });
      state.add_model(parameter.name, {stage.master_type(parameter), parameter.shape}, pieces);
    }
  }

  /// What the optimizer does not hold: buffers and frozen parameters; without ZeRO, all weights.
  void add_layers() {
    for (const FileName& layer : layers_of(folder_)) {
      const std::string path = folder_.prefix + layer.name;
      const auto opened = open_or_report(files_.builder, files_.findings, path,
                                         fmt::format("layer {}", layer.layer));
      if (!opened) continue;
      const std::uint32_t file = *opened;
      layout_.layers.push_back({layer.name, {}});
      in_file(path, [&] {
        for (const auto& [key, field] : Field(files_.builder.archive(file).root).entries())
          add_of_layer(file, layer.layer, key.text(), field.value());
      });
    }
  }
  void add_of_layer(std::uint32_t file, std::int64_t layer, const std::string& key,
                    const Value& value) {
    const std::string name = fmt::format("{}.{}", layer, key);
    auto& entries = layout_.layers.back().entries;
    entries.emplace_back(key, name);
    if (names_.contains(name)) return keep_copy(file, name, value);
    Path path = path_of({kModelRoot, name});
    if (!value.is_tensor()) return files_.builder.add_value(file, path, value);
    const ArchiveTensor& stored = files_.builder.archive(file).tensors.at(value.tensor_index());
    if (const auto tied = tied_.find({key, stored.shape.to_string()}); tied != tied_.end()) {
      entries.back().second = tied->second;
      return keep_copy(file, tied->second, value);
    }
    const ArchivePiece piece = whole_piece_of(stored, file, value.tensor_index());
    files_.builder.add_tensor(path, {stored.dtype, stored.shape}, {&piece, 1});
    names_.insert(name);
  }

  /// The layer's own copy of a weight that the optimizer's files hold: for who writes it again.
  void keep_copy(std::uint32_t file, const std::string& name, const Value& value) {
    const auto type = types_.find(name);
    if (type == types_.end() || !value.is_tensor() || !copied_.insert(name).second) return;
    StateAssembler(files_.builder, stages_.front()->model)
        .keep_module_copy(file, {name, value.tensor_index()}, type->second);
  }

  void add_optimizers() {
    for (const auto& stage : stages_)
      if (!stage->ranks.empty()) add_optimizer_state(*stage);
    std::vector<std::pair<std::uint32_t, NamedGroup>> groups;
    Value step;
    for (const auto& stage : stages_) {
      if (stage->ranks.empty()) continue;
      NamedGroups own = optimizer_groups(*stage);
      if (step.is_none()) step = own.step;
      for (std::size_t g = 0; g < own.groups.size(); ++g) {
        std::erase_if(own.groups[g].members,
                      [&](const std::string& name) { return !stage->trained.contains(name); });
        join(own.file, std::move(own.groups[g]), groups);
      }
    }
    ZeroCheckpoint& first = *stages_.front();
    StateAssembler state(files_.builder, first.model);
    for (std::size_t g = 0; g < groups.size(); ++g)
      state.add_group(groups[g].first, g, groups[g].second.options, groups[g].second.members, step);
    for (const auto& stage : stages_)
      if (!stage->ranks.empty()) return add_optimizer_fields(*stage);
  }
  /// Groups of stages with the same options are one.
  static void join(std::uint32_t file, NamedGroup own,
                   std::vector<std::pair<std::uint32_t, NamedGroup>>& groups) {
    const auto same = std::ranges::find_if(groups, [&](const auto& group) {
      return equal_options(group.second.options, own.options);
    });
    if (same == groups.end()) {
      groups.emplace_back(file, std::move(own));
      return;
    }
    auto& members = same->second.members;
    members.insert(members.end(), own.members.begin(), own.members.end());
  }
  static bool equal_options(const Value& a, const Value& b) {
    if (!a.is_dict() || !b.is_dict()) return a == b;
    const auto without_members = [](const Value& group) {
      ValueDict kept;
      for (const auto& entry : group.as_dict())
        if (entry.first != text(kParams)) kept.push_back(entry);
      return Value::dict(std::move(kept));
    };
    const Value left = without_members(a);
    return !left.holds_tensors() && left == without_members(b);
  }

  /// The engine's fields are of all stages; where one differs, the first stage's is used and said.
  void compare_fields(ZeroCheckpoint& first, ZeroCheckpoint& stage) {
    if (&first == &stage) return;
    const Value kept = other_state(first.model), own = other_state(stage.model);
    for (const auto& [key, value] : own.as_dict()) {
      const Value* other = key.is_string() ? kept.find(key.as_string()) : nullptr;
      if (other && files_.bytes.same(first.model.file, *other, stage.model.file, value) !=
                       ArchiveBytes::Answer::kDifferent)
        continue;
      files_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                           fmt::format("\"{}\" differs from that of the pipeline's first stage, "
                                       "which is used",
                                       key.is_string() ? printable(key.as_string()) : "?"),
                           stage.path(stage.model.file));
    }
  }

  std::string describe(ZeroCheckpoint& first) {
    Manifest& manifest = files_.builder.manifest();
    const std::string by = note_version(manifest, first.model.root);
    if (!folder_.tag.empty()) manifest.provenance[std::string(kTagProvenance)] = folder_.tag;
    manifest.provenance[std::string(kPipelineProvenance)] = fmt::format("{}", stages_.size());
    if (!first.ranks.empty()) {
      keep_layout(manifest, layout_);
      manifest.provenance[std::string(kStageProvenance)] = fmt::format("{}", first.stage);
      manifest.provenance[std::string(kBf16Provenance)] =
          first.folder.optims.begin()->second.bf16 ? "true" : "false";
      std::int64_t ranks = 0;
      for (const auto& stage : stages_) ranks += stage->world_size();
      manifest.world_size = ranks;
      manifest.world_size_source = fmt::format("ranks of {} pipeline stages", stages_.size());
    }
    return fmt::format("pipeline of {} stages, {}{}", stages_.size(),
                       first.ranks.empty() ? "without ZeRO"
                                           : fmt::format("ZeRO stage {}, {} ranks each",
                                                         first.stage, first.ranks.size()),
                       by);
  }

  ZeroFiles& files_;
  const Folder& folder_;
  std::vector<std::unique_ptr<ZeroCheckpoint>> stages_;
  std::set<std::string> names_;
  /// Name below the tied module and shape -> the parameter.
  std::map<std::pair<std::string, std::string>, std::string> tied_;
  PipelineLayout layout_;
  std::map<std::string, DType> types_;  // of the fp32 weights in the optimizer's files
  std::set<std::string> copied_;
};

}  // namespace

Manifest read_pipeline(ZeroFiles& files, const Folder& folder) {
  return PipelineReader(files, folder).read();
}

}  // namespace tessera::deepspeed

#include "lib/format/deepspeed_zero/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <unordered_set>

#include "lib/format/deepspeed_zero/checkpoint.h"
#include "lib/format/deepspeed_zero/fused_optim.h"
#include "lib/format/deepspeed_zero/pipeline.h"
#include "lib/format/deepspeed_zero/plain_experts.h"
#include "lib/format/deepspeed_zero/plain_optim.h"
#include "lib/format/deepspeed_zero/stacked_rows.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/torch_files/archive_names.h"

namespace tessera::deepspeed {
namespace {

class ZeroReader {
 public:
  ZeroReader(const Place& place, const ReadOptions& options)
      : files_(place, options),
        c_(files_, find_folder(place, false)),
        state_(c_.builder, c_.model) {}

  Manifest read() {
    if (c_.folder.empty())
      fail(Code::kUnsupported, "no *_model_states.pt or *_optim_states.pt in this folder");
    if (is_plain_pipeline(c_.folder)) return read_pipeline(files_, c_.folder);
    refuse_tensor_parallel();
    open_checkpoint(c_);
    check_experts();
    if (c_.ranks.empty()) {
      read_without_zero();
    } else {
      check_slices(c_);
      add_model();
      add_other_experts();
      add_optimizer(c_);
      if (c_.findings.tolerate()) check_pads(c_);
    }
    report_renamed(c_.builder, c_.findings);
    state_.add_other_state();
    std::string dialect = describe();
    return c_.builder.finish(std::string(kZeroFormat), std::move(dialect));
  }

 private:
  void refuse_tensor_parallel() {
    Status why;
    std::optional<std::uint32_t> model;
    if (!c_.folder.foreign.empty() && !c_.folder.models.empty())
      model = c_.builder.try_open(c_.folder.prefix + c_.folder.models.front().name, why);
    deepspeed::refuse_tensor_parallel(c_.folder,
                                      model ? &c_.builder.archive(*model).root : nullptr);
  }

  /// Trained experts have their fp32 weights in the optimizer's files, and copies in files of their
  /// own; others are in the latter alone.
  void add_other_experts() {
    StackedRows rows;
    for (const FileName& name : c_.folder.foreign) {
      const std::string path = c_.folder.prefix + name.name;
      if (name.kind != FileName::Kind::kExpert || !path.ends_with("model_states.pt")) continue;
      const auto file = open_or_report(c_.builder, c_.findings, path, "an expert");
      if (!file) continue;
      in_file(path, [&] {
        for (const NamedTensor& item : tensors_of(Field(c_.builder.archive(*file).root))) {
          if (rows.take(c_, *file, item)) continue;
          if (const auto known = c_.trained.find(item.name); known != c_.trained.end()) {
            state_.keep_module_copy(*file, item, c_.master_type(c_.parameters[known->second]));
            continue;
          }
          const ArchiveTensor& stored = c_.tensor(*file, item.tensor);
          const ArchivePiece piece = whole_piece_of(stored, *file, item.tensor);
          state_.add_model(item.name, {stored.dtype, stored.shape}, {&piece, 1});
        }
      });
    }
    rows.each(c_, [&](const std::string& name, const TensorSpec& spec,
                      const std::vector<ArchivePiece>& pieces) {
      if (const auto known = c_.trained.find(name); known != c_.trained.end())
        state_.keep_module_copy(name, spec, pieces, c_.master_type(c_.parameters[known->second]));
      else
        state_.add_model(name, spec, pieces);
    });
  }

  /// DeepSpeed itself saves no experts of its own under stage 3.
  void check_experts() const {
    if (!has_experts(c_.folder) || c_.ranks.empty() || c_.stage != 3) return;
    fail(Code::kUnsupported,
         "a mixture of experts under ZeRO stage 3: which rank holds which expert's state is not "
         "read here",
         "load it where it was trained, and save the model's state_dict() there");
  }

  /// Stage 0: plain state dicts.
  void read_without_zero() {
    const ModelFile& model = c_.model;
    for (const NamedTensor& item : model.module) {
      const ArchiveTensor& stored = c_.tensor(model.file, item.tensor);
      const ArchivePiece piece = whole_piece_of(stored, model.file, item.tensor);
      Path at = root_path(model.naming.model_root);
      at.push_back(key_item(item.name));
      const std::uint32_t number =
          c_.builder.add_tensor(at, {stored.dtype, stored.shape}, {&piece, 1});
      if (model.buffers.contains(item.name)) c_.builder.tensor(number).kind = TensorKind::kBuffer;
    }
    if (has_experts(c_.folder)) {
      c_.expert_ranks = add_plain_experts(c_, state_);
      return;
    }
    const Value* optimizer = model.root.find(kOptimizer);
    if (!optimizer || optimizer->is_none()) return;
    const auto fused = in_file(c_.path(model.file), [&] {
      return fused_layout(c_.builder.archive(model.file), model, *optimizer);
    });
    if (fused && fused->missing.empty())
      return add_fused_optimizer(c_.builder, state_, model, *optimizer, *fused);
    if (fused)
      c_.builder.manifest().notes.push_back({Finding::kUnnamedState, Severity::kWarning,
                                             "the optimizer's flat buffers are kept as they are, "
                                             "and fit this model's engine alone: " +
                                                 fused->missing,
                                             c_.path(model.file), ""});
    const auto plain = in_file(c_.path(model.file), [&] { return unwrap_optimizer(*optimizer); });
    c_.builder.add_state(model.file, plain ? plain->optimizer : *optimizer,
                         root_path(model.naming.optim_root));
    if (plain) state_.add_globals(model.file, plain->fields);
  }

  void add_model() {
    std::unordered_set<std::string> done;
    for (const NamedTensor& item : c_.model.module) {
      add_weight(item.name, &item);
      done.insert(item.name);
    }
    const auto add_left = [&](const std::string& name) {
      if (done.insert(name).second) add_weight(name, nullptr);
    };
    for (const TrainedParameter& parameter : c_.parameters) add_left(parameter.name);
    for (const NamedShape& item : c_.model.frozen_shapes) add_left(item.name);
    for (const auto& [name, stored] : c_.model.shared) add_left(name);
  }

  /// `module`: its entry there, null when the module leaves it out.
  void add_weight(const std::string& name, const NamedTensor* module) {
    std::string holder = name;
    const auto tied = c_.shared.find(name);
    if (tied != c_.shared.end() && !c_.trained.contains(name) && !c_.frozen.contains(name))
      holder = tied->second;
    if (const auto found = c_.trained.find(holder); found != c_.trained.end())
      return add_trained(name, c_.parameters[found->second], module);
    // Stage 1 keeps frozen parameters in the module alone.
    const auto frozen = c_.frozen.find(holder);
    if (frozen != c_.frozen.end())
      return state_.add_frozen(name, holder, frozen->second, c_.fragments, c_.world_size());
    if (module && is_placeholder(*module))
      return c_.findings.error(Finding::kLost,
                               "rank 0's model file is lost, which alone says with what it is tied",
                               c_.path(c_.model.file), name_in_model(name));
    if (module) return state_.add_module_tensor(*module);
    in_file(c_.path(c_.model.file), [&] {
      fail(Code::kCorrupt, fmt::format("\"{}\" is tied to \"{}\", which is not in the checkpoint",
                                       printable(name), printable(holder)));
    });
  }

  /// Stage 3 leaves nothing of a partitioned weight in the modules; other ranks' files than the
  /// first do not say which weights are shared.
  bool is_placeholder(const NamedTensor& module) {
    return c_.stage == 3 && c_.model.dp_rank > 0 && !c_.model.buffers.contains(module.name) &&
           c_.tensor(c_.model.file, module.tensor).shape == Shape{0};
  }
  std::string name_in_model(const std::string& name) const {
    return dotted(below(root_path(c_.model.naming.model_root), name));
  }

  void add_trained(const std::string& name, const TrainedParameter& parameter,
                   const NamedTensor* module) {
    const std::vector<ArchivePiece> pieces =
        c_.pieces_of(parameter, [&](const FlatRun& run) { return c_.master_of(run); });
    const DType master = c_.master_type(parameter);
    if (module && c_.model.naming.module_weights) return state_.add_module_tensor(*module);
    state_.add_model(name, {master, parameter.shape}, pieces);
    if (module) state_.keep_module_copy(c_.model.file, *module, master);
  }

  /// Notes what a writer of this format asks for.
  void note_experts(Manifest& manifest) {
    if (!has_experts(c_.folder) && c_.model.stacked.empty()) return;
    manifest.provenance[std::string(kExpertProvenance)] = fmt::format("{}", c_.expert_ranks);
    if (!c_.model.stacked.empty()) manifest.provenance[std::string(kStackedProvenance)] = "true";
  }

  std::string describe() {
    Manifest& manifest = c_.builder.manifest();
    const std::string by = note_version(manifest, c_.model.root);
    if (!c_.folder.tag.empty()) manifest.provenance[std::string(kTagProvenance)] = c_.folder.tag;
    if (c_.ranks.empty()) {
      note_experts(manifest);
      const Value* recorded = c_.model.root.find(kDpWorldSize);
      if (recorded && recorded->is_int() && recorded->as_int() > 0) {
        manifest.world_size = recorded->as_int();
        manifest.world_size_source = "dp_world_size of the model file";
      }
      return "DeepSpeed without ZeRO" + by;
    }
    manifest.provenance[std::string(kStageProvenance)] = fmt::format("{}", c_.stage);
    manifest.provenance[std::string(kBf16Provenance)] =
        c_.folder.optims.begin()->second.bf16 ? "true" : "false";
    manifest.world_size = static_cast<std::int64_t>(c_.ranks.size());
    note_experts(manifest);
    manifest.world_size_source =
        fmt::format("partition_count of {} optimizer files", c_.folder.optims.size());
    return fmt::format(
        "{}, {} ranks{}{}",
        c_.first_rank().stage ? fmt::format("ZeRO stage {}", c_.stage) : "bf16 optimizer",
        c_.ranks.size(),
        c_.expert_ranks > 1 ? fmt::format(", experts over {} of them", c_.expert_ranks) : "", by);
  }

  ZeroFiles files_;
  ZeroCheckpoint c_;
  StateAssembler state_;
};

}  // namespace

Manifest read_zero(const Place& place, const ReadOptions& options) {
  return ZeroReader(place, options).read();
}

}  // namespace tessera::deepspeed

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lib/format/deepspeed_universal/merge_notes.h"
#include "lib/format/deepspeed_universal/parts.h"
#include "lib/format/deepspeed_zero/partition.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"

namespace tessera::deepspeed {
namespace {

/// zero/<name>/<leaf>.pt.
struct LeafFile {
  std::string leaf;
  std::uint32_t file = 0;
  bool is_tensor = false;
  std::uint32_t tensor = 0;
  Value value;  // no tensor: a counter
};

class UniversalReader {
 public:
  UniversalReader(const Place& place, const ReadOptions& options)
      : directory_(*place.directory),
        folder_(find_folder(place, false)),
        builder_(*place.directory, options),
        bytes_(*place.directory, builder_),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest read() {
    report_unusable(folder_, findings_);
    open_models();
    open_optimizer();
    for (const FileInfo& info : directory_.list(folder_.prefix + std::string(kZeroFolder)))
      if (info.type == FileType::kDirectory) open_parameter(info.name);
    check_leaves();
    add_model();
    add_optimizer();
    StateAssembler(builder_, model_).add_other_state();
    const std::string dialect = describe();
    return builder_.finish(std::string(kUniversalFormat), dialect);
  }

 private:
  const std::string& path(std::uint32_t file) { return builder_.manifest().files[file].path; }
  const ArchiveTensor& tensor_of(const LeafFile& leaf) const {
    return builder_.archive(leaf.file).tensors.at(leaf.tensor);
  }

  void open_models() {
    if (folder_.models.empty())
      fail(Code::kCorrupt, fmt::format("no model file ({} or {}): shapes of the parameters stand "
                                       "there",
                                       model_file_name(), model_file_name(0)));
    for (const FileName& name : folder_.models) {
      const std::uint32_t file = builder_.open(folder_.prefix + name.name);
      in_file(path(file), [&] { ranks_.push_back(parse_model_file(builder_.archive(file))); });
      ranks_.back().file = file;
      ranks_.back().dp_rank = name.dp_rank;
      if (ranks_.size() == 1 && (name.dp_rank < 0 || ranks_[0].frozen_shapes.empty())) break;
    }
    model_ = ranks_.front();
    if (!model_.has_module) add_other_stages();
    merge_ = MergeNotes(model_.root.find(kUniversalInfo));
    if (model_.dp_rank < 0 || model_.frozen_shapes.empty()) ranks_.clear();
    for (const auto& [missing, stored] : model_.shared) shared_.emplace(missing, stored);
    for (const NamedShape& item : model_.frozen_shapes) frozen_.emplace(item.name, item.shape);
    for (std::size_t g = 0; g < model_.param_shapes.size(); ++g)
      for (const NamedShape& item : model_.param_shapes[g]) {
        shapes_.emplace(item.name, item.shape);
        sub_groups_.emplace(item.name, static_cast<std::int64_t>(g));
      }
    for (const auto& item : model_.naming.empty)
      if (const auto shape = frozen_.find(std::get<0>(item)); shape != frozen_.end())
        shapes_.emplace(shape->first, shape->second);
  }

  /// The shapes of a pipeline's other stages; the parameters themselves are whole in zero/.
  void add_other_stages() {
    std::set<std::string> known;
    for (const auto& group : model_.param_shapes)
      for (const NamedShape& item : group) known.insert(item.name);
    for (const FileName& name : folder_.foreign) {
      if (name.kind != FileName::Kind::kModel || name.dp_rank > 0) continue;
      const std::uint32_t file = builder_.open(folder_.prefix + name.name);
      const ModelFile stage =
          in_file(path(file), [&] { return parse_model_file(builder_.archive(file)); });
      for (std::size_t g = 0; g < stage.param_shapes.size(); ++g) {
        if (g == model_.param_shapes.size()) model_.param_shapes.emplace_back();
        for (const NamedShape& item : stage.param_shapes[g])
          if (known.insert(item.name).second) model_.param_shapes[g].push_back(item);
      }
      ++stages_;
    }
  }

  void open_optimizer() {
    const std::string name =
        folder_.prefix + std::string(kZeroFolder) + "/" + std::string(kOptimizerStateFile);
    const auto info = directory_.stat(name);
    if (!info || info->type != FileType::kRegular) {
      const std::string_view what = info ? no_regular_file(info->type) : "it is missing";
      Status status{Code::kCorrupt, fmt::format("{}: steps and groups stand there", what), {}, {}};
      status.context.file = name;
      throw Error(std::move(status));
    }
    optimizer_file_ = builder_.open(name);
    in_file(name, [&] {
      optimizer_ = builder_.archive(optimizer_file_).root;
      const Field root(optimizer_);
      root.dict();
      const auto stage = root.find(kZeroStage), nested = root.find(kOptimizerStateDict);
      stage_ = stage ? stage->count() : 1;
      if (const auto groups = (nested ? *nested : root).find(kParamGroups))
        groups_ = groups->list();
      if (nested)
        if (const auto states = nested->find(kState))
          for (const auto& [id, leaves] : states->entries())
            states_.emplace(id.count(), leaves.dict());
    });
  }

  void open_parameter(const std::string& name) {
    const std::string base = folder_.prefix + std::string(kZeroFolder) + "/" + name;
    for (const FileInfo& info : directory_.list(base)) {
      if (!info.name.ends_with(".pt")) continue;
      if (info.type != FileType::kRegular) {
        lose(Finding::kMissingFile, name, info.name.substr(0, info.name.size() - 3),
             std::string(no_regular_file(info.type)));
        continue;
      }
      LeafFile leaf;
      leaf.leaf = info.name.substr(0, info.name.size() - 3);
      Status why;
      if (open_leaf(name, base + "/" + info.name, leaf, why)) {
        leaves_[name].push_back(std::move(leaf));
        continue;
      }
      lose(Finding::kUnreadableFile, name, leaf.leaf,
           unreadable_text(fmt::format("the file of its \"{}\"", printable(leaf.leaf)), why));
    }
  }
  /// A leaf whose file is lost, under the names that its tensors would have.
  void lose(Finding code, const std::string& name, const std::string& leaf,
            const std::string& message) {
    lost_.emplace(name, leaf);
    const std::string file =
        folder_.prefix + std::string(kZeroFolder) + "/" + name + "/" + leaf + ".pt";
    const StateAssembler state(builder_, model_);
    const bool is_weight = leaf == kFp32Leaf && shapes_.contains(name);
    if (is_weight) findings_.error(code, message, file, dotted(state.model_path(name)));
    const std::string as = is_weight ? model_.naming.fp32_leaf : leaf;
    if (!as.empty()) findings_.error(code, message, file, dotted(state.state_path(name, as)));
  }
  /// False, where damage is tolerated: it cannot be read.
  bool open_leaf(const std::string& name, const std::string& file, LeafFile& leaf, Status& why) {
    const auto number = builder_.try_open(file, why);
    if (!number) return false;
    leaf.file = *number;
    try {
      in_file(file, [&] { parse_leaf(name, leaf); });
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt || !findings_.tolerate()) throw;
      why = error.status();
      return false;
    }
    return true;
  }
  void parse_leaf(const std::string& name, LeafFile& leaf) {
    const Value& root = builder_.archive(leaf.file).root;
    const Value& held = root.is_dict() ? Field(root).at(kParam).value() : root;
    leaf.is_tensor = held.is_tensor();
    if (leaf.is_tensor) {
      leaf.tensor = held.tensor_index();
    } else {
      leaf.value = held;
    }
    if (leaf.leaf != kFp32Leaf || !root.is_dict() || merge_.explain(name, root)) return;
    ValueDict more;
    for (const auto& entry : root.as_dict()) {
      const std::string_view key =
          entry.first.is_string() ? std::string_view(entry.first.as_string()) : std::string_view();
      const bool plain = key == kCatDim && entry.second == Value::integer(0);
      if (key != kParam && !plain) more.push_back(entry);
    }
    if (!more.empty()) notes_.push_back({name, leaf.file, Value::dict(std::move(more))});
  }

  const LeafFile* find(const std::string& name, std::string_view leaf) const {
    const auto found = leaves_.find(name);
    if (found == leaves_.end()) return nullptr;
    for (const LeafFile& file : found->second)
      if (file.leaf == leaf) return &file;
    return nullptr;
  }

  /// The parameters of a group have the same leaves: a file that one alone lacks is lost.
  void check_leaves() {
    for (const auto& group : model_.param_shapes) {
      std::map<std::string, const LeafFile*> expected;
      for (const NamedShape& item : group)
        if (const auto own = leaves_.find(item.name); own != leaves_.end())
          for (const LeafFile& leaf : own->second) expected.emplace(leaf.leaf, &leaf);
      for (const NamedShape& item : group)
        for (const auto& [leaf, like] : expected) check_leaf(item.name, leaf, *like);
    }
  }
  void check_leaf(const std::string& name, const std::string& leaf, const LeafFile& like) {
    const auto& stateless = model_.naming.no_state;
    const LeafFile* mine = find(name, leaf);
    if (mine && mine->is_tensor != like.is_tensor)
      return findings_.error(Finding::kRanksDisagree,
                             fmt::format("it holds {} tensor, {} {}", mine->is_tensor ? "a" : "no",
                                         path(like.file), like.is_tensor ? "one" : "none"),
                             path(mine->file), name);
    const bool exempt = leaf == kFp32Leaf ||  // asked for where the weights are made
                        std::ranges::find(stateless, name) != stateless.end();
    if (mine || exempt || lost_.contains({name, leaf})) return;
    lose(Finding::kMissingFile, name, leaf,
         fmt::format("the file of its \"{}\" is missing, which {} has", printable(leaf),
                     path(like.file)));
  }

  /// A flat tensor has the shape that the model file says.
  Shape shape_of(const std::string& name, const LeafFile& leaf) const {
    const ArchiveTensor& stored = tensor_of(leaf);
    const auto known = shapes_.find(name);
    if (known == shapes_.end() || stored.shape.rank() != 1) return stored.shape;
    if (known->second.numel() != stored.shape.numel())
      fail(Code::kCorrupt, fmt::format("\"{}\" has {} elements for a parameter of shape {}",
                                       leaf.leaf, stored.shape.numel(), known->second.to_string()));
    return known->second;
  }
  ArchivePiece piece_of(const Shape& shape, const LeafFile& leaf) const {
    return {Chunk::whole_of(Box::whole(shape)), leaf.file, leaf.tensor, 0};
  }

  void add_model() {
    std::unordered_set<std::string> done;
    const auto add = [&](const std::string& name, const NamedTensor* module) {
      if (done.insert(name).second) in_tensor(name, [&] { add_weight(name, module); });
    };
    for (const NamedTensor& item : model_.module) add(item.name, &item);
    for (const auto& group : model_.param_shapes)
      for (const NamedShape& item : group) add(item.name, nullptr);
    for (const NamedShape& item : model_.frozen_shapes) add(item.name, nullptr);
    for (const auto& [name, stored] : model_.shared) add(name, nullptr);
  }

  void add_weight(const std::string& name, const NamedTensor* module) {
    StateAssembler state(builder_, model_);
    const auto tied = shared_.find(name);
    const bool own = shapes_.contains(name) || frozen_.contains(name) || tied == shared_.end();
    const std::string& holder = own ? name : tied->second;
    if (shapes_.contains(holder)) return add_trained(name, holder, module);
    if (const auto frozen = frozen_.find(holder); frozen != frozen_.end()) {
      if (!folder_.foreign.empty())
        fail(Code::kUnsupported, "a frozen parameter, cut by tensor parallelism");
      return state.add_frozen(name, holder, frozen->second, ranks_,
                              static_cast<std::int64_t>(folder_.models.size()));
    }
    if (!module)
      fail(Code::kCorrupt,
           fmt::format("it is tied to \"{}\", which is not in the checkpoint", printable(holder)));
    state.add_module_tensor(*module);
  }

  void add_trained(const std::string& name, const std::string& holder, const NamedTensor* module) {
    StateAssembler state(builder_, model_);
    if (module && model_.naming.module_weights) return state.add_module_tensor(*module);
    const LeafFile* master = find(holder, kFp32Leaf);
    if (!master && lost_.contains({holder, std::string(kFp32Leaf)})) {
      if (name != holder)
        findings_.error(Finding::kLost,
                        fmt::format("lost: it is tied to \"{}\"", printable(holder)), "",
                        dotted(state.model_path(name)));
      return;
    }
    if (!master || !master->is_tensor)
      return lose(Finding::kMissingFile, holder, std::string(kFp32Leaf),
                  "the file of its fp32 weights is missing");
    in_file(path(master->file), [&] {
      const Shape shape = shape_of(holder, *master);
      const ArchivePiece piece = piece_of(shape, *master);
      state.add_model(name, {tensor_of(*master).dtype, shape}, {&piece, 1});
      const bool fits =
          module && builder_.archive(model_.file).tensors.at(module->tensor).shape == shape;
      if (fits && name == holder)
        state.keep_module_copy(model_.file, *module, tensor_of(*master).dtype);
    });
  }

  void add_optimizer() {
    for (const auto& group : model_.param_shapes)
      for (const NamedShape& item : group) add_leaves(item.name);
    for (const auto& item : model_.naming.empty) add_leaves(std::get<0>(item));
    for (const NamedTensor& item : model_.module) add_leaves(item.name);
    for (const auto& [name, leaves] : leaves_) add_leaves(name);
    StateAssembler state(builder_, model_);
    for (const NamedTensor& item : model_.naming.fp32) state.add_derived_fp32(model_.file, item);
    add_groups();
    ValueDict globals = global_state(optimizer_).as_dict();
    ValueList buffers;
    for (const NamedTensor& item : model_.module)
      if (model_.buffers.contains(item.name)) buffers.push_back(Value::string(item.name));
    if (!buffers.empty()) globals.emplace_back(text(kBufferNames), Value::list(std::move(buffers)));
    state.add_globals(optimizer_file_, Value::dict(std::move(globals)));
    for (const auto& [name, file, more] : notes_)
      builder_.add_value(file, path_of({kGlobalsRoot, kUniversalNotes, name}), more);
  }

  void add_leaves(const std::string& name) {
    if (!added_.insert(name).second) return;
    in_tensor(name, [&] {
      const auto leaves = leaves_.find(name);
      if (leaves != leaves_.end())
        for (const LeafFile& leaf : leaves->second)
          in_file(path(leaf.file), [&] { add_leaf(name, leaf); });
      add_shared_scalars(name);
    });
  }
  void add_leaf(const std::string& name, const LeafFile& leaf) {
    StateAssembler state(builder_, model_);
    const bool master = leaf.leaf == kFp32Leaf;
    const bool trained = shapes_.contains(name);
    const auto& stateless = model_.naming.no_state;
    if (trained && std::ranges::find(stateless, name) != stateless.end()) return;
    const std::string as = master && trained ? model_.naming.fp32_leaf : leaf.leaf;
    if (as.empty()) return;
    if (!leaf.is_tensor) return state.add_leaf_value(leaf.file, name, as, leaf.value);
    const Shape shape = shape_of(name, leaf);
    const bool counter = leaf.leaf == kStep && shape.rank() == 0;
    if (counter) return add_counter(name, as, {leaf.file, leaf.tensor});
    const ArchivePiece piece = piece_of(shape, leaf);
    state.add_leaf(name, as, {tensor_of(leaf).dtype, shape}, {&piece, 1});
  }

  /// Stage 3 keeps counters once, in the optimizer's own state of a sub-group.
  void add_shared_scalars(const std::string& name) {
    const auto id = sub_group_of(name);
    const auto state = id ? states_.find(*id) : states_.end();
    if (state == states_.end()) return;
    for (const auto& [key, value] : state->second) {
      const std::string leaf = Field(key, {}, std::string(kState)).text();
      StateAssembler state_of(builder_, model_);
      if (find(name, leaf)) continue;
      if (!value.is_tensor()) {
        state_of.add_leaf_value(optimizer_file_, name, leaf, value);
        continue;
      }
      const TensorRef ref{optimizer_file_, value.tensor_index()};
      if (bytes_.tensor(ref).shape.rank() == 0) add_counter(name, leaf, ref);
    }
  }
  void add_counter(const std::string& name, const std::string& leaf, TensorRef ref) {
    StateAssembler state(builder_, model_);
    const ArchiveTensor& stored = bytes_.tensor(ref);
    if (counters_are_values(model_.naming, stage_))
      if (const std::optional<Value> number = bytes_.number(ref))
        return state.add_leaf_value(ref.file, name, leaf, *number);
    const ArchivePiece piece = whole_piece_of(stored, ref.file, ref.tensor);
    state.add_leaf(name, leaf, {stored.dtype, stored.shape}, {&piece, 1});
  }
  std::optional<std::int64_t> sub_group_of(const std::string& name) const {
    const auto& stateless = model_.naming.no_state;
    if (std::ranges::find(stateless, name) != stateless.end()) return std::nullopt;
    if (const auto found = sub_groups_.find(name); found != sub_groups_.end()) return found->second;
    for (const auto& [empty, group, place] : model_.naming.empty)
      if (empty == name && static_cast<std::size_t>(group) < groups_.size())
        for (const std::int64_t id :
             Field(groups_[static_cast<std::size_t>(group)]).at(kParams).counts())
          return id;
    return std::nullopt;
  }

  void add_groups() {
    if (!model_.naming.has_groups) return;
    StateAssembler state(builder_, model_);
    const Value* recorded = model_.root.find(kDpWorldSize);
    const std::int64_t world_size = recorded && recorded->is_int()
                                        ? std::clamp<std::int64_t>(recorded->as_int(), 1, 1 << 20)
                                        : 1;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::vector<std::string> members;
      for (std::size_t b = 0; b < model_.param_shapes.size(); ++b) {
        if (stage_ != 3 && b != g) continue;
        if (stage_ == 3 && !lists(groups_[g], static_cast<std::int64_t>(b))) continue;
        const bool robin = stage_ != 3 && is_round_robin(model_.root);
        for (std::string& name : group_order(model_.param_shapes[b], robin, world_size))
          members.push_back(std::move(name));
      }
      for (const auto& [name, group, place] : model_.naming.empty)
        if (static_cast<std::size_t>(group) == g)
          members.insert(
              members.begin() + std::min(place, static_cast<std::int64_t>(members.size())), name);
      state.add_group(optimizer_file_, g, groups_[g], members, Value());
    }
  }
  static bool lists(const Value& group, std::int64_t id) {
    const auto ids = Field(group).at(kParams).counts();
    return std::ranges::find(ids, id) != ids.end();
  }

  std::string describe() {
    Manifest& manifest = builder_.manifest();
    const std::string by = note_version(manifest, model_.root);
    if (!folder_.tag.empty()) manifest.provenance[std::string(kTagProvenance)] = folder_.tag;
    manifest.provenance[std::string(kStageProvenance)] = fmt::format("{}", stage_);
    if (!model_.has_module)
      manifest.provenance[std::string(kPipelineProvenance)] = fmt::format("{}", stages_);
    return fmt::format("Universal Checkpoint of {}ZeRO stage {}{}",
                       model_.has_module ? "" : "a pipeline under ", stage_, by);
  }

  const Directory& directory_;
  Folder folder_;
  ArchiveManifestBuilder builder_;
  ArchiveBytes bytes_;
  Findings findings_;
  ModelFile model_;
  MergeNotes merge_{nullptr};
  std::vector<ModelFile> ranks_;  // stage 3 with frozen parameters: of every rank
  std::uint32_t optimizer_file_ = 0;
  Value optimizer_;
  std::int64_t stage_ = 1;   // of ZeRO
  std::int64_t stages_ = 1;  // of a pipeline
  std::vector<Value> groups_;
  std::map<std::int64_t, ValueDict> states_;
  std::unordered_map<std::string, Shape> shapes_;  // of trained parameters
  std::unordered_map<std::string, std::int64_t> sub_groups_;
  std::unordered_map<std::string, std::string> shared_;
  std::unordered_map<std::string, Shape> frozen_;
  std::map<std::string, std::vector<LeafFile>> leaves_;
  std::vector<std::tuple<std::string, std::uint32_t, Value>> notes_;
  std::unordered_set<std::string> added_;
  std::set<std::pair<std::string, std::string>> lost_;  // parameter and leaf, of lost files
};

}  // namespace

Manifest read_universal(const Place& place, const ReadOptions& options) {
  return UniversalReader(place, options).read();
}

}  // namespace tessera::deepspeed

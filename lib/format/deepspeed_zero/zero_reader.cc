#include "lib/format/deepspeed_zero/zero_reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lib/format/deepspeed_zero/ds_files.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/deepspeed_zero/zero_partition.h"
#include "lib/format/deepspeed_zero/zero_places.h"
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera::deepspeed {
namespace {

std::string list_ranks(const std::vector<std::int64_t>& ranks) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
    list += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  if (ranks.size() > 8) list += fmt::format(" and {} more", ranks.size() - 8);
  return list;
}

class ZeroReader {
 public:
  ZeroReader(const Place& place, const ReadOptions& options)
      : folder_(find_folder(place, false)),
        builder_(*place.directory, options),
        bytes_(*place.directory, builder_),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest read();

 private:
  void open_models();
  void open_optims();
  void check_ranks(std::int64_t world_size);
  void open_fragments();
  void read_without_zero();
  void place_parameters();
  void add_empty_parameters();
  void insert_empty(std::size_t group, std::vector<std::string>& members) const;
  std::vector<ArchivePiece> pieces_of(const TrainedParameter& parameter,
                                      const std::function<std::uint32_t(const Run&)>& tensor) const;
  void add_model();
  void add_weight(const std::string& name, const NamedTensor* module);
  void add_trained(const std::string& name, const TrainedParameter& parameter,
                   const NamedTensor* module);
  void add_optimizer();
  void add_leaves(const TrainedParameter& parameter);
  void add_leaf(const TrainedParameter& parameter, const std::string& leaf, const Value& first);
  void add_flat_leaf(const TrainedParameter& parameter, const std::string& leaf);
  void add_scalar_leaf(const TrainedParameter& parameter, const std::string& leaf);
  void check_copies(std::size_t flat, const std::string& leaf);
  Value scalar_of(std::size_t flat, const std::string& leaf);
  void add_groups();
  void add_derived();
  std::string describe();

  const std::string& path(std::uint32_t file) { return builder_.manifest().files[file].path; }
  const ArchiveTensor& archive_tensor(std::uint32_t file, std::uint32_t index) const {
    return builder_.archive(file).tensors.at(index);
  }
  const OptimFile& first_rank() const {
    for (const auto& rank : ranks_)
      if (rank) return *rank;
    TESSERA_CHECK(false);
  }
  bool is_empty(const std::string& name) const {
    return std::ranges::any_of(model_.naming.empty,
                               [&](const auto& item) { return std::get<0>(item) == name; });
  }
  const Value& leaf_on(const OptimFile& rank, std::size_t flat, const std::string& leaf);

  Folder folder_;
  ArchiveManifestBuilder builder_;
  ArchiveBytes bytes_;
  Findings findings_;
  ModelFile model_;                   // of the lowest rank
  std::vector<ModelFile> fragments_;  // stage 3: of every rank, when parameters are frozen
  std::vector<std::optional<OptimFile>> ranks_;
  std::int64_t stage_ = 0;
  std::vector<TrainedParameter> parameters_;
  std::unordered_map<std::string, std::size_t> trained_;  // name -> index in parameters_
  std::unordered_map<std::string, std::string> shared_;
  std::unordered_map<std::string, Shape> frozen_;
  std::set<std::pair<std::size_t, std::string>> checked_;
  std::map<std::pair<std::size_t, std::string>, Value> scalars_;  // stage 3, by buffer and leaf
};

Manifest ZeroReader::read() {
  if (folder_.empty())
    fail(Code::kUnsupported, "no *_model_states.pt or *_optim_states.pt in this folder");
  refuse_foreign(folder_);
  open_models();
  open_optims();
  if (ranks_.empty()) {
    read_without_zero();
  } else {
    open_fragments();
    place_parameters();
    add_model();
    add_optimizer();
  }
  StateAssembler(builder_, model_).add_other_state();
  std::string dialect = describe();
  return builder_.finish(std::string(kZeroFormat), std::move(dialect));
}

void ZeroReader::open_models() {
  if (folder_.models.empty())
    fail(Code::kCorrupt,
         fmt::format("{} optimizer files, but no model file ({} or {}): names and shapes of the "
                     "parameters stand there",
                     folder_.optims.size(), model_file_name(), model_file_name(0)));
  const FileName& name = folder_.models.front();
  const std::uint32_t file = builder_.open(folder_.prefix + name.name);
  in_file(path(file), [&] { model_ = parse_model_file(builder_.archive(file)); });
  model_.file = file;
  model_.dp_rank = name.dp_rank;
  for (const auto& [missing, stored] : model_.shared) shared_.emplace(missing, stored);
  for (const NamedShape& item : model_.frozen_shapes) frozen_.emplace(item.name, item.shape);
}

void ZeroReader::open_optims() {
  std::int64_t world_size = 0;
  std::vector<OptimFile> found;
  for (const auto& [rank, name] : folder_.optims) {
    const std::uint32_t file = builder_.open(folder_.prefix + name.name);
    in_file(path(file), [&] {
      OptimFile optim = parse_optim_file(builder_.archive(file));
      optim.file = file;
      optim.rank = rank;
      if (!found.empty() && optim.stage != found.front().stage)
        fail(Code::kCorrupt, "its ZeRO stage differs from that of rank 0's file");
      if (!found.empty() && optim.world_size() != found.front().world_size())
        fail(Code::kCorrupt,
             fmt::format("it is of a run over {} ranks, {} is of one over {}", optim.world_size(),
                         path(found.front().file), found.front().world_size()),
             "files of two saves are mixed here");
      found.push_back(std::move(optim));
    });
  }
  if (found.empty()) {
    if (!model_.has_shapes) return;
    fail(Code::kCorrupt,
         fmt::format("the optimizer files of all ranks are missing ({}, ...): ZeRO keeps the fp32 "
                     "weights there",
                     optim_file_name(0, false)));
  }
  stage_ = found.front().stage.value_or(1);
  world_size = found.front().world_size();
  if (world_size == 0) world_size = static_cast<std::int64_t>(found.size());
  if (world_size > kMostRanks) fail(Code::kCorrupt, "partition_count is too large");
  check_ranks(world_size);
  ranks_.resize(static_cast<std::size_t>(world_size));
  for (OptimFile& optim : found)
    if (optim.rank < world_size) ranks_[static_cast<std::size_t>(optim.rank)] = std::move(optim);
}

/// One file per rank, no more and no less; the model file agrees.
void ZeroReader::check_ranks(std::int64_t world_size) {
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < world_size; ++rank)
    if (!folder_.optims.contains(rank)) missing.push_back(rank);
  const FileName& last = folder_.optims.rbegin()->second;
  if (!missing.empty())
    findings_.error("CK010",
                    fmt::format("{} optimizer files for {} ranks; missing: rank {}",
                                folder_.optims.size(), world_size, list_ranks(missing)),
                    folder_.prefix + optim_file_name(missing.front(), last.bf16));
  if (last.dp_rank >= world_size)
    findings_.error("CK018",
                    fmt::format("a file of rank {}, but the checkpoint is of {} ranks: left from "
                                "another save",
                                last.dp_rank, world_size),
                    folder_.prefix + last.name);
  const Value* recorded = model_.root.find(kDpWorldSize);
  if (recorded && recorded->is_int() && recorded->as_int() != world_size)
    findings_.error("CK017",
                    fmt::format("the model file is of {} data-parallel ranks, the optimizer files "
                                "of {}",
                                recorded->as_int(), world_size),
                    path(model_.file));
  if (!model_.has_shapes) in_file(path(model_.file), [&] { require(model_.root, kParamShapes); });
  if ((stage_ == 3) != (model_.dp_rank >= 0))
    fail(Code::kCorrupt, fmt::format("the optimizer files are of stage {}, but the model file is "
                                     "{}",
                                     stage_, path(model_.file)));
}

/// Frozen parameters of stage 3 are cut over the model files of all ranks.
void ZeroReader::open_fragments() {
  if (stage_ != 3) return;
  std::set<std::int64_t> there;
  for (const FileName& name : folder_.models) there.insert(name.dp_rank);
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < static_cast<std::int64_t>(ranks_.size()); ++rank)
    if (!there.contains(rank)) missing.push_back(rank);
  if (!missing.empty())
    findings_.error("CK010",
                    fmt::format("{} model files for {} ranks; missing: rank {}",
                                folder_.models.size(), ranks_.size(), list_ranks(missing)),
                    folder_.prefix + model_file_name(missing.front()));
  if (frozen_.empty()) return;
  for (const FileName& name : folder_.models) {
    if (name.dp_rank < 0 || name.dp_rank >= static_cast<std::int64_t>(ranks_.size())) continue;
    if (name.dp_rank == model_.dp_rank) {
      fragments_.push_back(model_);
      continue;
    }
    const std::uint32_t file = builder_.open(folder_.prefix + name.name);
    in_file(path(file), [&] { fragments_.push_back(parse_model_file(builder_.archive(file))); });
    fragments_.back().file = file;
    fragments_.back().dp_rank = name.dp_rank;
  }
}

/// Stage 0: plain state dicts.
void ZeroReader::read_without_zero() {
  StateAssembler state(builder_, model_);
  for (const NamedTensor& item : model_.module) {
    const ArchiveTensor& stored = archive_tensor(model_.file, item.tensor);
    const ArchivePiece piece = whole_piece_of(stored, model_.file, item.tensor);
    Path at = root_path(model_.naming.model_root);
    at.push_back(key_item(item.name));
    const std::uint32_t number = builder_.add_tensor(at, {stored.dtype, stored.shape}, {&piece, 1});
    if (model_.buffers.contains(item.name)) builder_.tensor(number).kind = TensorKind::kBuffer;
  }
  const Value* optimizer = model_.root.find(kOptimizer);
  if (optimizer && !optimizer->is_none())
    builder_.add_state(model_.file, *optimizer, root_path(model_.naming.optim_root));
}

void ZeroReader::place_parameters() {
  std::vector<std::optional<FlatSizes>> sizes(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]) continue;
    sizes[r].emplace();
    for (const std::uint32_t tensor : ranks_[r]->fp32) {
      const ArchiveTensor& flat = archive_tensor(ranks_[r]->file, tensor);
      if (flat.shape.rank() != 1)
        in_file(path(ranks_[r]->file), [&] {
          fail(Code::kCorrupt, fmt::format("a flat buffer has shape {}", flat.shape.to_string()));
        });
      sizes[r]->push_back(flat.shape.numel());
    }
    if (stage_ == 3) continue;
    for (const std::int64_t count : ranks_[r]->partition_count)
      if (count != static_cast<std::int64_t>(ranks_.size()))
        fail(Code::kUnsupported, fmt::format("groups that are cut over {} of {} ranks (experts)",
                                             count, ranks_.size()));
  }
  parameters_ = stage_ == 3 ? places_of_stage_3(model_.param_shapes, sizes)
                            : places_of_stage_2(model_.param_shapes, first_rank().alignment, sizes);
  add_empty_parameters();
  if (!parameters_.empty() && first_rank().fp32.empty())
    fail(Code::kCorrupt, "there are parameters, but no flat buffers");
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!trained_.emplace(parameters_[i].name, i).second)
      in_file(path(model_.file), [&] {
        fail(Code::kCorrupt,
             fmt::format("param_shapes lists \"{}\" twice", printable(parameters_[i].name)));
      });
}

/// Trained parameters without elements, which stand among the frozen ones.
void ZeroReader::add_empty_parameters() {
  for (const auto& [name, group, place] : model_.naming.empty) {
    const auto shape = frozen_.find(name);
    if (shape == frozen_.end() || shape->second.numel() != 0) continue;
    std::size_t flat = static_cast<std::size_t>(group);
    const std::vector<Value>& groups = first_rank().groups;
    if (stage_ == 3 && flat < groups.size())
      for (const std::int64_t id : counts_of(require(groups[flat], kParams), kParams)) {
        flat = static_cast<std::size_t>(id);
        break;
      }
    parameters_.push_back({name, shape->second, flat, {}});
  }
}

std::vector<ArchivePiece> ZeroReader::pieces_of(
    const TrainedParameter& parameter,
    const std::function<std::uint32_t(const Run&)>& tensor) const {
  std::vector<ArchivePiece> pieces;
  const Box box = Box::whole(parameter.shape);
  for (const Run& run : parameter.runs) {
    const OptimFile& rank = *ranks_[static_cast<std::size_t>(run.rank)];
    pieces.push_back({Chunk{box, run.begin, run.end}, rank.file, tensor(run), run.offset});
  }
  if (pieces.empty() && parameter.shape.numel() == 0) {
    const OptimFile& rank = first_rank();
    const std::size_t flat = std::min(parameter.flat, rank.fp32.size() - 1);
    pieces.push_back({Chunk::whole_of(box), rank.file, tensor({rank.rank, flat, 0, 0, 0}), 0});
  }
  return pieces;
}

void ZeroReader::add_model() {
  std::unordered_set<std::string> done;
  for (const NamedTensor& item : model_.module) {
    add_weight(item.name, &item);
    done.insert(item.name);
  }
  const auto add_left = [&](const std::string& name) {
    if (done.insert(name).second) add_weight(name, nullptr);
  };
  for (const TrainedParameter& parameter : parameters_) add_left(parameter.name);
  for (const NamedShape& item : model_.frozen_shapes) add_left(item.name);
  for (const auto& [name, stored] : model_.shared) add_left(name);
}

/// `module`: its entry there, null when the module leaves it out.
void ZeroReader::add_weight(const std::string& name, const NamedTensor* module) {
  std::string holder = name;
  const auto tied = shared_.find(name);
  if (tied != shared_.end() && !trained_.contains(name) && !frozen_.contains(name))
    holder = tied->second;
  if (const auto found = trained_.find(holder); found != trained_.end())
    return add_trained(name, parameters_[found->second], module);
  // Stage 1 keeps frozen parameters in the module alone.
  const auto frozen = frozen_.find(holder);
  if (frozen != frozen_.end())
    return StateAssembler(builder_, model_)
        .add_frozen(name, holder, frozen->second, fragments_,
                    static_cast<std::int64_t>(ranks_.size()));
  if (module) return StateAssembler(builder_, model_).add_module_tensor(*module);
  in_file(path(model_.file), [&] {
    fail(Code::kCorrupt, fmt::format("\"{}\" is tied to \"{}\", which is not in the checkpoint",
                                     printable(name), printable(holder)));
  });
}

void ZeroReader::add_trained(const std::string& name, const TrainedParameter& parameter,
                             const NamedTensor* module) {
  StateAssembler state(builder_, model_);
  const auto tensor = [&](const Run& run) {
    return ranks_[static_cast<std::size_t>(run.rank)]->fp32.at(run.flat);
  };
  const std::vector<ArchivePiece> pieces = pieces_of(parameter, tensor);
  const OptimFile& first = first_rank();
  const DType master =
      archive_tensor(first.file, first.fp32.at(std::min(parameter.flat, first.fp32.size() - 1)))
          .dtype;
  if (module && model_.naming.module_weights) return state.add_module_tensor(*module);
  state.add_model(name, {master, parameter.shape}, pieces);
  if (module && name == parameter.name) state.keep_module_copy(*module, master);
}

const Value& ZeroReader::leaf_on(const OptimFile& rank, std::size_t flat, const std::string& leaf) {
  const auto state = rank.states.find(static_cast<std::int64_t>(flat));
  if (state != rank.states.end())
    for (const auto& [key, value] : state->second)
      if (key.is_string() && key.as_string() == leaf) return value;
  Status status{Code::kCorrupt,
                fmt::format("the state of group {} has no \"{}\", which other ranks have", flat,
                            printable(leaf)),
                {},
                {}};
  status.context.file = path(rank.file);
  throw Error(std::move(status));
}

void ZeroReader::add_optimizer() {
  for (const TrainedParameter& parameter : parameters_)
    in_tensor(parameter.name, [&] { add_leaves(parameter); });
  add_derived();
  add_groups();
  StateAssembler state(builder_, model_);
  const OptimFile& first = first_rank();
  ValueDict globals = global_state(first.optimizer).as_dict();
  ValueList buffers;
  for (const NamedTensor& item : model_.module)
    if (model_.buffers.contains(item.name)) buffers.push_back(Value::string(item.name));
  if (!buffers.empty()) globals.emplace_back(text(kBufferNames), Value::list(std::move(buffers)));
  state.add_globals(first.file, Value::dict(std::move(globals)));
}

void ZeroReader::add_leaves(const TrainedParameter& parameter) {
  const auto& stateless = model_.naming.no_state;
  if (std::ranges::find(stateless, parameter.name) != stateless.end()) return;
  const auto master = [&](const Run& run) {
    return ranks_[static_cast<std::size_t>(run.rank)]->fp32.at(run.flat);
  };
  const OptimFile& first = first_rank();
  if (!model_.naming.fp32_leaf.empty()) {
    const std::size_t flat = std::min(parameter.flat, first.fp32.size() - 1);
    const DType dtype = archive_tensor(first.file, first.fp32.at(flat)).dtype;
    StateAssembler(builder_, model_)
        .add_leaf(parameter.name, model_.naming.fp32_leaf, {dtype, parameter.shape},
                  pieces_of(parameter, master));
  }
  const auto state = first.states.find(static_cast<std::int64_t>(parameter.flat));
  if (state == first.states.end()) return;
  for (const auto& [key, value] : state->second) add_leaf(parameter, text_of(key, kState), value);
}

void ZeroReader::add_leaf(const TrainedParameter& parameter, const std::string& leaf,
                          const Value& first) {
  const OptimFile& rank = first_rank();
  if (!first.is_tensor())
    return StateAssembler(builder_, model_).add_leaf_value(rank.file, parameter.name, leaf, first);
  const ArchiveTensor& stored = archive_tensor(rank.file, first.tensor_index());
  if (stored.shape.rank() == 0) return add_scalar_leaf(parameter, leaf);
  if (stored.shape.rank() == 1) return add_flat_leaf(parameter, leaf);
  fail(Code::kUnsupported, fmt::format("state \"{}\" has shape {}, which is no partition",
                                       printable(leaf), stored.shape.to_string()));
}

void ZeroReader::add_flat_leaf(const TrainedParameter& parameter, const std::string& leaf) {
  std::optional<DType> dtype;
  const auto tensor = [&](const Run& run) {
    const OptimFile& rank = *ranks_[static_cast<std::size_t>(run.rank)];
    const Value& value = leaf_on(rank, run.flat, leaf);
    if (!value.is_tensor()) fail(Code::kCorrupt, fmt::format("\"{}\" is no tensor", leaf));
    const ArchiveTensor& stored = archive_tensor(rank.file, value.tensor_index());
    if (!dtype) dtype = stored.dtype;
    const std::int64_t master = archive_tensor(rank.file, rank.fp32.at(run.flat)).shape.numel();
    const std::int64_t numel = stored.shape.numel();
    // The oldest files do not say how long the padding is.
    const std::int64_t padding =
        run.flat < rank.paddings.size() ? rank.paddings[run.flat] : std::max(numel - master, {});
    if (stored.shape.rank() != 1 || numel < master || numel - master > padding)
      in_file(path(rank.file), [&] {
        fail(Code::kCorrupt,
             fmt::format("\"{}\" has shape {} for a partition of {} elements and "
                         "{} of padding",
                         printable(leaf), stored.shape.to_string(), master, padding));
      });
    return value.tensor_index();
  };
  const std::vector<ArchivePiece> pieces = pieces_of(parameter, tensor);
  if (dtype)
    StateAssembler(builder_, model_)
        .add_leaf(parameter.name, leaf, {*dtype, parameter.shape}, pieces);
}

/// A step counter: stages 1 and 2 keep it as a tensor, stage 3 as a value.
void ZeroReader::add_scalar_leaf(const TrainedParameter& parameter, const std::string& leaf) {
  StateAssembler state(builder_, model_);
  const OptimFile& first = first_rank();
  if (counters_are_values(model_.naming, stage_)) {
    const auto key = std::pair{parameter.flat, leaf};
    auto known = scalars_.find(key);
    if (known == scalars_.end())
      known = scalars_.emplace(key, scalar_of(parameter.flat, leaf)).first;
    return state.add_leaf_value(first.file, parameter.name, leaf, known->second);
  }
  check_copies(parameter.flat, leaf);
  const std::uint32_t tensor = leaf_on(first, parameter.flat, leaf).tensor_index();
  const ArchivePiece piece{Chunk::whole_of(Box::whole({})), first.file, tensor, 0};
  state.add_leaf(parameter.name, leaf, {archive_tensor(first.file, tensor).dtype, {}}, {&piece, 1});
}

/// Every rank stored its own copy of a group's counter; the lowest rank's stands for all.
void ZeroReader::check_copies(std::size_t flat, const std::string& leaf) {
  if (!checked_.emplace(flat, leaf).second) return;
  const OptimFile& first = first_rank();
  const TensorRef mine{first.file, leaf_on(first, flat, leaf).tensor_index()};
  for (const auto& rank : ranks_) {
    if (!rank || rank->file == first.file) continue;
    const Value& value = leaf_on(*rank, flat, leaf);
    const bool same = value.is_tensor() && bytes_.same(mine, {rank->file, value.tensor_index()}) !=
                                               ArchiveBytes::Answer::kDifferent;
    if (!same)
      findings_.error("CK046",
                      fmt::format("\"{}\" of group {} differs from that in {}", printable(leaf),
                                  flat, path(first.file)),
                      path(rank->file));
  }
}

Value ZeroReader::scalar_of(std::size_t flat, const std::string& leaf) {
  Value out;
  const OptimFile* from = nullptr;
  for (const auto& rank : ranks_) {
    if (!rank) continue;
    const Value& value = leaf_on(*rank, flat, leaf);
    if (!value.is_tensor()) fail(Code::kCorrupt, fmt::format("\"{}\" is no tensor", leaf));
    const std::optional<Value> number = in_file(path(rank->file), [&] {
      return bytes_.number({rank->file, value.tensor_index()});
    });
    if (!number)
      fail(Code::kUnsupported, fmt::format("\"{}\" is of a type that is no number", leaf));
    if (from && !(*number == out))
      findings_.error("CK046",
                      fmt::format("\"{}\" of sub-group {} differs from that in {}", printable(leaf),
                                  flat, path(from->file)),
                      path(rank->file));
    if (!from) out = *number;
    if (!from) from = &*rank;
  }
  return out;
}

void ZeroReader::insert_empty(std::size_t group, std::vector<std::string>& members) const {
  for (const auto& [name, in_group, place] : model_.naming.empty)
    if (static_cast<std::size_t>(in_group) == group && trained_.contains(name))
      members.insert(members.begin() + std::min(place, static_cast<std::int64_t>(members.size())),
                     name);
}

void ZeroReader::add_groups() {
  if (!model_.naming.has_groups) return;
  StateAssembler state(builder_, model_);
  const OptimFile& first = first_rank();
  const bool round_robin = stage_ != 3 && is_round_robin(model_.root);
  const std::size_t count = stage_ == 3 ? first.groups.size() : model_.param_shapes.size();
  for (std::size_t g = 0; g < count; ++g) {
    std::vector<std::string> members;
    if (stage_ != 3) {
      members = group_order(model_.param_shapes[g], round_robin,
                            static_cast<std::int64_t>(ranks_.size()));
    } else {
      std::set<std::int64_t> ids;
      for (const std::int64_t id : counts_of(require(first.groups[g], kParams), kParams))
        ids.insert(id);
      for (const TrainedParameter& parameter : parameters_)
        if (ids.contains(static_cast<std::int64_t>(parameter.flat)) && !is_empty(parameter.name))
          members.push_back(parameter.name);
    }
    insert_empty(g, members);
    state.add_group(first.file, g, g < first.groups.size() ? first.groups[g] : Value(), members,
                    stage_ == 3 ? Value() : first.base_step);
  }
}

void ZeroReader::add_derived() {
  StateAssembler state(builder_, model_);
  for (const NamedTensor& item : model_.naming.fp32) state.add_derived_fp32(model_.file, item);
  if (stage_ == 3 || !model_.naming.derive_fp32) return;
  for (const NamedTensor& item : model_.module)
    if (!trained_.contains(item.name)) state.add_derived_fp32(model_.file, item);
}

std::string ZeroReader::describe() {
  Manifest& manifest = builder_.manifest();
  const std::string by = note_version(manifest, model_.root);
  if (!folder_.tag.empty()) manifest.provenance[std::string(kTagProvenance)] = folder_.tag;
  if (ranks_.empty()) {
    const Value* recorded = model_.root.find(kDpWorldSize);
    if (recorded && recorded->is_int() && recorded->as_int() > 0) {
      manifest.world_size = recorded->as_int();
      manifest.world_size_source = "dp_world_size of the model file";
    }
    return "DeepSpeed without ZeRO" + by;
  }
  manifest.provenance[std::string(kStageProvenance)] = fmt::format("{}", stage_);
  manifest.provenance[std::string(kBf16Provenance)] =
      folder_.optims.begin()->second.bf16 ? "true" : "false";
  manifest.world_size = static_cast<std::int64_t>(ranks_.size());
  manifest.world_size_source =
      fmt::format("partition_count of {} optimizer files", folder_.optims.size());
  return fmt::format("{}, {} ranks{}",
                     first_rank().stage ? fmt::format("ZeRO stage {}", stage_) : "bf16 optimizer",
                     ranks_.size(), by);
}

}  // namespace

Manifest read_zero(const Place& place, const ReadOptions& options) {
  return ZeroReader(place, options).read();
}

}  // namespace tessera::deepspeed

// The source of a conversion, and the state that is to be written.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/training_folder.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/roles.h>
#include <tessera/state/state_values.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "lib/base/append.h"
#include "lib/encoding/torch_modules.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/ops/convert/conversion.h"
#include "lib/ops/convert/flat_guard.h"
#include "lib/ops/convert/lost_values.h"
#include "lib/ops/convert/request.h"
#include "lib/ops/convert/salvage.h"
#include "lib/ops/edit/alias_entries.h"
#include "lib/ops/edit/extra_state.h"
#include "lib/ops/edit/megatron_places.h"
#include "lib/ops/edit/module_names.h"
#include "lib/ops/edit/quant_guard.h"
#include "lib/ops/edit/rank_state.h"
#include "lib/ops/open/beside.h"
#include "lib/ops/open/damage_elsewhere.h"
#include "lib/ops/open/dequantize.h"
#include "lib/ops/open/flat_options.h"
#include "lib/ops/open/index_layout.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/unsure_names.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

constexpr std::string_view kLost = "lost: it could not be read (--salvage)";

/// A module that was pickled whole is its class and options too, for which a folder of Hugging
/// Face's has no place.
void refuse_whole_module(const Balance& balance, const std::string& root) {
  for (const LeftOutGroup& group : balance.left_out()) {
    if (group.reason != kLeftByModules) continue;
    for (const std::string& module : group.values)
      if (root.empty() || module == root || module.starts_with(root + "."))
        fail(
            Code::kUnsupported,
            fmt::format("\"{}\" is a whole module and not a state_dict(): --to hf has no place for "
                        "its class and options",
                        printable(module)),
            "--to safetensors writes its tensors, and lists what is left out");
  }
}

/// Training code loads from it what PyTorch flattened: Python's dicts stay as they are, and the
/// optimizer has no form of the format's own.
bool keeps_state_dicts(const FormatDriver& driver) {
  const Capabilities like = driver.capabilities();
  return like.writes && like.keeps_opaque && !like.names_optimizers &&
         like.megatron == MegatronForm::kNone && as_training_folder(driver) == nullptr;
}

/// The run's own arguments (Megatron's `args`), whatever was selected of the checkpoint: sizes of heads
/// and the like hold for a part of the model, too.
std::optional<StateEntry> find_arguments(FileSystem& fs, const std::string& path,
                                         const OpenedCheckpoint& source, OpenOptions open) {
  constexpr std::string_view kArguments = "args";
  const StateEntry* stated = source.manifest.state.find(kArguments);
  if (stated != nullptr)
    return stated->value.holds_tensors() ? std::nullopt : std::optional(*stated);
  if (source.driver->capabilities().megatron == MegatronForm::kNone || open.selection.empty())
    return std::nullopt;
  open.selection = {};
  open.selection.include = {std::string(kArguments)};
  try {
    const OpenedCheckpoint whole = open_checkpoint(fs, path, open);
    const StateEntry* found = whole.manifest.state.find(kArguments);
    if (found != nullptr && !found->value.holds_tensors()) return *found;
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
  }
  return std::nullopt;
}

/// The step of all parameters; nullopt: no parameter has one of its own. Throws kUnsupported where they
/// differ.
std::optional<double> common_step(const Manifest& manifest, const Directory& directory,
                                  const TransferOptions& transfer) {
  const Roles roles = find_roles(manifest.state);
  const TensorReader reader(manifest, directory, transfer);
  std::optional<double> step;
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    const EntryRole& role = roles.entries[i];
    if (role.role != Role::kOptimState || role.leaf != "step" || !entry.value.is_tensor()) continue;
    const std::uint32_t index = entry.value.tensor_index();
    const TensorSpec& spec = manifest.tensors[index].spec;
    if (spec.shape.numel() != 1 || !is_castable(spec.dtype)) continue;
    Bytes bytes(static_cast<std::size_t>(element_bytes(spec.dtype)));
    reader.read(index, 0, 1, bytes);
    double number = 0;
    to_double(spec.dtype, bytes, {&number, 1});
    if (step.value_or(number) != number)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is {}, and another parameter's step {}: torch_dist has one for all",
                       printable(entry.name), number, *step),
           "leave the optimizer out with --only model");
    step = number;
  }
  return step;
}

/// Arguments among the entries of a state that has none, for as long as something is looked up in them.
class LentArguments {
 public:
  LentArguments(StateDict& state, const std::optional<StateEntry>& arguments) : state_(state) {
    lent_ = arguments && state.find(arguments->name) == nullptr;
    if (lent_) state.entries.push_back(*arguments);
  }
  ~LentArguments() { take_back(); }
  LentArguments(const LentArguments&) = delete;
  LentArguments& operator=(const LentArguments&) = delete;

  void take_back() {
    if (lent_)
      std::erase_if(state_.entries, [](const StateEntry& entry) { return entry.name == "args"; });
    lent_ = false;
  }

 private:
  StateDict& state_;
  bool lent_ = false;
};

}  // namespace

void Conversion::open_source() {
  OpenOptions open;
  open.from = options_.from;
  const bool edits = options_.prefer_master || options_.optim_keys != OptimKeys::kKeep;
  open.selection = options_.selection;
  if (edits) {  // the rest of the selection follows
    open.selection = {};
    open.selection.root = options_.selection.root;
  }
  open.selection.state_follows = open.selection.parts_follow = true;
  const bool model_alone = options_.to == "hf" && !edits && !options_.selection.only;
  if (model_alone) open.needed_part = Part::kModel;
  open.read = read_;
  open.check_seal = !options_.salvage;  // salvage() looks at what differs
  source_ = open_checkpoint(fs_, options_.source, open);
  check_apart(fs_.canonical(source_.path), destination_);
  check_not_a_part(fs_, source_, destination_);
  report_.source = source_.display;
  report_.from = source_.driver->id();
  driver_ = &resolve_target(options_, source_.driver->id(), request_);
  require_options_taken();
  check_delta_request();
  report_.to = driver_->id();
  report_.notes = source_.notes;
  append(report_.notes, source_.manifest.notes);
  check_destination();
  check_replaceable(fs_, destination_);
  check_beside();
  report_.balance.open(source_.manifest);
  if (edits) edit_optimizers();
  transformations_ = options_.transform;
  transformations_.plan_only = options_.dry_run;
  if (transformations_.rules) transformations_.rules->format = driver_->id();
  arguments_ = find_arguments(fs_, options_.source, source_, open);
  if (arguments_) request_.own.set(kRunArguments, arguments_->value);
  take_layout_of_index();
}

/// Each option is the target's, or one of reading that the source takes.
void Conversion::require_options_taken() const {
  const OptionList lists[] = {driver_->capabilities().writes_with,
                              source_.driver->capabilities().reads_with};
  const std::string_view from = source_.driver->id(), to = driver_->id();
  const std::vector<const FormatOption*> of_reading = format_options(/*to_write=*/false);
  for (const FormatOption* option : options_in(request_)) {
    if (!options_.delta_from.empty() && option == &kBaseFlag) continue;  // may be of its base
    const bool could_be_sources = from != to && takes(of_reading, *option);
    const std::string_view at_hand[] = {from, to};
    require_taken({&option, 1}, lists, std::span(at_hand).subspan(could_be_sources ? 0 : 1));
  }
  require_keys_possible();
}

void Conversion::require_keys_possible() const {
  if (options_.optim_keys == OptimKeys::kKeep) return;
  if (request_.hf_preset)
    fail(Code::kInvalidArgument,
         "--optim-keys says how the optimizer is keyed, which --to hf leaves out", "leave it out");
  if (options_.optim_keys == OptimKeys::kId && driver_->capabilities().names_optimizers)
    fail(Code::kUnsupported,
         fmt::format("--optim-keys id: {} has a form of its own for optimizers, which is read by "
                     "the names of parameters",
                     driver_->id()),
         "leave it out, or write torch-save, which keeps ids");
  if (options_.optim_keys != OptimKeys::kFlat || keeps_state_dicts(*driver_)) return;
  std::vector<std::string_view> ids;
  for (const FormatDriver* driver : all_formats())
    if (keeps_state_dicts(*driver)) ids.push_back(driver->id());
  fail(Code::kInvalidArgument,
       fmt::format("--optim-keys flat is for {}, not for {}", fmt::join(ids, ", "), driver_->id()),
       "leave it out");
}

/// Before any work, and in a dry run too.
void Conversion::check_destination() const {
  if (existing_parent(fs_, destination_) + "/" ==
      destination_.substr(0, destination_.find_last_of('/') + 1))
    Stage::check(fs_, destination_, {.force = true, .single_file = request_.single_file});
  if (options_.force || !fs_.stat(destination_)) return;
  fail(Code::kAlreadyExists, fmt::format("{} exists", options_.destination),
       options_.resume
           ? "the run to resume may have come to its end: ckpt-inspect verify says whether "
             "this is whole; --force replaces it"
           : "choose another DST, or replace it with --force");
}

void Conversion::take_layout_of_index() {
  const std::string* as_index = request_.own.find(kAsIndexFlag);
  if (as_index == nullptr) {
    if (options_.dtype_as_index)
      fail(Code::kInvalidArgument, "--dtype as-index needs --as-index",
           "--as-index=FOLDER of the model whose types are wanted");
    return;
  }
  if (request_.single_file)
    fail(Code::kInvalidArgument, "--as-index writes several files", "name a folder as DST");
  if (request_.own.get(kMaxShardSizeFlag) != 0)
    fail(Code::kInvalidArgument, "--as-index and --max-shard-size exclude each other");
  IndexLayout layout = read_index_layout(fs_, source_, *as_index, options_.dtype_as_index);
  request_.own.set(kShardNames, std::move(layout.names));
  transformations_.dtypes = std::move(layout.types);
}

void Conversion::edit_optimizers() {
  Manifest& manifest = source_.manifest;
  if (options_.prefer_master) {
    std::vector<Note> notes = prefer_masters(manifest);
    append(report_.notes, notes);
  }
  if (!options_.salvage) locate_flattened_options(source_, read_);
  std::vector<Note> notes = rekey_optimizers(manifest, options_.optim_keys);
  append(report_.notes, notes);
  report_.balance.restate(manifest, "optimizer keys and masters");
  Selection rest = options_.selection;
  rest.root.clear();
  rest.state_follows = rest.parts_follow = true;
  apply_selection(manifest, rest);
  report_.balance.leave_out(manifest, "");
}

/// --to hf: the model alone, without the key it stands under.
void Conversion::take_model_only() {
  Manifest& manifest = source_.manifest;
  const Roles roles = find_roles(manifest.state);
  refuse_lost_values(manifest, roles, request_, transformations_.dequantize.has_value());
  if (roles.model_roots.size() > 1) {
    fail(Code::kUnsupported,
         fmt::format("there are several models: {}", fmt::join(roles.model_roots, ", ")),
         "choose one with --root");
  }
  refuse_whole_module(report_.balance, roles.model_roots.empty() ? "" : roles.model_roots[0]);
  if (options_.selection.only && *options_.selection.only != Part::kModel)
    fail(Code::kInvalidArgument, "--to hf writes the model, which --only leaves out",
         "--to safetensors writes any part");
  const auto of_model = [](const EntryRole& role) { return role.role == Role::kModel; };
  if (!manifest.state.entries.empty() && std::ranges::none_of(roles.entries, of_model))
    fail(Code::kUnsupported,
         fmt::format("\"{}\" holds no model, which is what --to hf writes{}",
                     printable(source_.display),
                     roles.optimizers.empty() ? "" : ": it is an optimizer's state alone"),
         "--to torch-dcp and --to safetensors write what there is");
  if (!options_.selection.only) {
    Selection model;
    model.only = Part::kModel;
    apply_selection(manifest, model);
  }
  if (!roles.model_roots.empty() && !roles.model_roots[0].empty()) {
    Selection root;
    root.root = roles.model_roots[0];
    apply_selection(manifest, root);
  }
  for (LeftOut& entry : manifest.left_out) entry.reason = "not of the model, which --to hf takes";
  report_.balance.leave_out(manifest, "");
}

/// Training state beside the source goes unseen unless something says which part is meant: PATH, a
/// pointer, or a selection.
void Conversion::check_beside() {
  if (!source_.others.empty())
    report_.balance.left_behind.push_back(
        {split_path(fs_.canonical(source_.path)).first, source_.others, 0});
  if (!source_.part_of.empty())
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is one of several parts of one model ({}): it holds pieces of "
                     "matrices, which would be written as whole ones",
                     printable(source_.display), printable(source_.part_of)),
         "name the folder that they lie in: it is read as the whole model");
  if (source_.manifest.provenance.contains(std::string(megatron_torch::kLayerWiseProvenance)) &&
      !request_.hf_preset && !options_.selection.only && options_.selection.include.empty())
    fail(Code::kUnsupported,
         fmt::format(
             "\"{}\" has a layer-wise optimizer, in files {}<N>.pt of data-parallel ranks, which "
             "are not read: it would be lost",
             printable(source_.display), megatron_torch::kLayerWiseFile),
         "--only model takes the weights alone; Megatron-LM saves the whole as --ckpt-format "
         "torch_dist");
  const bool says_which = source_.is_named || request_.hf_preset || options_.selection.only ||
                          !options_.selection.include.empty();
  if (!says_which) refuse_beside(source_);
}

/// Nothing is looked into that is not going to be written.
void Conversion::locate_source() {
  if (!request_.hf_preset || options_.selection.only) return source_.locate_all(read_);
  const Manifest& manifest = source_.manifest;
  const Roles roles = find_roles(manifest.state);
  std::vector<bool> of_optimizer(manifest.tensors.size(), false), other(of_optimizer);
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const Role role = roles.entries[i].role;
    const bool is_optim = role == Role::kOptimState || role == Role::kOptimGroup;
    for_each_tensor(manifest.state.entries[i].value,
                    [&](std::uint32_t t) { (is_optim ? of_optimizer : other)[t] = true; });
  }
  std::vector<std::uint32_t> tensors;
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t)
    if (other[t] || !of_optimizer[t]) tensors.push_back(t);
  source_.locate(tensors, read_);
}

/// What could not be read is left out, and lost, but for what was not going to be written.
void Conversion::salvage_source() {
  const Roles roles = find_roles(source_.manifest.state);
  SalvageLoss loss = salvage(source_, read_, transfer_);
  report_.lost = std::move(loss.entries);
  const std::size_t all_lost = report_.lost.size() + loss.files.size();
  std::set<std::string_view> counted;
  for (const LeftOut& entry : source_.manifest.left_out) counted.insert(entry.name);
  for (const LostTensor& lost : report_.lost)
    if (!counted.contains(lost.name)) report_.balance.add_unread(lost.name, std::string(kLost));
  report_.balance.leave_out(source_.manifest, kLost);
  const bool model_alone = request_.hf_preset && !options_.selection.only;
  for (LostTensor& file : loss.files) {
    if (model_alone && is_called_optimizer(file.name)) continue;
    report_.balance.left_behind.push_back({file.name, std::string(kLost), 0});
    report_.lost.push_back(std::move(file));
  }
  if (!model_alone) return;
  const auto of_optimizer = [&](const std::string& name) {
    return std::ranges::any_of(roles.optimizers, [&](const OptimizerRoot& root) {
      return !root.name.empty() && name.starts_with(root.name + ".");
    });
  };
  std::erase_if(report_.lost, [&](const LostTensor& lost) { return of_optimizer(lost.name); });
  require_some_model();
  std::erase_if(report_.notes, [&](const Note& note) {
    return note.severity == Severity::kError && of_optimizer(note.tensor);
  });
  if (all_lost > report_.lost.size())
    report_.notes.push_back(
        {Finding::kElsewhere, Severity::kWarning,
         fmt::format("{}; of the optimizer, which --to hf does not write, {} entries are lost: "
                     "ckpt-inspect verify lists them",
                     report_.lost.empty() ? "the model is whole" : "the model lost what is listed",
                     all_lost - report_.lost.size()),
         "", ""});
}

/// Where all of the model is lost, the optimizer's numbers are no reason to go on.
void Conversion::require_some_model() const {
  const Roles left = find_roles(source_.manifest.state);
  if (report_.lost.empty() || std::ranges::any_of(left.entries, [](const EntryRole& entry) {
        return entry.role == Role::kModel;
      }))
    return;
  fail(Code::kCorrupt,
       fmt::format(
           "nothing of the model is whole: {} of its tensors and values are lost, \"{}\": {}",
           report_.lost.size(), printable(report_.lost[0].name), report_.lost[0].reason),
       "ckpt-inspect verify lists what is lost; use another checkpoint");
}

void Conversion::shape_state() {
  options_.salvage ? salvage_source() : locate_source();
  expand_state_values(source_.manifest);
  report_.balance.restate(source_.manifest, "state that was kept as one value");
  if (driver_->capabilities().groups_optimizers) {
    std::vector<Note> notes = group_optimizers(source_.manifest);
    append(report_.notes, notes);
    report_.balance.restate(source_.manifest, "groups of the optimizer");
  }
  if (request_.hf_preset) {
    refuse_flat_parameters(source_.manifest);
    take_model_only();
  }
  require_sure_names(
      source_.manifest,
      "give --flat-layout FILE with it, or leave the optimizer out with --only model");
  std::optional<std::int64_t> world_size = request_.world_size;
  if (request_.mesh) world_size = writing_ranks(*driver_, request_);
  if (driver_->capabilities().many_ranks) report_.world_size = world_size.value_or(1);
  const ResultRanks ranks{world_size, request_.mesh};
  std::vector<Note> notes = rank_state_notes(source_.manifest, options_.rank_state, ranks);
  append(report_.notes, notes);
  std::vector<std::string> dropped = apply_rank_state(source_.manifest, options_.rank_state, ranks);
  append(report_.dropped, dropped);
  report_.balance.leave_out(source_.manifest, "state of single ranks, by --rank-state");
  transform();
  take_megatron_form(ranks);
  const TrainingFolder* folder = as_training_folder(*driver_);
  if (folder == nullptr) return;
  std::vector<Note> adopted = folder->adopt(source_.manifest, request_, options_.optim_keys);
  append(report_.notes, adopted);
  report_.balance.restate(source_.manifest, fmt::format("the form of {}", driver_->id()),
                          fmt::format("{} has no place for it", driver_->id()));
}

void Conversion::dequantize_source() {
  if (!transformations_.dequantize) return;
  std::vector<std::string> blocks;  // names of the weights that GPT-OSS's experts will be
  for (const StoredTensor& tensor : source_.manifest.tensors)
    if (const std::string_view name = tensor.name.view();
        name.ends_with("_proj_blocks") && tensor.spec.shape.rank() == 4)
      blocks.emplace_back(name.substr(0, name.size() - std::string_view("_blocks").size()));
  Dequantized done = dequantize(source_, *transformations_.dequantize, transfer_);
  append(report_.notes, done.notes);
  report_.transformations.push_back(
      {"dequantize", std::move(done.detail), done.tensors, std::move(done.changes)});
  report_.balance.restate(source_.manifest, "--dequantize");
  note_turned_experts(blocks);
}

/// GPT-OSS's blocks lie turned, of which a matrix that is square shows nothing to its loader.
void Conversion::note_turned_experts(const std::vector<std::string>& blocks) {
  const Manifest& manifest = source_.manifest;
  const auto is_plain = [&](const std::string& name) { return manifest.find(name) != nullptr; };
  if (transformations_.rules || std::ranges::none_of(blocks, is_plain)) return;
  report_.notes.push_back(
      {Finding::kCast, Severity::kWarning,
       fmt::format("{} stack{} of experts are written as the blocks lie, [experts, out, in]; "
                   "transformers' GPT-OSS has [experts, in, out]: --rules gpt-oss:hf turns them",
                   blocks.size(), blocks.size() == 1 ? "" : "s"),
       "", *std::ranges::find_if(blocks, is_plain)});
}

void Conversion::transform() {
  dequantize_source();
  const AliasEntries recorded(source_.manifest);
  std::vector<QuantPart> parts;
  if (!options_.names.empty()) parts = quant_parts(source_.manifest);
  if (AppliedTransformation renamed = apply_renames(source_.manifest, options_.names);
      renamed.tensors > 0) {
    report_.transformations.push_back(std::move(renamed));
    append(report_.notes, parts_left_alone(source_.manifest, parts));
  }
  if (request_.hf_preset) clean_names();
  LentArguments lent(source_.manifest.state, arguments_);
  const bool of_dist = source_.driver->capabilities().megatron == MegatronForm::kDist;
  if (transformations_.rules && of_dist) refuse_single_experts(source_.manifest);
  if (!transformations_.rules && driver_->capabilities().megatron == MegatronForm::kRankFiles &&
      of_dist)
    transformations_.rules = rules_to_modules(source_.manifest);
  TransformOutcome done =
      apply_transformations(source_, transformations_, request_.hf_preset, transfer_, &recorded);
  lent.take_back();
  report_.dropped.insert(report_.dropped.end(), done.dropped.begin(), done.dropped.end());
  request_.aliases = std::move(done.aliases);
  append(report_.notes, done.notes);
  report_.dtypes = std::move(done.dtypes);
  quantization_ = std::move(done.quantization);
  report_.transformations.insert(report_.transformations.end(),
                                 std::make_move_iterator(done.applied.begin()),
                                 std::make_move_iterator(done.applied.end()));
  const bool as_it_stands = report_.from == report_.to && !transformations_.rules;
  if (driver_->capabilities().megatron != MegatronForm::kNone && !as_it_stands)
    refuse_halves(source_.manifest, report_.to);
  book_transformations();
}

/// What Megatron keeps otherwise in one of its two formats than in the other.
void Conversion::take_megatron_form(const ResultRanks& ranks) {
  Manifest& manifest = source_.manifest;
  const MegatronForm from = source_.driver->capabilities().megatron,
                     to = driver_->capabilities().megatron;
  LentArguments lent(manifest.state, arguments_);
  const std::int64_t* asked = request_.own.find(kMegatronCoreFlag);
  const auto core = asked != nullptr ? std::optional(*asked) : std::nullopt;
  if (to == MegatronForm::kDist) {
    if (from == MegatronForm::kRankFiles) {
      random_states_to_objects(manifest, ranks);
      extra_state_to_objects(manifest);
      name_further_layers(manifest, /*of_rank_files=*/false);
      if (transformations_.rules)
        append(report_.notes,
               move_to_megatron_places(manifest, MegatronPlaces::kDist,
                                       common_step(manifest, *source_.directory, transfer_)));
    }
    say_fully_reshardable(manifest);
    if (transformations_.rules) say_gates_are_whole(manifest);
  } else if (to == MegatronForm::kRankFiles && from == MegatronForm::kDist) {
    refuse_plain_optimizer(manifest);
    random_states_to_ranks(manifest, ranks);
    extra_state_to_modules(manifest, core);
    name_further_layers(manifest, /*of_rank_files=*/true, core);
    name_optimizer_as_rank_files(manifest);
    if (auto note = order_as_modules(manifest)) report_.notes.push_back(std::move(*note));
  } else if (to == MegatronForm::kRankFiles && core) {
    name_further_layers(manifest, /*of_rank_files=*/true, core);
  } else {
    return;
  }
  lent.take_back();
  report_.balance.restate(manifest, fmt::format("the form of {}", report_.to));
}

/// The names that the model's library knows: without what torch.compile and a wrapper added.
void Conversion::clean_names() {
  constexpr std::string_view kWrapper = "module.";
  const auto names = names_before_compile(source_.manifest);
  if (!names.empty()) {
    NameRules rules;
    rules.map = names;
    report_.transformations.push_back(apply_renames(source_.manifest, rules));
    report_.notes.push_back(
        {Finding::kNames, Severity::kInfo,
         fmt::format("{} names are written without \"_orig_mod.\", which torch.compile added, as "
                     "\"{}\"",
                     names.size(), printable(names[0].second)),
         "", ""});
  }
  const std::vector<StateEntry>& entries = source_.manifest.state.entries;
  const auto has = [](std::string_view part) {
    return [part](const StateEntry& entry) { return entry.name.find(part) != std::string::npos; };
  };
  const auto wrapped = [=](const StateEntry& entry) { return entry.name.starts_with(kWrapper); };
  const bool all_wrapped = !entries.empty() && std::ranges::all_of(entries, wrapped);
  const bool compiled = std::ranges::any_of(entries, has("_orig_mod."));
  if (!all_wrapped && !compiled) return;
  report_.notes.push_back(
      {Finding::kNames, Severity::kWarning,
       fmt::format("names are written with \"{}\", which the model's library does not know; "
                   "--strip-prefix or --rename takes it away",
                   compiled ? "_orig_mod." : kWrapper),
       "", ""});
}

/// Names that the source records as tied and does not store are neither held nor left out.
void Conversion::book_transformations() {
  std::set<std::string_view> stored(report_.dropped.begin(), report_.dropped.end());
  std::set<std::string_view> recorded;
  for (const Alias& alias : request_.aliases)
    if (!stored.contains(alias.first)) recorded.insert(alias.first);
  std::erase_if(source_.manifest.left_out,
                [&](const LeftOut& entry) { return recorded.contains(entry.name); });
  std::string steps;
  for (const AppliedTransformation& applied : report_.transformations)
    steps += (steps.empty() ? "" : ", ") + applied.kind;
  report_.balance.restate(source_.manifest, steps, "tied: another name has its bytes");
}

/// Steps of optimizers, for formats that keep one for many parameters.
void Conversion::read_steps() {
  if (!driver_->capabilities().needs_steps) return;
  const Manifest& manifest = source_.manifest;
  const Roles roles = find_roles(manifest.state);
  const TensorReader reader(manifest, *source_.directory, transfer_);
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (roles.entries[i].role != Role::kOptimState || !value.is_tensor()) continue;
    const std::uint32_t index = value.tensor_index();
    const TensorSpec& spec = manifest.tensors[index].spec;
    if (spec.shape.rank() != 0 || !is_castable(spec.dtype)) continue;
    Bytes bytes(static_cast<std::size_t>(element_bytes(spec.dtype)));
    reader.read(index, 0, 1, bytes);
    double number = 0;
    to_double(spec.dtype, bytes, {&number, 1});
    request_.steps.emplace_back(index, number);
  }
  std::ranges::sort(request_.steps);
}

/// Globs of the layout that match no tensor are typing errors. By the names of the result.
void Conversion::check_layout_globs() const {
  std::vector<std::string_view> names;
  for (std::uint32_t i : leaf_tensors(source_.manifest))
    names.push_back(source_.manifest.tensors[i].name);
  for (const StateEntry& entry : source_.manifest.state.entries)
    if (!wrapper_class(entry.value).empty()) names.push_back(entry.name);
  const auto check = [&names](std::string_view flag, const std::string& glob) {
    if (std::ranges::any_of(names, [&](auto name) { return glob_match(glob, name); })) return;
    const std::string near = nearest(glob, names);
    fail(Code::kInvalidArgument, fmt::format("{} \"{}\" matches no tensor", flag, printable(glob)),
         near.empty() ? "ckpt-inspect ls shows the names"
                      : fmt::format("did you mean \"{}\"?", near));
  };
  for (const auto& [glob, placements] : request_.placements) check("--placements", glob);
  for (const std::string& glob : request_.replicate) check("--replicate", glob);
}

}  // namespace tessera

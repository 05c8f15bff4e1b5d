// OptimizerDict: what there is, and saving it. (Loading: optimizer_load.cc.)
#include "fsdp_core/state_dict/optimizer_dict.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <cmath>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/state_dict/flat_parameters.h"

namespace tessera::fsdp {
namespace {

constexpr double kMaxStep = 16777216;
constexpr char kTakeAnew[] = "take the state anew (fsdp::state_dict) before each save";

std::string shape_text(at::IntArrayRef sizes) { return Shape(sizes.vec()).to_string(); }

Spread::Form spread_form(StateForm form) {
  if (form == StateForm::kRows) return Spread::Form::kRows;
  return form == StateForm::kWhole ? Spread::Form::kWhole : Spread::Form::kWholeOnFirstRank;
}

}  // namespace

double checked_step(double step, const std::string& name) {
  if (!(step >= 0 && std::floor(step) == step))
    fail(Code::kInvalidArgument, fmt::format("{} is {}, which is no count of steps", name, step));
  if (step > kMaxStep)
    fail(Code::kInvalidArgument,
         fmt::format("{} is {:.0f}: PyTorch keeps steps as float32, exact up to {:.0f}", name, step,
                     kMaxStep));
  return step;
}

OptimizerDict::OptimizerDict(const OptimizerRef& optimizers, const ModelTensors& model,
                             std::string root, StateForm form, std::vector<std::string> replicated)
    : root_(std::move(root)),
      form_(form),
      replicated_(std::move(replicated)),
      owned_groups_(groups_of(optimizers)),
      members_(members_of(owned_groups_, model)),
      entries_(entries_of(members_, model, form == StateForm::kFlat)),
      groups_(owned_groups_, entries_, root_) {}

bool OptimizerDict::is_replicated(const StateLeaf& leaf) const {
  return std::ranges::find(replicated_, leaf.name) != replicated_.end();
}

Path OptimizerDict::state_path(const std::string& fqn, const std::string& leaf) const {
  return {key_item(root_), key_item("state"), key_item(fqn), key_item(leaf)};
}

void OptimizerDict::declare(LiveState& state) {
  const OutsideInference outside;
  memory_ = {};
  counters_.clear();
  borrowed_.clear();
  read_steps();
  for (const OptimizerEntry& entry : entries_) {
    declare_state(state, entry, /*fill=*/true);
    if (!is_gathered(entry)) borrowed_.emplace_back(&entry, kept_tensors(entry));
  }
  groups_.declare(state);
}

std::string OptimizerDict::add_leaf(LiveState& state, const OptimizerEntry& entry,
                                    const std::string& fqn, const StateLeaf& leaf,
                                    const std::vector<at::Tensor>& tensors, bool fill,
                                    bool scratch) {
  Path path = state_path(fqn, leaf.name);
  std::string name = dotted(path);
  std::optional<LiveTensor> live;
  if (is_replicated(leaf)) {
    if (tensors.size() != 1)
      fail(Code::kUnsupported,
           fmt::format("{} is declared to have a shape of its own, for which LOCAL has no form",
                       name),
           "use StateDictType::kSharded");
    const Shape shape(tensors[0].sizes().vec());
    live = memory_.piece(name, tensors[0], tensors[0].scalar_type(), shape,
                         Chunk::whole_of(Box::whole(shape)));
    live->replicated = true;
  } else {
    check_shapes(entry, name, leaf, tensors);
    live = leaf_tensor(entry, name, tensors, fill);
  }
  if (!live) return name;
  live->scratch |= scratch;
  state.append_tensor(std::move(path), std::move(*live));
  return name;
}

void OptimizerDict::check_shapes(const OptimizerEntry& entry, const std::string& name,
                                 const StateLeaf& leaf, const std::vector<at::Tensor>& tensors) {
  for (std::size_t p = 0; p < tensors.size(); ++p)
    if (tensors[p].sizes() != entry.parts[p]->parameter.sizes())
      fail(Code::kInvalidArgument,
           fmt::format("{} has shape {} on this rank, its parameter {}", name,
                       shape_text(tensors[p].sizes()),
                       shape_text(entry.parts[p]->parameter.sizes())),
           fmt::format("if it is the same on every rank, name \"{}\" in "
                       "StateDictOptions::replicated_state; if it was made for other shards, "
                       "build the optimizer after fully_shard",
                       leaf.name));
}

std::optional<LiveTensor> OptimizerDict::leaf_tensor(const OptimizerEntry& entry,
                                                     const std::string& name,
                                                     const std::vector<at::Tensor>& tensors,
                                                     bool fill) {
  const ModelTensor& model = *entry.parts[0]->model;
  if (entry.flat) {
    FlatPieces flat(memory_, model, name, tensors[0].scalar_type());
    for (std::size_t p = 0; p < tensors.size(); ++p) flat.add(p, tensors[p]);
    return std::move(flat).finish();
  }
  const at::Tensor& tensor = tensors[0];
  if (!is_gathered(entry)) {
    LiveTensor live = memory_.piece(name, tensor, tensor.scalar_type(), model.shape, model.chunk);
    live.replicated = model.replicated;
    return live;
  }
  Spread spread = Spread::of(model.unit, *model.group, model.index, spread_form(form_));
  const bool here = spread.here();
  LiveTensor live = memory_.spread(name, tensor, std::move(spread), fill);
  live.replicated |= form_ == StateForm::kRows ? model.replicated : model.same_across_extension;
  place_in_whole(live, model);
  if (!here) return std::nullopt;
  return live;
}

bool OptimizerDict::is_gathered(const OptimizerEntry& entry) const {
  if (form_ == StateForm::kShards || form_ == StateForm::kFlat) return false;
  const ModelTensor& model = *entry.parts[0]->model;
  return model.unit && (form_ != StateForm::kRows || !model.group->layout().is_rows(model.index));
}

/// Throws where parts of a flat parameter count different steps, or only some have state.
double OptimizerDict::step_of(const OptimizerEntry& entry, const std::string& name) const {
  const double first = step_of(*entry.parts[0]);
  for (const OptimizerMember* part : entry.parts)
    if (const double other = step_of(*part); other != first)
      fail(Code::kInvalidArgument,
           fmt::format("{}: \"{}\" has {} and \"{}\" {}, which are one flat parameter", name,
                       entry.parts[0]->fqn, step_text(first), part->fqn, step_text(other)),
           "use StateDictType::kSharded");
  return first;
}

std::vector<at::Tensor> OptimizerDict::tensors_of(const OptimizerEntry& entry,
                                                  const StateLeaf& leaf) {
  std::vector<at::Tensor> tensors;
  for (const OptimizerMember* part : entry.parts)
    if (const at::Tensor& tensor = leaf.tensor(*state_of(*part)); tensor.defined())
      tensors.push_back(tensor);
  if (!tensors.empty() && tensors.size() != entry.parts.size())
    fail(Code::kInvalidArgument,
         fmt::format("only some parameters of {} have \"{}\"", entry.fqn, leaf.name),
         "use StateDictType::kSharded");
  return tensors;
}

std::string OptimizerDict::lines() const {
  std::string out;
  read_steps();
  for (const OptimizerEntry& entry : entries_) {
    const std::string name = state_name(entry.fqn);
    const double step = step_of(entry, name + ".step");
    out += fmt::format("\"{}\" {}", name, step_text(step));
    if (step >= 0 && entry.table().step) checked_step(step, name + ".step");
    for (const StateLeaf& leaf : entry.table().leaves) {
      if (step < 0) break;
      const std::vector<at::Tensor> tensors = tensors_of(entry, leaf);
      if (tensors.empty()) continue;
      if (!is_replicated(leaf)) check_shapes(entry, name + "." + leaf.name, leaf, tensors);
      out += fmt::format(", {} {}", leaf.name, c10::toString(tensors[0].scalar_type()));
    }
    out += '\n';
  }
  return out;
}

void OptimizerDict::declare_state(LiveState& state, const OptimizerEntry& entry, bool fill) {
  Path path = state_path(entry.fqn, "step");
  const std::string name = dotted(path);
  const double step = step_of(entry, name);
  if (step < 0) return;
  if (entry.table().step) {
    Counter counter{name, at::empty({}, at::kFloat)};
    counter.buffer.fill_(checked_step(step, counter.name));
    LiveTensor live = memory_.piece(counter.name, counter.buffer, at::kFloat, {},
                                    Chunk::whole_of(Box::whole({})));
    live.replicated = true;
    state.append_tensor(std::move(path), std::move(live));
    counters_.emplace_back(&entry, std::move(counter));
  }
  for (const StateLeaf& leaf : entry.table().leaves)
    if (const std::vector<at::Tensor> tensors = tensors_of(entry, leaf); !tensors.empty())
      add_leaf(state, entry, entry.fqn, leaf, tensors, fill);
}

std::vector<at::Tensor> OptimizerDict::kept_tensors(const OptimizerEntry& entry) {
  std::vector<at::Tensor> out;
  for (const OptimizerMember* part : entry.parts)
    if (State* held = state_of(*part))
      for (const StateLeaf& leaf : entry.table().leaves)
        if (const at::Tensor& tensor = leaf.tensor(*held); tensor.defined()) out.push_back(tensor);
  return out;
}

/// State that came after would be left out of a save, and what went would be in it.
void OptimizerDict::check_still_borrowed(const OptimizerEntry& entry,
                                         const std::vector<at::Tensor>& borrowed) {
  const std::vector<at::Tensor> kept = kept_tensors(entry);
  if (std::ranges::equal(kept, borrowed,
                         [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }))
    return;
  const char* change = borrowed.empty() ? "has optimizer state now and had none"
                       : kept.empty()   ? "has no optimizer state now and had some"
                                        : "has other optimizer state now than";
  fail(Code::kInvalidArgument,
       fmt::format("\"{}\" {} when this state was taken", entry.fqn, change), kTakeAnew);
}

void OptimizerDict::refresh(StagedCopies& staged) {
  if (is_for_load_)
    fail(Code::kInvalidArgument,
         fmt::format("the state with optimizer \"{}\" was used by a load and cannot be saved",
                     root_),
         kTakeAnew);
  for (const auto& [entry, borrowed] : borrowed_) check_still_borrowed(*entry, borrowed);
  read_steps();
  for (auto& [entry, counter] : counters_) {
    if (is_gathered(*entry)) continue;  // a step goes with its moments
    counter.buffer.fill_(checked_step(step_of(*entry, counter.name), counter.name));
  }
  memory_.refresh(staged);
}

std::vector<Agreement> OptimizerDict::agreed() const {
  std::vector<Agreement> out;
  read_steps();
  for (const OptimizerMember& member : members_)
    out.push_back({state_name(member.fqn), step_text(step_of(member)),
                   "every rank must step every optimizer equally often"});
  return out;
}

}  // namespace tessera::fsdp

#include "fsdp_core/state_dict/optimizer_members.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <map>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/units_of.h"
#include "fsdp_core/state_dict/flat_parameters.h"

namespace tessera::fsdp {
namespace {

/// Names of a part would be taken for names of the whole, and its groups for all there are.
void check_is_root(const ModelTensors& model) {
  for (const auto& unit : model.units) {
    std::shared_ptr<detail::Unit> top = unit->outermost.lock();
    if (!top && unit->root() && unit->root()->top() != nullptr)
      top = unit->root()->top()->shared_from_this();
    if (!top || std::ranges::find(model.units, top) != model.units.end()) continue;
    std::string name = unit->label();  // (Until the first forward no unit knows its own.)
    for (const auto& [fqn, member] : named_units(top->module()))
      if (member == unit) name = fmt::format("unit \"{}\"", fqn);
    fail(Code::kInvalidArgument,
         fmt::format("state_dict with an optimizer: {} is not the root, it lies inside {}", name,
                     top->label()),
         "call it on the model that fully_shard was called on last");
  }
}

/// What such a unit has learned of its gradients would be left out, without a word.
void check_has_steppers(const std::vector<OwnedGroup>& groups, const ModelTensors& model) {
  for (const auto& unit : model.units) {
    if (!unit->stepper || unit->stepper->optimizer()->param_groups().empty()) continue;
    const torch::optim::Optimizer* steps = unit->stepper->optimizer().get();
    if (std::ranges::find(groups, steps, &OwnedGroup::optimizer) == groups.end())
      fail(Code::kInvalidArgument,
           fmt::format("state_dict with an optimizer: {} steps in backward, and its optimizer is "
                       "not given",
                       unit->label()),
           "give it fsdp::optimizers_in_backward(model)");
  }
}

}  // namespace

std::vector<OwnedGroup> groups_of(const OptimizerRef& optimizers) {
  std::vector<OwnedGroup> out;
  for (torch::optim::Optimizer* optimizer : optimizers.all()) {
    const OptimizerTable& table = table_of(*optimizer);
    for (std::size_t g = 0; g < optimizer->param_groups().size(); ++g)
      out.push_back({optimizer, &table, g});
  }
  return out;
}

std::vector<OptimizerMember> members_of(const std::vector<OwnedGroup>& groups,
                                        const ModelTensors& model) {
  check_is_root(model);
  check_has_steppers(groups, model);
  std::vector<OptimizerMember> members;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  std::unordered_map<std::size_t, std::vector<std::string>> ties;
  for (const ModelTensor& tensor : model.tensors)
    if (tensor.tied_to) ties[*tensor.tied_to].push_back(tensor.fqn);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<at::Tensor>& params = groups[g].group().params();
    for (std::size_t p = 0; p < params.size(); ++p) {
      const auto found = model.by_parameter.find(params[p].unsafeGetTensorImpl());
      if (found == model.by_parameter.end())
        fail(Code::kInvalidArgument,
             fmt::format("parameter {} of the optimizer's group {} (shape {}) is none of the "
                         "model's",
                         p, g, Shape(params[p].sizes().vec()).to_string()),
             "build the optimizer from model->parameters(), after fully_shard");
      const ModelTensor& tensor = model.tensors[found->second];
      const auto [earlier, added] = seen.emplace(params[p].unsafeGetTensorImpl(), g);
      if (!added && earlier->second != g)
        fail(Code::kInvalidArgument,
             fmt::format("groups {} and {} of the optimizer both hold parameter \"{}\"",
                         earlier->second, g, tensor.fqn));
      if (!added) continue;  // parameters() of LibTorch lists a tied parameter under each name
      OptimizerMember member{tensor.fqn, {tensor.fqn}, g, groups[g], params[p], &tensor};
      for (const std::string& other : ties[found->second]) member.names.push_back(other);
      members.push_back(std::move(member));
    }
  }
  return members;
}

std::vector<OptimizerEntry> entries_of(const std::vector<OptimizerMember>& members,
                                       const ModelTensors& model, bool flat) {
  std::vector<OptimizerEntry> entries;
  std::map<const ParamGroup*, std::size_t> flat_entries;
  for (const OptimizerMember& member : members) {
    if (!flat || !member.model->unit) {
      entries.push_back({member.fqn, member.names, member.group, false, {&member}});
      continue;
    }
    const ParamGroup* owner = member.model->group;
    const auto [at, added] = flat_entries.emplace(owner, entries.size());
    if (added) {
      const std::string name = flat_name(model, *member.model);
      entries.push_back({name, {name}, member.group, true, {}});
      entries.back().parts.resize(owner->params().size());
    }
    OptimizerEntry& entry = entries[at->second];
    if (entry.group != member.group)
      fail(Code::kInvalidArgument,
           fmt::format("state_dict: LOCAL of {}: \"{}\" is in group {} of the optimizer, other "
                       "parameters of it in group {}",
                       entry.fqn, member.fqn, member.group, entry.group),
           "use StateDictType::kSharded");
    entry.parts[member.model->index] = &member;
  }
  for (const auto& [owner, at] : flat_entries)
    for (std::size_t p = 0; p < owner->params().size(); ++p)
      if (entries[at].parts[p] == nullptr)
        fail(
            Code::kInvalidArgument,
            fmt::format("state_dict: LOCAL of {}: the optimizer does not have its parameter \"{}\"",
                        entries[at].fqn, owner->params()[p].fqn),
            "use StateDictType::kSharded");
  return entries;
}

torch::optim::OptimizerParamState* state_of(const OptimizerMember& member) {
  auto& state = member.owner.optimizer->state();
  const auto found = state.find(member.parameter.unsafeGetTensorImpl());
  return found == state.end() ? nullptr : found->second.get();
}

std::vector<double> steps_of(const std::vector<OptimizerMember>& members) {
  std::vector<double> steps(members.size(), -1);
  std::map<std::string, std::pair<std::vector<std::size_t>, std::vector<at::Tensor>>> on_devices;
  for (std::size_t m = 0; m < members.size(); ++m) {
    torch::optim::OptimizerParamState* held = state_of(members[m]);
    if (held == nullptr) continue;
    const OptimizerTable& table = *members[m].owner.table;
    if (table.step_tensor && !table.step_tensor(*held).is_cpu()) {
      const at::Tensor& step = table.step_tensor(*held);
      auto& [who, counts] = on_devices[step.device().str()];
      who.push_back(m);
      counts.push_back(step.view(at::IntArrayRef{}));
    } else {
      steps[m] = table.step ? table.step(*held) : 0;
    }
  }
  for (const auto& [device, of_device] : on_devices) {
    const auto& [who, counts] = of_device;
    const at::Tensor here = at::stack(counts).to(at::kCPU, at::kDouble);
    for (std::size_t i = 0; i < who.size(); ++i) steps[who[i]] = here.const_data_ptr<double>()[i];
  }
  return steps;
}

std::string step_text(double step) {
  return step < 0 ? std::string("no state") : fmt::format("step {:.0f}", step);
}

}  // namespace tessera::fsdp

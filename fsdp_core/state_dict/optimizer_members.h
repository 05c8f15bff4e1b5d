#pragma once
// Whose state optimizers keep: their parameters as the model names them, and the entries of a state
// dict that their state stands under: one per parameter, or (LOCAL) one per flat parameter.
//
// A state dict has one list of groups, whoever owns them: those of one optimizer stand after those
// of another. From here on a group is known by its number in that list, and its parameters' state
// by the optimizer that owns it.
#include <tessera/fsdp/state_dict.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/optimizer_table.h"

namespace tessera::fsdp {

/// A group of parameters and whose it is.
struct OwnedGroup {
  torch::optim::Optimizer* optimizer = nullptr;
  const OptimizerTable* table = nullptr;
  std::size_t index = 0;  // in the optimizer
  torch::optim::OptimizerParamGroup& group() const { return optimizer->param_groups()[index]; }
};

/// A parameter of an optimizer.
struct OptimizerMember {
  std::string fqn;
  std::vector<std::string> names;  // `fqn` and those it is tied to
  std::size_t group = 0;
  OwnedGroup owner;
  at::Tensor parameter;
  const ModelTensor* model = nullptr;
};

struct OptimizerEntry {
  std::string fqn;
  std::vector<std::string> names;
  std::size_t group = 0;
  bool flat = false;                          // a flat parameter
  std::vector<const OptimizerMember*> parts;  // flat: of its parameters, in their order; else one
  const OptimizerTable& table() const { return *parts[0]->owner.table; }
};

/// Throws as table_of.
std::vector<OwnedGroup> groups_of(const OptimizerRef& optimizers);

/// Throws kInvalidArgument, naming group and FQN: a parameter that is not the model's, or is in two
/// groups; a model that is no root; a unit that steps in backward, whose optimizer has no group.
std::vector<OptimizerMember> members_of(const std::vector<OwnedGroup>& groups,
                                        const ModelTensors& model);
/// `flat`: parameters of one flat parameter as one entry; throws where they are in different groups
/// or only some of them are in any. Points into `members`.
std::vector<OptimizerEntry> entries_of(const std::vector<OptimizerMember>& members,
                                       const ModelTensors& model, bool flat);

/// Null: the parameter has no state.
torch::optim::OptimizerParamState* state_of(const OptimizerMember& member);

/// The steps that are counted of each; 0: its optimizer counts none; -1: it has no state. What a device
/// counts comes to the host in one copy.
std::vector<double> steps_of(const std::vector<OptimizerMember>& members);
/// "step 3", "no state".
std::string step_text(double step);

}  // namespace tessera::fsdp

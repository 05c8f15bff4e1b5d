#pragma once
// Whose state an optimizer keeps: its parameters as the model names them, and the entries of a
// state dict that their state stands under: one per parameter, or (LOCAL) one per flat parameter.
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/optimizer_table.h"

namespace tessera::fsdp {

/// A parameter of the optimizer.
struct OptimizerMember {
  std::string fqn;
  std::vector<std::string> names;  // `fqn` and those it is tied to
  std::size_t group = 0;
  at::Tensor parameter;
  const ModelTensor* model = nullptr;
};

struct OptimizerEntry {
  std::string fqn;
  std::vector<std::string> names;
  std::size_t group = 0;
  bool flat = false;                          // a flat parameter
  std::vector<const OptimizerMember*> parts;  // flat: of its parameters, in their order; else one
};

/// Throws kInvalidArgument, naming group and FQN: a parameter that is not the model's, or is in two
/// groups; a model that is no root.
std::vector<OptimizerMember> members_of(torch::optim::Optimizer& optimizer,
                                        const ModelTensors& model);
/// `flat`: parameters of one flat parameter as one entry; throws where they are in different groups
/// or the optimizer has only some of them. Points into `members`.
std::vector<OptimizerEntry> entries_of(const std::vector<OptimizerMember>& members,
                                       const ModelTensors& model, bool flat);

/// Null: the parameter has no state.
torch::optim::OptimizerParamState* state_of(torch::optim::Optimizer& optimizer,
                                            const OptimizerMember& member);

/// Throws kInvalidArgument where ranks count different steps, or have state of different
/// parameters, naming the FQN and both values. Collective over the units' ranks.
void agree_on_steps(torch::optim::Optimizer& optimizer, const OptimizerTable& table,
                    const std::vector<OptimizerMember>& members);

}  // namespace tessera::fsdp

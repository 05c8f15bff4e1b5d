#pragma once
// Muon on shards: torch.optim.Muon's steps, in which each matrix's update is orthogonalised as a whole.
// Momentum stays sharded; the update is gathered in bf16, in which it is orthogonalised, one matrix at a
// time, by every rank of the unit. Options, groups and state dicts are those of PyTorch's class.
//
//   std::vector<at::Tensor> matrices, others;
//   fsdp::split_matrices(model, matrices, others);
//   fsdp::Muon muon(model, matrices, fsdp::MuonOptions(0.02));
//   fsdp::FusedAdamW adamw(others, torch::optim::AdamWOptions(3e-4));
//   muon.step(), adamw.step();  // after backward, on every rank
//
//   fsdp::state_dict(model, {muon, adamw})
//
// Parameters are matrices; others are refused, with their shape. Parameters without a gradient are
// skipped, on all ranks alike (Options::find_unused_parameters). As FusedAdamW's, save() and load()
// are refused.
#include <tessera/fsdp/whole_tensors.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <string>
#include <vector>

namespace tessera::fsdp {

struct MuonOptions : torch::optim::OptimizerCloneableOptions<MuonOptions> {
  using Coefficients = std::array<double, 3>;
  MuonOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(Coefficients, ns_coefficients) = {3.4445, -4.7750, 2.0315};
  TORCH_ARG(double, eps) = 1e-7;
  TORCH_ARG(std::int64_t, ns_steps) = 5;
  /// "", "original" or "match_rms_adamw": by what the learning rate is multiplied for a matrix's shape.
  TORCH_ARG(std::string, adjust_lr_fn);

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct MuonParamState : torch::optim::OptimizerCloneableParamState<MuonParamState> {
  at::Tensor momentum_buffer;  // as the parameter
};

class Muon : public torch::optim::Optimizer {
 public:
  /// `parameters` are of `model`, after fully_shard. Throws kInvalidArgument: options out of range, or a
  /// parameter that is no matrix.
  Muon(const ModuleRef& model, const std::vector<torch::optim::OptimizerParamGroup>& groups,
       MuonOptions defaults = {});
  Muon(const ModuleRef& model, std::vector<at::Tensor> parameters, MuonOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group);
  MuonParamState& state_of(const at::Tensor& parameter);
  WholeTensors wholes_;
};

/// The parameters of `model` that are matrices as wholes, and the rest.
void split_matrices(const ModuleRef& model, std::vector<at::Tensor>& matrices,
                    std::vector<at::Tensor>& others);

/// What Muon makes of a matrix: in bf16, its singular values between 0.5 and 1.5 or so.
at::Tensor orthogonalised(const at::Tensor& matrix, const MuonOptions& options);

}  // namespace tessera::fsdp

#pragma once
// optim: the optimizer's state per parameter, defects in it, and which parameters the next step
// changes most.
//
//   update(p) = lr * |m| / (sqrt(v) + eps)
//   ratio     = |update| / |w|
//   growth    = |v in B| / |v in A| of a second checkpoint B
//
// Norms are L2. Moments are bias corrected where betas and the step are known: m / (1 - beta1^t),
// v / (1 - beta2^t). Weight decay is not part of the update.
//
// A parameter with NaN or Inf in its state has no next update: it ranks first, with NaN.
//
// Findings have stable codes, one table in docs/optim-codes.md.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct OptimReportLeaf {
  std::string name;
  std::string dtype;  // "" for a plain value
  std::vector<std::int64_t> shape;
  bool matches_weight = false;  // same shape as the parameter; without one, false
};

struct OptimReportParameter {
  std::string fqn;
  std::string stored_key;
  bool inferred = false;
  bool certain = true;
  std::int64_t group = -1;
  bool has_weight = false;  // its weight is in the checkpoint
  std::vector<OptimReportLeaf> leaves;
  std::optional<double> step;
  StepOrigin step_origin = StepOrigin::kNone;
};

struct OptimReportGroup {
  std::int64_t index = 0;
  std::vector<std::string> members;
  std::vector<std::pair<std::string, Value>> options;  // JSON form
};

/// (leaf set, step) -> how many parameters.
struct LeafSetRow {
  std::string leaves;  // "exp_avg,exp_avg_sq,step"; "" = no state
  std::optional<double> step;
  std::uint64_t count = 0;
};

struct UpdateRow {
  std::string fqn;
  double ratio = 0;  // |update| / |w|; NaN where its state holds NaN or Inf
  double update_norm = 0;
  double weight_norm = 0;
  double m_norm = 0;
  double v_max = 0;  // largest element of exp_avg_sq; NaN where that holds NaN or Inf
  double lr = 0;
  bool bias_corrected = false;
  std::optional<double> growth;  // with a second checkpoint
};

struct OptimizerReport {
  std::string root;
  std::string kind;
  std::string dialect;
  std::vector<OptimReportParameter> parameters;
  std::vector<OptimReportGroup> groups;
  std::vector<LeafSetRow> leaf_sets;
  std::vector<UpdateRow> updates;  // largest ratio first; with B: largest growth first
  std::string update_note;         // why a ranking is absent, or what was assumed
};

struct OptimReport {
  std::string path;
  std::string other_path;  // B, or ""
  std::string format;
  std::vector<OptimizerReport> optimizers;
  std::string held_in;         // without optimizers: the value that holds the state of one, or ""
  std::vector<Note> findings;  // by severity, then code
  std::vector<Note> notes;
  bool ok() const;  // no finding of Severity::kError
};

struct OptimOptions {
  bool values = true;     // false: structure only, no tensor byte is read
  std::string parameter;  // its values alone are read (an FQN); "": those of all
  TransferOptions transfer;
};

/// `other` may be null.
OptimReport inspect_optimizer(OpenedCheckpoint& checkpoint, OpenedCheckpoint* other,
                              const OptimOptions& options = {});

}  // namespace tessera

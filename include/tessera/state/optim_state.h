#pragma once
// OptimState: one optimizer in canonical form, whatever form it was stored in.
//
//   parameters   per parameter: its leaves, its step and where the step was found, its group
//   groups       members by FQN, options as stored (unknown options are kept)
//
// Integer ids are mapped to FQNs through the groups: ids follow the order of the model's
// parameters, group by group. That order is not stored, so the mapping is inferred: every id must
// meet a parameter of its state's shape, in order. State of another shape (factored, low rank) says
// what it can; ids as many as the parameters are these in order. Of several models (netG, netD) the
// one is taken that all ids fit, by the optimizer's name where they fit several. `certain` is false
// when shapes allow a second answer.
//
// Pure; no tensor byte is read: a step stored as a tensor is a reference. Thread-safe.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// How a piece of a parameter's state is cut when the parameter is.
enum class LeafCut : std::uint8_t {
  kElementwise,  // an element for each of the parameter's, in its shape: alike
  kPerRow,       // one for each row, or for each head of several: not
  kOne,          // one for the parameter (a step, a norm): kept
  kFactored,     // sums over some of its dims: not
  kBlocks,       // codes in blocks of the flat parameter: not; as kElementwise where floating
  kOpaque,       // a basis, a projection, a history: not
};
std::string_view leaf_cut_name(LeafCut cut);

struct KnownOptimizer;  // a row of the table of optimizers (lib/state/known_optimizers.h)

/// One piece of a parameter's state.
struct OptimLeaf {
  std::string name;                  // "exp_avg"
  std::size_t entry = 0;             // in StateDict::entries
  std::uint32_t tensor = kNoTensor;  // index in Manifest::tensors, or kNoTensor for a plain value
};

enum class StepOrigin : std::uint8_t { kNone, kParameter, kGroup, kBoth };
std::string_view step_origin_name(StepOrigin origin);

/// A step counter: a number, or a 0-dim tensor whose value only a reader of bytes knows.
struct StepRef {
  std::optional<double> value;
  std::uint32_t tensor = kNoTensor;
  bool known() const { return value || tensor != kNoTensor; }
};

struct OptimParameter {
  std::string fqn;                   // canonical; the stored key where no FQN could be inferred
  std::string stored_key;            // as in the checkpoint: an FQN, or an id in decimal
  bool inferred = false;             // fqn comes from the positional rule
  bool certain = true;               // false: shapes allow another mapping
  std::uint32_t weight = kNoTensor;  // the model's tensor of this name
  std::int64_t group = -1;           // first group that lists it
  std::vector<OptimLeaf> leaves;     // state leaves, `step` included, in stored order
  StepRef own_step;                  // <parameter>.step
  StepRef group_step;                // `step` option of its group
  StepOrigin step_origin() const;

  const OptimLeaf* find(std::string_view leaf) const;
};

struct OptimGroup {
  std::int64_t index = 0;
  std::vector<std::string> stored_members;  // as listed; ids in decimal
  std::vector<std::string> members;         // FQNs where known
  ValueDict options;                        // everything but `params`, as stored
  const Value* find(std::string_view option) const;
};

/// A defect that the structure alone shows, without reading tensors. Codes: docs/optim-codes.md.
struct OptimIssue {
  Finding code = Finding::kNone;
  Severity severity = Severity::kInfo;
  std::string parameter;
  std::string message;
};

struct OptimState {
  std::string root;
  OptimDialect dialect = OptimDialect::kByFqn;
  std::vector<OptimParameter> parameters;  // every one with state or listed in a group; order:
                                           // groups, then the rest as stored
  std::vector<OptimGroup> groups;          // kFlat: rebuilt, parameters with equal options together
  std::string kind;  // inferred from leaves and options: "AdamW", "SGD with momentum", "unknown"
  const KnownOptimizer* known = nullptr;  // what `kind` was inferred from; nullptr: "unknown"
  std::vector<OptimIssue>
      issues;  // unknown or duplicate members, ids that fit no parameter, ambiguous mapping
  std::vector<std::string>
      unlisted_weights;  // parameters of the model (by kind) that no group lists

  const OptimParameter* find(std::string_view fqn) const;
  /// How `parameter`'s leaf is cut with it. kElementwise where the optimizer is unknown, or does not
  /// list the leaf.
  LeafCut cut_of(const OptimParameter& parameter, std::string_view leaf) const;
};

/// One per optimizer root, in order of first appearance.
std::vector<OptimState> canonical_optim_states(const Manifest& manifest, const Roles& roles);

/// For writers of state under names. Throws kUnsupported, with this hint, where an id fits no
/// parameter of the model (with the reader's reason, if it gave one: a note
/// Finding::kUnnamedState), or where shapes allow another answer than the one that was inferred.
void require_names(const Manifest& manifest, const OptimState& optim, const std::string& hint);

/// Where id k of the groups (flattened, group by group) lands among `candidates` (model parameters
/// in order). Pure arithmetic of shapes.
struct IdMapping {
  std::vector<std::int64_t> candidate;  // per id; -1 = none
  bool complete = false;                // every id found a parameter
  bool certain = false;                 // and the shapes allow no second answer
};
/// `ids`: shape of each id's state (nullopt: no state, fits any); `group_sizes` cut `ids` into
/// groups.
IdMapping map_ids(const std::vector<std::optional<Shape>>& ids,
                  const std::vector<std::size_t>& group_sizes,
                  const std::vector<Shape>& candidates);

}  // namespace tessera

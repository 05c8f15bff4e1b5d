#pragma once
// Rules: how one family of models names and fuses its weights in different systems, declared in a
// small JSON file (docs/rules.md, docs/json/rules.schema.json). Shipped: llama, qwen2, gpt-neox,
// mixtral, qwen3-moe, deepseek-v3, glm4-moe, gpt-oss, megatron-fsdp.
//
//   side "hf"        q_proj, k_proj, v_proj                     one tensor per part
//   side "megatron"  linear_qkv, groups of [q.. k v]            all parts along one axis
//   side "megatron-dist"   ... and all layers stacked           a new dim in front
//   side "stacked"   gate and up of all experts in one tensor    a new dim in front
//
// Applied to a manifest they become parameter edits (state/parameter_edit.h) and renames: weights,
// optimizer state, steps and groups follow. The side a checkpoint has is found by its names.
#include <tessera/state/manifest.h>
#include <tessera/state/parameter_edit.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Another name that is read for the one of a part.
struct OtherName {
  std::size_t part = 0;
  std::string name;
};

/// How one side stores the parts of a rule.
struct RuleSide {
  std::vector<std::string> names;  // one per part; fused or unparted: one
  std::vector<OtherName> alternatives;
  /// The rule is for tensors that have one of these beside them, on this side as source.
  std::vector<std::string> beside;
  std::vector<std::string> copies;  // names that hold the same tensor once more
  bool fused = false;
  int axis = 0;                     // of the parts' dims
  std::vector<std::string> ratios;  // fused: expressions over parameters; empty: all equal
  std::string groups = "1";         // expression
  bool interleaved = false;
  bool transposed = false;  // the last two dims of the parts change places
  /// Pairs of a matrix and a vector. As source the parts stand upright where the last dim but one of
  /// a matrix, not the last, is as long as the vector: the first pair whose dims differ.
  std::vector<std::string> turned_by;
  std::vector<std::string> stacks;  // captures that become new first dims, outermost first
};

struct TensorRule {
  std::vector<std::string> parts;  // names for messages; one for plain renames
  bool vocabulary = false;         // dim 0 counts the vocabulary
  std::map<std::string, RuleSide> sides;
};

struct RuleParameter {
  std::string name;
  std::string about;
  std::vector<std::string> keys;  // in config.json and in the checkpoint's own arguments
  std::string fallback = {};      // another parameter
  /// Names with one capture, of parameters that names count from ({mtp+layers}): the least number
  /// that is found, and one more than the greatest.
  std::vector<std::string> first = {};
  std::vector<std::string> count = {};
};

struct RuleSet {
  std::string name;
  std::vector<std::string> sides;  // in order of preference as target
  std::vector<RuleParameter> parameters;
  std::vector<TensorRule> tensors;
  /// By format that is written: where model and optimizer then stand (lib/ops/edit/megatron_places.h).
  std::map<std::string, std::string> places;
};

/// Throws kInvalidArgument naming the place in the file.
RuleSet parse_rules(std::string_view text, const std::string& origin);

struct BuiltinRules {
  std::string_view name;
  std::string_view text;
};
std::span<const BuiltinRules> builtin_rules();

/// --rules NAME[:SIDE][,PARAMETER=N...].
struct RulesRequest {
  std::string name;    // as typed: a shipped name, or a file
  std::string text;    // of the file; empty: shipped
  std::string side;    // to convert to; empty: the first one that the source is not
  std::string format;  // id of the one that is written
  std::map<std::string, std::int64_t> parameters;
};
/// Cuts the flag's value; `text` stays empty. Throws kInvalidArgument.
RulesRequest parse_rules_flag(std::string_view value);

/// A number of the model by one of its keys, where it is known (config.json, arguments).
using ModelNumber = std::function<std::optional<std::int64_t>(const std::string& key)>;

struct RulesOutcome {
  std::string from;
  std::string to;
  std::vector<ParameterEdit> edits;                          // what is fused, cut or stacked
  std::vector<std::pair<std::string, std::string>> renames;  // the rest, exact
  std::vector<std::string> vocabulary;                       // by their new names
  /// Parameters that the source holds twice and the target once: (the copy, the one that stays).
  std::vector<std::pair<std::string, std::string>> copies_dropped;
  /// By their new names: (a copy that the target holds as well, what it is a copy of).
  std::vector<std::pair<std::string, std::string>> copies_made;
  std::vector<std::string> unmatched;  // parameters no rule speaks of
};

/// What the rules make of parameters of these shapes. Throws kInvalidArgument (no name matches,
/// both sides match, a part is missing or does not divide, a parameter of the rules is unknown).
RulesOutcome plan_rules(const RuleSet& rules, const RulesRequest& request,
                        const std::map<std::string, Shape>& shapes, const ModelNumber& number);

/// Names that shipped rules declare as vocabulary, on any side, among `fqns`.
std::vector<std::string> known_vocabulary(const std::map<std::string, Shape>& shapes);

}  // namespace tessera

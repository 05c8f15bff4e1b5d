#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/rename.h>
#include <tessera/ops/transform.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>

#include "lib/base/append.h"
#include "lib/ops/edit/alias_entries.h"
#include "lib/ops/edit/dtype_rules.h"
#include "lib/ops/edit/megatron_places.h"
#include "lib/ops/edit/quant_guard.h"
#include "lib/ops/edit/quantize.h"
#include "lib/ops/edit/rule_copies.h"
#include "lib/ops/edit/ties.h"
#include "lib/ops/edit/vocabulary.h"
#include "lib/ops/open/model_config.h"

namespace tessera {
namespace {

constexpr std::size_t kMostNamed = 20;

/// An integer under `key` in a dict, or in the attributes of an object (an argparse Namespace).
std::optional<std::int64_t> integer_in(const Value& value, const std::string& key) {
  if (value.kind() == Value::Kind::kOpaque) return integer_in(value.as_opaque().state, key);
  const Value* found = value.find(key);
  if (found == nullptr || !found->is_int()) return std::nullopt;
  // Megatron's arguments have a number of groups, 1, for models without any, too.
  const Value* grouped = key == "num_query_groups" ? value.find("group_query_attention") : nullptr;
  if (grouped != nullptr && grouped->kind() == Value::Kind::kBool && !grouped->as_bool())
    return std::nullopt;
  return found->as_int();
}

/// Numbers of the model: the checkpoint's own arguments first, then config.json.
ModelNumber model_numbers(const OpenedCheckpoint& checkpoint) {
  return [&checkpoint, config = std::optional<Value>()](
             const std::string& key) mutable -> std::optional<std::int64_t> {
    for (const StateEntry& entry : checkpoint.manifest.state.entries) {
      const bool named =
          entry.value.is_int() && !entry.path.empty() && entry.path.back().text() == key;
      if (named) return entry.value.as_int();
      if (const auto inside = integer_in(entry.value, key)) return inside;
    }
    if (!config) config = read_config(*checkpoint.directory);
    if (const auto found = integer_in(*config, key)) return found;
    const Value* text_model = config->find("text_config");
    return text_model == nullptr ? std::nullopt : integer_in(*text_model, key);
  };
}

RuleSet rule_set(const RulesRequest& request) {
  if (!request.text.empty()) return parse_rules(request.text, request.name);
  std::vector<std::string_view> names;
  for (const BuiltinRules& builtin : builtin_rules()) {
    if (builtin.name == request.name) return parse_rules(builtin.text, request.name);
    names.push_back(builtin.name);
  }
  fail(Code::kInvalidArgument, fmt::format("there are no rules \"{}\"", printable(request.name)),
       fmt::format("shipped: {}; or a file", fmt::join(names, ", ")));
}

/// "a + b + c"; of many the first, the second and the last, and how many there are.
std::string sum_of(const auto& parameters) {
  constexpr std::size_t kMostSummed = 8;
  if (parameters.size() > kMostSummed)
    return fmt::format("{} + {} + ... + {} ({})", parameters[0].fqn, parameters[1].fqn,
                       parameters.back().fqn, parameters.size());
  std::vector<std::string_view> names;
  for (const auto& parameter : parameters) names.push_back(parameter.fqn);
  return fmt::format("{}", fmt::join(names, " + "));
}

/// Names by their kind: "model.layers.*.rotary_emb.inv_freq (61)".
std::string by_kind(const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::string_view>> kinds;
  for (const std::string& name : names) {
    std::vector<std::string> parts;
    for (const std::string_view part : split(name, '.'))
      parts.emplace_back(is_decimal(part) ? "*" : part);
    kinds[fmt::format("{}", fmt::join(parts, "."))].push_back(name);
  }
  std::vector<std::string> said;
  for (const auto& [kind, members] : kinds) {
    if (said.size() == kMostNamed) {
      said.push_back(fmt::format("and {} kinds more", kinds.size() - kMostNamed));
      break;
    }
    said.push_back(members.size() == 1 ? std::string(members[0])
                                       : fmt::format("{} ({})", kind, members.size()));
  }
  return fmt::format("{}", fmt::join(said, ", "));
}

/// Parameters that no rule names stay as they are, or, with --strict-rules, stop the conversion.
void report_unmatched(const RulesOutcome& plan, bool strict, TransformOutcome& out) {
  if (plan.unmatched.empty()) return;
  const std::string names = by_kind(plan.unmatched);
  if (strict)
    fail(Code::kInvalidArgument,
         fmt::format("--strict-rules: no rule names {} parameters: {}", plan.unmatched.size(),
                     printable(names)),
         "add rules for them, leave them out (--exclude), or leave out --strict-rules");
  out.notes.push_back({Finding::kRules, Severity::kWarning,
                       fmt::format("{} parameters keep their names, no rule names them: {}",
                                   plan.unmatched.size(), names),
                       "", ""});
}

/// Rules that name codes of quantized weights alone would part these from their scales.
void refuse_parted_codes(const Manifest& manifest, const RuleSet& rules, const RulesOutcome& plan) {
  std::set<std::string> changed, taken;
  for (const ParameterEdit& edit : plan.edits)
    for (const OldParameter& old : edit.olds) changed.insert(old.fqn);
  for (const auto& [from, to] : plan.renames) {
    taken.insert(from);
    if (from != to) changed.insert(from);
  }
  taken.insert(changed.begin(), changed.end());
  refuse_codes_alone(manifest, changed, taken, fmt::format("--rules {}", printable(rules.name)));
}

/// Returns the vocabulary that the rules declare.
std::vector<std::string> apply_rules(OpenedCheckpoint& checkpoint, const Transformations& asked,
                                     const TransferOptions& transfer, TransformOutcome& out) {
  Manifest& manifest = checkpoint.manifest;
  const RulesRequest& request = *asked.rules;
  const RuleSet rules = rule_set(request);
  // Options by parameter do not follow halves of a matrix; members of groups do.
  if (rules.places.contains(request.format)) append(out.notes, group_optimizers(manifest));
  const RulesOutcome plan =
      plan_rules(rules, request, parameter_shapes(manifest), model_numbers(checkpoint));
  refuse_parted_codes(manifest, rules, plan);
  report_unmatched(plan, asked.strict_rules, out);
  AppliedTransformation applied{
      "rules", fmt::format("{}: {} -> {}", rules.name, plan.from, plan.to), 0, {}};
  for (const auto& [copy, kept] :
       drop_copies(checkpoint, plan.copies_dropped, !asked.plan_only, transfer)) {
    applied.changes.push_back(fmt::format("{} = {}", copy, kept));
    out.dropped.push_back(copy);
  }
  for (const ParameterEdit& edit : plan.edits) {
    applied.changes.push_back(fmt::format("{} -> {}", sum_of(edit.olds), sum_of(edit.made)));
    applied.tensors += edit.made.size();
  }
  append(out.notes,
         edit_parameters(manifest, plan.edits, same_elements(checkpoint, transfer), asked.optim));
  std::map<std::string, std::string> fresh;
  for (const auto& [from, to] : plan.renames) {
    fresh.emplace(from, to);
    if (from != to) applied.changes.push_back(fmt::format("{} -> {}", from, to));
    ++applied.tensors;
  }
  rename_parameters(manifest, find_roles(manifest.state), [&fresh](const std::string& fqn) {
    const auto found = fresh.find(fqn);
    return found == fresh.end() ? fqn : found->second;
  });
  make_copies(manifest, plan.copies_made);
  for (const auto& [copy, kept] : plan.copies_made) {
    applied.changes.push_back(fmt::format("{} -> {} + {}", kept, kept, copy));
    ++applied.tensors;
  }
  out.applied.push_back(std::move(applied));
  if (const auto places = rules.places.find(request.format); places != rules.places.end())
    append(out.notes, move_to_megatron_places(manifest, parse_megatron_places(places->second)));
  return plan.vocabulary;
}

void refuse_ties(const std::vector<Alias>& ties) {
  if (ties.empty()) return;
  fail(Code::kUnsupported,
       fmt::format("\"{}\" and \"{}\" are one tensor under two names", ties[0].first,
                   ties[0].second),
       "choose with --tied keep or drop");
}

/// What the source records stays recorded, or becomes an entry again.
void pass_records_on(Manifest& manifest, TiedPolicy policy, const AliasEntries& recorded,
                     TransformOutcome& out) {
  const std::vector<Alias> known = recorded.present(manifest);
  if (known.empty()) return;
  if (policy == TiedPolicy::kError) refuse_ties(known);
  const bool restore = policy == TiedPolicy::kKeep;
  AppliedTransformation applied{"tied", restore ? "stored again" : "recorded", known.size(), {}};
  for (const auto& [name, kept] : known)
    applied.changes.push_back(fmt::format("{} = {}", name, kept));
  out.applied.push_back(std::move(applied));
  if (restore) return;
  drop_ties(manifest, known);
  out.aliases = known;
}

/// What nobody asked to leave out: a copy in a layer of what stands outside of layers (loaders of a
/// layer that predicts further tokens look for its embedding there, and tie nothing), layers and
/// experts that are equal (a model grown out of another one repeats them), and a head that
/// config.json calls untied.
std::vector<Alias> loaders_ties(const OpenedCheckpoint& checkpoint,
                                const std::vector<Alias>& ties) {
  if (ties.empty() || says_untied(*checkpoint.directory)) return {};
  const std::vector<Alias> at_one_place = ties_at_one_place(checkpoint.manifest, ties);
  std::vector<Alias> left;
  for (const Alias& tie : ties) {
    const bool in_layers = in_numbered_layer(tie.first);
    if (in_layers && !in_numbered_layer(tie.second)) continue;
    if (in_layers && std::ranges::find(at_one_place, tie) == at_one_place.end()) continue;
    left.push_back(tie);
  }
  return left;
}

/// `on_request`: else only what loaders tie again.
void drop_found_ties(OpenedCheckpoint& checkpoint, TiedPolicy policy, bool on_request,
                     const TransferOptions& transfer, TransformOutcome& out) {
  std::vector<Alias> ties = find_ties(checkpoint.manifest, *checkpoint.directory, transfer);
  if (!on_request) ties = loaders_ties(checkpoint, ties);
  if (ties.empty()) return;
  if (policy == TiedPolicy::kError) refuse_ties(ties);
  AppliedTransformation applied{"tied", "drop", ties.size(), {}};
  for (const auto& [name, kept] : ties) {
    applied.changes.push_back(fmt::format("{} = {}", name, kept));
    out.notes.push_back({Finding::kTied, Severity::kInfo,
                         fmt::format("left out: its bytes equal those of \"{}\"", kept), "", name});
    out.dropped.push_back(name);
    for (Alias& known : out.aliases)
      if (known.second == name) known.second = kept;
  }
  drop_ties(checkpoint.manifest, ties);
  out.applied.push_back(std::move(applied));
  out.aliases.insert(out.aliases.end(), ties.begin(), ties.end());
  std::ranges::sort(out.aliases);
}

}  // namespace

TransformOutcome apply_transformations(OpenedCheckpoint& checkpoint,
                                       const Transformations& transformations, bool drop_by_default,
                                       const TransferOptions& transfer,
                                       const AliasEntries* recorded) {
  TransformOutcome out;
  std::vector<std::string> vocabulary;
  if (transformations.rules) {
    vocabulary = apply_rules(checkpoint, transformations, transfer, out);
  } else if (transformations.strict_rules) {
    fail(Code::kInvalidArgument, "--strict-rules needs --rules");
  }
  TiedPolicy tied = transformations.tied;
  if (tied == TiedPolicy::kDefault && drop_by_default) tied = TiedPolicy::kDrop;
  if (recorded != nullptr) pass_records_on(checkpoint.manifest, tied, *recorded, out);
  const bool on_request = transformations.tied != TiedPolicy::kDefault;
  if (tied == TiedPolicy::kDrop || tied == TiedPolicy::kError)
    drop_found_ties(checkpoint, tied, on_request, transfer, out);
  if (transformations.vocab_size) {
    apply_vocabulary(checkpoint, transformations, vocabulary, transfer, out);
  } else if (!transformations.vocab_tensors.empty()) {
    fail(Code::kInvalidArgument, "--vocab-tensor needs --vocab-size N");
  }
  apply_dtypes(checkpoint.manifest, transformations, out);
  if (transformations.quantize) {
    apply_quantize(checkpoint, transformations, transfer, out);
  } else if (!transformations.quantize_tensors.empty()) {
    fail(Code::kInvalidArgument, "--quantize-tensor needs --quantize SCHEME");
  }
  return out;
}

}  // namespace tessera

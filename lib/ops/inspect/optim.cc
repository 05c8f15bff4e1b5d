#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/optim.h>
#include <tessera/state/roles.h>
#include <tessera/state/state_values.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/optim_values.h"
#include "lib/ops/open/flat_options.h"
#include "lib/ops/open/value_budget.h"
#include "lib/state/model_roots.h"

// Structure first (no tensor byte), then one pass over the moments and weights.
namespace tessera {
namespace {

Note finding(Finding code, Severity severity, std::string message, std::string tensor) {
  return {code, severity, std::move(message), "", std::move(tensor)};
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

class Inspector {
 public:
  Inspector(OpenedCheckpoint& checkpoint, const OptimState& optim, const OptimOptions& options,
            OptimReport& report)
      : checkpoint_(checkpoint),
        manifest_(checkpoint.manifest),
        optim_(optim),
        options_(options),
        report_(report) {}

  OptimizerReport inspect(const OptimState* other, OpenedCheckpoint* other_checkpoint) {
    out_.root = optim_.root;
    out_.kind = optim_.kind;
    out_.dialect = dialect_name(optim_.dialect);
    for (const OptimIssue& issue : optim_.issues)
      report_.findings.push_back(
          finding(issue.code, issue.severity, issue.message, issue.parameter));
    list_groups();
    steps_ =
        options_.values ? read_steps(checkpoint_, optim_, options_.transfer) : plain_steps(optim_);
    list_parameters();
    check_leaf_sets();
    check_steps();
    check_groups();
    if (options_.values) look_at_values(other, other_checkpoint);
    return std::move(out_);
  }

 private:
  void list_groups() {
    ValueBudget budget(kValueNodes);
    const DescribeTensor describe = [&](std::uint32_t index) {
      return Value::string(manifest_.tensors[index].spec.to_string());
    };
    for (const OptimGroup& group : optim_.groups) {
      OptimReportGroup row{group.index, group.members, {}};
      for (const auto& [key, value] : group.options)
        row.options.emplace_back(key.is_string() ? key.as_string() : "?",
                                 to_json_value(value, describe, budget));
      out_.groups.push_back(std::move(row));
    }
  }

  void list_parameters() {
    std::map<std::pair<std::string, std::optional<double>>, std::uint64_t> sets;
    for (std::size_t i = 0; i < optim_.parameters.size(); ++i) {
      const OptimParameter& p = optim_.parameters[i];
      OptimReportParameter row;
      row.fqn = p.fqn;
      row.stored_key = p.stored_key;
      row.inferred = p.inferred;
      row.certain = p.certain;
      row.group = p.group;
      row.has_weight = p.weight != kNoTensor;
      row.step = steps_[i];
      row.step_origin = p.step_origin();
      std::vector<std::string> names;
      for (const OptimLeaf& leaf : p.leaves) {
        row.leaves.push_back(describe(p, leaf));
        names.push_back(leaf.name);
      }
      std::ranges::sort(names);
      ++sets[{join(names), row.step}];
      out_.parameters.push_back(std::move(row));
    }
    for (const auto& [key, count] : sets) out_.leaf_sets.push_back({key.first, key.second, count});
    std::ranges::stable_sort(out_.leaf_sets, std::greater<>(), &LeafSetRow::count);
  }

  OptimReportLeaf describe(const OptimParameter& p, const OptimLeaf& leaf) {
    OptimReportLeaf row{leaf.name, "", {}, false};
    if (leaf.tensor == kNoTensor) return row;
    const TensorSpec& spec = manifest_.tensors[leaf.tensor].spec;
    row.dtype = torch_name(spec.dtype);
    row.shape.assign(spec.shape.extents().begin(), spec.shape.extents().end());
    if (p.weight == kNoTensor) return row;
    row.matches_weight = spec.shape == manifest_.tensors[p.weight].spec.shape;
    // Counters, factored moments and projections have shapes of their own; what an unknown optimizer
    // keeps, nobody knows.
    const bool same_shape = optim_.known != nullptr && spec.shape.numel() != 1 &&
                            optim_.cut_of(p, leaf.name) == LeafCut::kElementwise;
    if (!row.matches_weight && same_shape)
      report_.findings.push_back(
          finding(Finding::kStateShape, Severity::kError,
                  fmt::format("{} is {}, its parameter {}", leaf.name, spec.shape.to_string(),
                              manifest_.tensors[p.weight].spec.shape.to_string()),
                  p.fqn));
    return row;
  }

  void check_leaf_sets() {
    std::size_t without = 0;
    for (const OptimParameter& p : optim_.parameters) {
      if (p.leaves.empty()) {
        ++without;
        continue;
      }
      if (is_copy_alone(p)) continue;
      const std::set<std::string> missing = missing_leaves(p);
      if (!missing.empty())
        report_.findings.push_back(finding(Finding::kIncompleteState, Severity::kError,
                                           fmt::format("state is only partly there: {} missing",
                                                       join({missing.begin(), missing.end()})),
                                           p.fqn));
    }
    if (without)
      report_.findings.push_back(
          finding(Finding::kNoState, Severity::kInfo,
                  fmt::format("{} of {} parameters have no state (frozen, or never stepped)",
                              without, optim_.parameters.size()),
                  ""));
  }

  /// DeepSpeed keeps an fp32 copy of buffers, frozen and tied parameters, too: what no group lists
  /// and has nothing else was never meant to be stepped.
  bool is_copy_alone(const OptimParameter& p) const {
    return !optim_.groups.empty() && p.group < 0 && !p.leaves.empty() &&
           std::ranges::all_of(p.leaves,
                               [](const OptimLeaf& leaf) { return is_master_leaf(leaf.name); });
  }

  /// Leaves that a parameter lacks of another one's set: state is half gone where it is a part of
  /// what others have. Sets of other kinds (two optimizers in one, factored moments) are no parts.
  std::set<std::string> missing_leaves(const OptimParameter& p) {
    if (leaf_sets_.empty())
      for (const OptimParameter& other : optim_.parameters)
        leaf_sets_[leaf_names(other)].insert(other.group);
    // Few sets serve many parameters.
    const std::set<std::string> mine = leaf_names(p);
    const auto [known, is_new] =
        missing_.try_emplace(std::tuple(mine, p.group, p.group_step.known()));
    if (!is_new) return known->second;
    for (const auto& [leaves, groups] : leaf_sets_) {
      if (!std::ranges::includes(leaves, mine)) continue;
      for (const std::string& leaf : leaves)
        if (!mine.contains(leaf) && must_have(p, groups.contains(p.group), leaf))
          known->second.insert(leaf);
    }
    return known->second;
  }

  static std::set<std::string> leaf_names(const OptimParameter& p) {
    std::set<std::string> names;
    for (const OptimLeaf& leaf : p.leaves) names.insert(leaf.name);
    return names;
  }

  /// Adam's leaves go together everywhere, others (amsgrad's maximum) by group.
  bool must_have(const OptimParameter& p, bool in_its_group, const std::string& leaf) const {
    if (leaf == "step") return !p.group_step.known();
    if (leaf == "exp_avg" || leaf == "exp_avg_sq") return true;
    if (optim_.known != nullptr && optim_.cut_of(p, leaf) != LeafCut::kElementwise) return false;
    return in_its_group && is_known_optimizer_leaf(leaf);
  }

  /// Parameters of one group step together: whoever differs from the majority is named.
  void check_steps() {
    std::map<std::int64_t, std::map<double, std::vector<std::size_t>>> by_group;
    for (std::size_t i = 0; i < optim_.parameters.size(); ++i)
      if (steps_[i] && std::isfinite(*steps_[i]))
        by_group[optim_.parameters[i].group][*steps_[i]].push_back(i);
    for (const auto& [group, by_step] : by_group) {
      if (by_step.size() < 2) continue;
      // Of equally frequent steps the later one: a lost step is 0.
      const auto usual = std::ranges::max_element(
          by_step, {}, [](const auto& s) { return std::pair(s.second.size(), s.first); });
      for (const auto& [step, members] : by_step) {
        if (step == usual->first) continue;
        for (std::size_t i : members) {
          odd_steps_.insert(optim_.parameters[i].fqn);
          report_.findings.push_back(
              finding(Finding::kStepDiffers, Severity::kError,
                      fmt::format("step is {:g} where {} of its group are at {:g}", step,
                                  usual->second.size(), usual->first),
                      optim_.parameters[i].fqn));
        }
      }
    }
    for (const OptimParameter& p : optim_.parameters)
      if (p.own_step.value && p.group_step.value && *p.own_step.value != *p.group_step.value)
        report_.findings.push_back(finding(Finding::kGroupStep, Severity::kWarning,
                                           fmt::format("its own step is {:g}, its group's {:g}",
                                                       *p.own_step.value, *p.group_step.value),
                                           p.fqn));
  }

  void check_groups() {
    std::vector<std::string> copies;
    for (const OptimParameter& p : optim_.parameters) {
      if (is_copy_alone(p))
        copies.push_back(p.fqn);
      else if (p.group < 0 && !optim_.groups.empty())
        report_.findings.push_back(finding(Finding::kUngrouped, Severity::kWarning,
                                           "has state but no group lists it", p.fqn));
    }
    if (!copies.empty())
      report_.findings.push_back(finding(
          Finding::kMasterAlone, Severity::kInfo,
          fmt::format("{} have an fp32 copy and no state, and no group lists them (buffers, frozen "
                      "or tied parameters), first {}",
                      copies.size(), printable(copies.front())),
          ""));
    if (!optim_.unlisted_weights.empty())
      report_.findings.push_back(finding(
          Finding::kUnlistedWeights, Severity::kInfo,
          fmt::format("no group of the optimizer lists {} parameter{} of the model, first {}: it "
                      "does not train {}",
                      optim_.unlisted_weights.size(),
                      optim_.unlisted_weights.size() == 1 ? "" : "s",
                      printable(optim_.unlisted_weights.front()),
                      optim_.unlisted_weights.size() == 1 ? "it" : "them"),
          ""));
    const bool adam = optim_.kind.starts_with("Adam");
    for (const OptimGroup& group : optim_.groups)
      for (const char* option : {"betas", "eps", "lr"})
        if (adam && !group.find(option) &&
            !(std::string_view(option) == "betas" && group.find("beta1")))
          report_.findings.push_back(
              finding(Finding::kMissingOption, Severity::kWarning,
                      fmt::format("group {} records no {}", group.index, option), ""));
  }

  void look_at_values(const OptimState* other, OpenedCheckpoint* other_checkpoint) {
    MomentScan scan = options_.parameter.empty()
                          ? scan_moments(checkpoint_, optim_, steps_, options_.transfer)
                          : scan_one();
    for (Note& note : scan.findings)  // a step that is off was reported already
      if (note.code != Finding::kZeroStep || !odd_steps_.contains(note.tensor))
        report_.findings.push_back(std::move(note));
    out_.updates = std::move(scan.updates);
    out_.update_note = scan.note;
    if (!other) return rank_by([](const UpdateRow& row) { return row.ratio; });
    const auto later = v_norms(*other_checkpoint, *other, options_.transfer);
    const auto now = v_norms(checkpoint_, optim_, options_.transfer);
    for (UpdateRow& row : out_.updates) {
      const auto a = now.find(row.fqn), b = later.find(row.fqn);
      if (a != now.end() && b != later.end() && a->second > 0) row.growth = b->second / a->second;
    }
    rank_by([](const UpdateRow& row) { return row.growth.value_or(-1); });
  }

  MomentScan scan_one() {
    OptimState one = optim_;
    std::vector<std::optional<double>> steps;
    std::erase_if(one.parameters,
                  [&](const OptimParameter& p) { return p.fqn != options_.parameter; });
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (optim_.parameters[i].fqn == options_.parameter) steps.push_back(steps_[i]);
    return scan_moments(checkpoint_, one, steps, options_.transfer);
  }

  /// The largest first, before them those that have no number any more.
  template <class Number>
  void rank_by(Number number) {
    std::ranges::stable_sort(out_.updates, std::greater<>(), [&](const UpdateRow& row) {
      const bool lost = std::isnan(row.update_norm) || std::isnan(number(row));
      return std::pair(lost, lost ? 0 : number(row));
    });
  }

  OpenedCheckpoint& checkpoint_;
  const Manifest& manifest_;
  const OptimState& optim_;
  const OptimOptions& options_;
  OptimReport& report_;
  OptimizerReport out_;
  std::vector<std::optional<double>> steps_;
  std::map<std::set<std::string>, std::set<std::int64_t>> leaf_sets_;  // -> groups that have them
  std::map<std::tuple<std::set<std::string>, std::int64_t, bool>, std::set<std::string>> missing_;
  std::set<std::string> odd_steps_;  // parameters reported for a step unlike their group's
};

}  // namespace

bool OptimReport::ok() const {
  return std::ranges::none_of(findings,
                              [](const Note& note) { return note.severity == Severity::kError; });
}

namespace {

/// Whether a value is an optimizer's `state_dict()`, or holds one in its dicts and lists.
bool holds_optimizer(const Value& value, std::size_t& looks) {
  if (looks == 0) return false;
  --looks;
  if (value.is_dict()) {
    if (looks_like_optimizer(value)) return true;
    return std::ranges::any_of(
        value.as_dict(), [&](const auto& item) { return holds_optimizer(item.second, looks); });
  }
  const bool is_list = value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
  return is_list && std::ranges::any_of(value.as_list(), [&](const Value& item) {
           return holds_optimizer(item, looks);
         });
}

/// The value that holds an optimizer's state, where it has none by itself; "": none does.
std::string holder_of_optimizer(const Manifest& manifest) {
  std::size_t looks = 100'000;  // values share parts
  for (const StateEntry& entry : manifest.state.entries)
    if (holds_optimizer(entry.value, looks)) return entry.name;
  return "";
}

}  // namespace

OptimReport inspect_optimizer(OpenedCheckpoint& checkpoint, OpenedCheckpoint* other,
                              const OptimOptions& options) {
  OptimReport report;
  report.path = checkpoint.path;
  report.format = checkpoint.manifest.format;
  if (other) report.other_path = other->path;
  expand_state_values(checkpoint.manifest);
  if (other) expand_state_values(other->manifest);
  locate_flattened_options(checkpoint, read_options(options.transfer));
  const std::vector<OptimState> states =
      canonical_optim_states(checkpoint.manifest, find_roles(checkpoint.manifest.state));
  std::vector<OptimState> others;
  if (other) others = canonical_optim_states(other->manifest, find_roles(other->manifest.state));
  if (options.values) {
    locate_optimizers(checkpoint, states, options.transfer);
    if (other) locate_optimizers(*other, others, options.transfer);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const OptimState* partner = i < others.size() ? &others[i] : nullptr;
    report.optimizers.push_back(
        Inspector(checkpoint, states[i], options, report).inspect(partner, other));
  }
  checkpoint.check_archives();
  if (other) other->check_archives();
  std::ranges::stable_sort(report.findings, {}, [](const Note& note) {
    return std::pair(-static_cast<int>(note.severity), code_text(note.code));
  });
  if (states.empty()) {
    report.held_in = holder_of_optimizer(checkpoint.manifest);
    report.notes.push_back(finding(
        Finding::kNoOptimizer, Severity::kInfo,
        report.held_in.empty()
            ? "no optimizer state in this checkpoint"
            : fmt::format(
                  "optimizer state is inside of the value \"{}\", which is not looked into: "
                  "the file that ckpt-convert --to torch-save makes has it by its names",
                  printable(report.held_in)),
        ""));
  }
  return report;
}

}  // namespace tessera

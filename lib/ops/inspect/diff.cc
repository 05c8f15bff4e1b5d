#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/ls.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lib/base/append.h"
#include "lib/ops/inspect/canonical_state.h"
#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/inspect/diff_elements.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/value_difference.h"
#include "lib/ops/open/dequantize.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

constexpr std::uint64_t kMostPrinted = std::uint64_t{1} << 22;  // parts of values that differ

using ComparedNames = std::map<std::string, std::string>;  // stored name -> name to compare by

std::string root_prefix(const std::string& root) { return root.empty() ? "" : root + "."; }

/// One checkpoint as it is compared: by today's names, with its optimizers found once.
struct Side {
  explicit Side(OpenedCheckpoint& opened)
      : checkpoint(opened),
        canonical(opened.manifest.state),
        roles(find_roles(opened.manifest.state)),
        optimizers(canonical_optim_states(opened.manifest, roles)) {}

  const Manifest& manifest() const { return checkpoint.manifest; }
  const TensorSpec& spec(std::uint32_t tensor) const { return manifest().tensors[tensor].spec; }
  bool has_dialect(OptimDialect dialect) const {
    return std::ranges::any_of(roles.optimizers,
                               [&](const OptimizerRoot& root) { return root.dialect == dialect; });
  }

  /// Read when they are asked for first.
  ContentDigests& contents(const TransferOptions& transfer) {
    if (!digests) {
      digests = in_operation(
          "diff", [&] { return std::make_unique<ContentDigests>(checkpoint, transfer); });
    }
    return *digests;
  }

  OpenedCheckpoint& checkpoint;
  CanonicalState canonical;
  Roles roles;
  std::vector<OptimState> optimizers;
  std::unique_ptr<ContentDigests> digests;
};

/// Index-keyed optimizer state under the names that FQN-keyed state has: "optim.state.0.step" ->
/// "optim.state.w.step".
ComparedNames canonical_names(const Side& side) {
  ComparedNames names;
  for (const OptimState& optim : side.optimizers) {
    if (optim.dialect != OptimDialect::kById) continue;
    for (const OptimParameter& p : optim.parameters) {
      if (!p.inferred) continue;
      for (const OptimLeaf& leaf : p.leaves)
        names[side.manifest().state.entries[leaf.entry].name] =
            root_prefix(optim.root) + "state." + p.fqn + "." + leaf.name;
    }
  }
  return names;
}

/// The members of a group as a list that does not depend on their order: names say who is meant.
Value sorted_members(std::vector<std::string> members) {
  std::ranges::sort(members);
  ValueList list;
  for (std::string& fqn : members) list.push_back(Value::string(std::move(fqn)));
  return Value::list(std::move(list));
}

/// How optimizers are brought to one form before their values are compared.
struct CommonForm {
  bool members = false;       // members of a group have no order
  bool ids = false;           // one side is keyed by id: FQNs instead
  bool by_parameter = false;  // one side repeats options per parameter: the other is spread
};

CommonForm common_form(const Side& a, const Side& b, bool canonical) {
  const auto differ = [&](OptimDialect d) { return a.has_dialect(d) != b.has_dialect(d); };
  // Names by id compare as they are when both sides have ids.
  return {canonical, canonical && differ(OptimDialect::kById),
          canonical && differ(OptimDialect::kFlat)};
}

/// "param_groups.0.lr" -> "param_groups.<fqn>.lr" for every member.
void spread_group(const std::string& root, const OptimGroup& group,
                  std::map<std::string, Value>& values) {
  const std::string prefix = fmt::format("{}param_groups.{}.", root, group.index);
  for (const auto& [key, option] : group.options) {
    if (!key.is_string()) continue;
    auto stored = values.extract(prefix + key.as_string());
    if (stored.empty()) continue;
    for (const std::string& fqn : group.members)
      values[fmt::format("{}param_groups.{}.{}", root, fqn, key.as_string())] = stored.mapped();
  }
  values.erase(prefix + "params");
}

/// Values under comparable names. Parts of tensors are compared as tensors.
std::map<std::string, Value> comparable_values(const Side& side, const CommonForm& form) {
  std::map<std::string, Value> values;
  for (const StateEntry& entry : side.manifest().state.entries)
    if (!entry.value.is_tensor()) values[entry.name] = without_parts(entry.value);
  if (!form.members) return values;
  for (const OptimState& optim : side.optimizers) {
    if (optim.dialect == OptimDialect::kFlat) continue;
    if (optim.dialect == OptimDialect::kById && !form.ids) continue;
    const std::string root = root_prefix(optim.root);
    for (const OptimGroup& group : optim.groups) {
      if (group.members.size() != group.stored_members.size()) continue;
      const auto members = values.find(fmt::format("{}param_groups.{}.params", root, group.index));
      if (members != values.end()) members->second = sorted_members(group.members);
      if (form.by_parameter) spread_group(root, group, values);
    }
  }
  return values;
}

std::string quantizer_words(const std::optional<HashedQuantizer>& quantizer) {
  if (!quantizer) return "not quantized";
  if (quantizer->is_per_channel())
    return fmt::format("{}, axis {}, scales {:.8}, zero points {:.8}", quantizer->scheme,
                       quantizer->axis, quantizer->scales, quantizer->zero_points);
  return fmt::format("{}, scale {}, zero point {}", quantizer->scheme, quantizer->scale,
                     quantizer->zero_point);
}

bool has_below(const std::map<std::string, Value>& values, const std::string& name) {
  if (name.empty()) return !values.empty();
  const auto next = values.lower_bound(name + ".");
  return next != values.end() && next->first.starts_with(name + ".");
}

class Differ {
 public:
  Differ(OpenedCheckpoint& a, OpenedCheckpoint& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    form_ = common_form(a_, b_, options.canonical_optim);
    report_.path_a = a.path;
    report_.path_b = b.path;
    report_.format_a = a.manifest.format;
    report_.format_b = b.manifest.format;
  }

  DiffReport run() {
    pair_tensors();
    if (options_.names.empty() && !(options_.stop_at_first && !report_.equal)) compare_values();
    note_uncompared();
    if (!(options_.stop_at_first && !report_.equal)) compare_elements();
    return std::move(report_);
  }

 private:
  std::map<std::string, std::uint32_t> tensors_of(const Side& side) const {
    const ComparedNames names = form_.ids ? canonical_names(side) : ComparedNames{};
    std::map<std::string, std::uint32_t> tensors;
    for (const StateEntry& entry : side.manifest().state.entries) {
      if (!entry.value.is_tensor()) continue;
      const auto other = names.find(entry.name);
      std::string name = other == names.end() ? std::string(entry.name) : other->second;
      if (!options_.names.empty() && !std::ranges::binary_search(options_.names, name)) continue;
      tensors[std::move(name)] = entry.value.tensor_index();
    }
    for (const PartRow& row : part_rows(side.manifest().state)) {
      const std::string_view entry = side.manifest().state.entries[row.entry].name.view();
      const auto other = names.find(std::string(entry));
      std::string name = (other == names.end() ? std::string(entry) : other->second) + row.suffix;
      if (!options_.names.empty() && !std::ranges::binary_search(options_.names, name)) continue;
      tensors[std::move(name)] = row.tensor;
    }
    return tensors;
  }

  void differ(TensorDiff diff) {
    report_.equal = false;
    report_.tensors.push_back(std::move(diff));
  }

  void pair_tensors() {
    const auto in_a = tensors_of(a_), in_b = tensors_of(b_);
    for (const auto& [name, i] : in_a) {
      const auto found = in_b.find(name);
      if (found == in_b.end()) {
        differ(plain(name, TensorDiff::What::kMissing, a_.spec(i).to_string(), ""));
        continue;
      }
      const TensorSpec &a = a_.spec(i), &b = b_.spec(found->second);
      if (a.shape != b.shape) {
        differ(plain(name, TensorDiff::What::kShape, a.to_string(), b.to_string()));
      } else if (a.dtype != b.dtype && !options_.as) {
        differ(plain(name, TensorDiff::What::kDType, a.to_string(), b.to_string()));
      } else if (auto quantizers = other_quantizers(i, found->second)) {
        differ(plain(name, TensorDiff::What::kQuantizer, std::move(quantizers->first),
                     std::move(quantizers->second)));
      } else {
        pairs_.push_back({name, i, found->second});
      }
    }
    for (const auto& [name, i] : in_b)
      if (!in_a.contains(name))
        differ(plain(name, TensorDiff::What::kUnexpected, "", b_.spec(i).to_string()));
  }

  /// Equal integers at another scale are other weights.
  std::optional<std::pair<std::string, std::string>> other_quantizers(std::uint32_t in_a,
                                                                      std::uint32_t in_b) {
    const StoredTensor& a = a_.manifest().tensors[in_a];
    const StoredTensor& b = b_.manifest().tensors[in_b];
    if (a.quant < 0 && b.quant < 0) return std::nullopt;
    const auto of_a = a_.contents(options_.transfer).quantizer(a);
    const auto of_b = b_.contents(options_.transfer).quantizer(b);
    if (of_a == of_b) return std::nullopt;
    return std::pair(quantizer_words(of_a), quantizer_words(of_b));
  }

  static TensorDiff plain(const std::string& name, TensorDiff::What what, std::string a,
                          std::string b) {
    TensorDiff diff;
    diff.name = name;
    diff.what = what;
    diff.a = std::move(a);
    diff.b = std::move(b);
    return diff;
  }

  void compare_values() {
    auto in_a = comparable_values(a_, form_), in_b = comparable_values(b_, form_);
    for (const auto& [name, value] : in_a) {
      const auto found = in_b.find(name);
      if (found == in_b.end()) {
        report_.values.push_back({name, ValueDiff::What::kMissing, json_of(a_, value), {}});
      } else {
        ++report_.values_compared;
        compare_value(name, value, found->second);
      }
    }
    for (const auto& [name, value] : in_b)
      if (!in_a.contains(name))
        report_.values.push_back({name, ValueDiff::What::kUnexpected, {}, json_of(b_, value)});
    if (keep_container_types(report_.format_a, report_.format_b)) compare_containers(in_a, in_b);
    if (!report_.values.empty()) report_.equal = false;
  }

  void compare_value(const std::string& name, const Value& a, const Value& b) {
    ValueDigester& of_a = a_.contents(options_.transfer).digester();
    ValueDigester& of_b = b_.contents(options_.transfer).digester();
    const bool by_number = options_.abs || options_.rel || options_.ulp || options_.as;
    const auto found = first_difference({a, of_a}, {b, of_b}, by_number);
    if (!found) {
      report_.not_compared += of_a.is_whole(a) && of_b.is_whole(b) ? 0 : 1;
      return;
    }
    ValueDiff diff{name, ValueDiff::What::kDiffers, json_of(a_, a), json_of(b_, b)};
    if (!found->path.empty()) {
      diff.path = found->path;
      if (found->a) diff.at_a = json_of(a_, *found->a);
      if (found->b) diff.at_b = json_of(b_, *found->b);
    }
    report_.values.push_back(std::move(diff));
  }

  /// As ls prints it. Only what differs is printed: the limit is for that alone.
  Value json_of(Side& side, const Value& value) {
    return json_value(side.manifest(), value, side.contents(options_.transfer).tensors(),
                      printing_);
  }

  /// Kinds of dicts that both have, where one has entries, so has the other.
  void compare_containers(const std::map<std::string, Value>& in_a,
                          const std::map<std::string, Value>& in_b) {
    auto of_a = typed_containers(a_.manifest().state), of_b = typed_containers(b_.manifest().state);
    if (!keep_top_kind(report_.format_a, report_.format_b)) {
      of_a = with_plain_top(std::move(of_a));
      of_b = with_plain_top(std::move(of_b));
    }
    std::set<std::string> names;
    for (const auto* side : {&of_a, &of_b})
      for (const auto& [name, empty] : *side) names.insert(name);
    const bool of_part = a_.checkpoint.is_part || b_.checkpoint.is_part;
    for (const std::string& name : names) {
      const bool below_a = has_below(in_a, name), below_b = has_below(in_b, name);
      const bool both_empty = !below_a && !below_b && !of_part;
      if (!both_empty && (!below_a || !below_b)) continue;  // what lies below is reported
      const auto empty_in = [&](const std::map<std::string, Value>& side) {
        const auto found = side.find(name);
        return found == side.end() ? Value::dict({}) : found->second;
      };
      const Value a = empty_in(of_a), b = empty_in(of_b);
      ValueDigester& of = a_.contents(options_.transfer).digester();
      if (!first_difference({a, of}, {b, of}, false)) continue;
      ValueDiff diff{name.empty() ? "(top)" : name, ValueDiff::What::kDiffers,
                     Value::string(dict_words(a)), Value::string(dict_words(b))};
      diff.path = a.kind() == b.kind() ? ".keys()" : ".__class__";
      diff.at_a = diff.a;
      diff.at_b = diff.b;
      report_.values.push_back(std::move(diff));
    }
  }

  /// What is no part of the content, as not every format records it: said where both sides do.
  void note_uncompared() {
    if (report_.format_a != report_.format_b) return;
    std::vector<std::string> tensors;
    for (const Pair& pair : pairs_) {
      const StoredTensor& a = a_.manifest().tensors[pair.a];
      const StoredTensor& b = b_.manifest().tensors[pair.b];
      if (a.is_parameter != b.is_parameter || a.requires_grad != b.requires_grad)
        tensors.push_back(printable(pair.name));
    }
    note_uncompared("tensor", "in being an nn.Parameter or in requires_grad", tensors);
    note_uncompared("dict of tensors", "in kind (OrderedDict, dict, ...)", other_kinds());
  }
  void note_uncompared(std::string_view what, std::string_view how,
                       const std::vector<std::string>& names) {
    if (names.empty()) return;
    std::string message = fmt::format(
        "A and B differ {}, which few formats record and is not compared: {} x {} ({}{})", how,
        names.size(), what, names[0], names.size() > 1 ? ", ..." : "");
    report_.notes.push_back({Finding::kNone, Severity::kInfo, std::move(message), "", ""});
  }

  /// Dicts that hold tensors of both sides, and are an OrderedDict, say, on one of them.
  std::vector<std::string> other_kinds() const {
    using Kinds = std::map<std::string, Value::Kind>;
    const auto kinds_of = [](const Side& side) {
      Kinds kinds;
      for (const ContainerNote& note : side.manifest().state.containers)
        kinds.emplace(dotted(note.path), note.kind);
      return kinds;
    };
    const auto kind_in = [](const Kinds& kinds, const std::string& name) {
      const auto found = kinds.find(name);
      return found == kinds.end() ? Value::Kind::kDict : found->second;
    };
    const Kinds of_a = kinds_of(a_), of_b = kinds_of(b_);
    std::set<std::string> names;
    for (const Kinds* side : {&of_a, &of_b})
      for (const auto& [name, kind] : *side) names.insert(name);
    std::vector<std::string> others;
    for (const std::string& name : names)
      if (kind_in(of_a, name) != kind_in(of_b, name) && holds_pair(name))
        others.push_back(name.empty() ? "(top)" : printable(name));
    return others;
  }
  bool holds_pair(const std::string& dict) const {
    const std::string prefix = root_prefix(dict);
    const auto at = std::ranges::lower_bound(pairs_, prefix, {}, &Pair::name);
    return at != pairs_.end() && at->name.starts_with(prefix);
  }

  static void locate(OpenedCheckpoint& checkpoint, std::vector<std::uint32_t> tensors,
                     const TransferOptions& transfer) {
    std::ranges::sort(tensors);
    ReadOptions read;
    read.memory_limit_bytes = transfer.memory_limit_bytes / 2;
    read.threads = transfer.threads;
    read.check_crc = transfer.check_crc;
    in_operation("diff", [&] { checkpoint.locate(tensors, read); });
  }

  void compare_elements() {
    std::vector<std::uint32_t> of_a, of_b;
    for (const Pair& pair : pairs_) of_a.push_back(pair.a), of_b.push_back(pair.b);
    locate(a_.checkpoint, of_a, options_.transfer);
    locate(b_.checkpoint, of_b, options_.transfer);
    TransferOptions half = looking(options_.transfer);  // the other half holds what is compared
    half.memory_limit_bytes /= 4;
    half.progress = nullptr;
    const TensorReader reader_a(a_.manifest(), *a_.checkpoint.directory, half),
        reader_b(b_.manifest(), *b_.checkpoint.directory, half);
    std::vector<ElementDiff> diffs;
    diffs.reserve(pairs_.size());
    for (const Pair& pair : pairs_)
      diffs.emplace_back(options_, DiffSide{reader_a, pair.a, a_.spec(pair.a)},
                         DiffSide{reader_b, pair.b, b_.spec(pair.b)});
    const std::vector<RunTask> tasks = runs_of(diffs);
    std::vector<DiffRun> runs(tasks.size());
    // Runs are taken in order: where the first difference is enough, all before it are compared.
    std::atomic<std::size_t> enough{tasks.size()};
    std::vector<DiffScratch> scratch(
        static_cast<std::size_t>(std::max(1, options_.transfer.threads)));
    parallel_for(tasks.size(), options_.transfer.threads, [&](std::size_t i, int worker) {
      if (i > enough) return;
      const RunTask& task = tasks[i];
      runs[i] = in_tensor(pairs_[task.pair].name, [&] {
        return diffs[task.pair].compare(task.begin, task.end,
                                        scratch[static_cast<std::size_t>(worker)]);
      });
      if (options_.stop_at_first && runs[i].count > 0) lower(enough, i);
      if (options_.transfer.progress) options_.transfer.progress->done_bytes += task_bytes(task);
    });
    join_runs(diffs, tasks, runs, std::min(enough.load() + 1, tasks.size()));
  }

  struct RunTask {
    std::size_t pair;
    std::int64_t begin, end;
  };

  std::vector<RunTask> runs_of(const std::vector<ElementDiff>& diffs) const {
    std::vector<RunTask> tasks;
    for (std::size_t i = 0; i < diffs.size(); ++i) {
      const std::int64_t numel = a_.spec(pairs_[i].a).shape.numel();
      const std::int64_t step = numel == 0 ? 1 : diffs[i].run_numel();
      for (std::int64_t at = 0; at < numel; at += step)
        tasks.push_back({i, at, std::min(numel, at + step)});
    }
    if (options_.transfer.progress)
      for (const RunTask& task : tasks) options_.transfer.progress->total_bytes += task_bytes(task);
    return tasks;
  }

  std::uint64_t task_bytes(const RunTask& task) const {
    const DType dtype = a_.spec(pairs_[task.pair].a).dtype;
    return static_cast<std::uint64_t>((task.end - task.begin) * bits(dtype) / 8);
  }

  static void lower(std::atomic<std::size_t>& bound, std::size_t to) {
    for (std::size_t now = bound; to < now && !bound.compare_exchange_weak(now, to);) {
    }
  }

  /// The first `count` runs, by tensor.
  void join_runs(const std::vector<ElementDiff>& diffs, const std::vector<RunTask>& tasks,
                 const std::vector<DiffRun>& runs, std::size_t count) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < diffs.size(); ++i) {
      DiffRun whole;
      for (; at < count && tasks[at].pair == i; ++at) whole.join(runs[at]);
      ++report_.tensors_compared;
      report_.bytes += static_cast<std::uint64_t>(a_.spec(pairs_[i].a).size_bytes());
      if (whole.count == 0) {
        ++report_.tensors_equal;
        continue;
      }
      TensorDiff found = diffs[i].report(std::move(whole));
      found.name = pairs_[i].name;
      differ(std::move(found));
    }
  }

  struct Pair {
    std::string name;
    std::uint32_t a, b;
  };
  Side a_;
  Side b_;
  const DiffOptions& options_;
  CommonForm form_;
  ValueBudget printing_{kMostPrinted};
  std::vector<Pair> pairs_;
  DiffReport report_;
};

}  // namespace

DiffReport diff_checkpoints(OpenedCheckpoint& a, OpenedCheckpoint& b, const DiffOptions& options) {
  std::vector<Note> unseen;
  if (options.dequantized)
    for (OpenedCheckpoint* side : {&a, &b}) {
      std::vector<Note> notes = view_dequantized(*side, options.transfer);
      append(unseen, notes);
    }
  DiffReport report = Differ(a, b, options).run();
  append(report.notes, unseen);
  for (const OpenedCheckpoint* side : {&a, &b}) side->check_archives();
  return report;
}

}  // namespace tessera

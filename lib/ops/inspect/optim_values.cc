#include "lib/ops/inspect/optim_values.h"

#include <fmt/format.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "lib/base/sort_unique.h"
#include "lib/ops/inspect/element_blocks.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/optim_outliers.h"

namespace tessera {
namespace {

std::uint32_t leaf_tensor(const OptimParameter& p, std::string_view leaf) {
  const OptimLeaf* found = p.find(leaf);
  return found ? found->tensor : kNoTensor;
}

bool readable(const Manifest& manifest, std::uint32_t tensor) {
  return tensor != kNoTensor && is_castable(manifest.tensors[tensor].spec.dtype);
}

/// The parameter's leaves and its weight.
void add_tensors(const OptimParameter& p, std::vector<std::uint32_t>& tensors) {
  for (const OptimLeaf& leaf : p.leaves)
    if (leaf.tensor != kNoTensor) tensors.push_back(leaf.tensor);
  if (p.weight != kNoTensor) tensors.push_back(p.weight);
}

void locate(OpenedCheckpoint& checkpoint, std::vector<std::uint32_t> tensors,
            const TransferOptions& transfer) {
  sort_unique(tensors);
  checkpoint.locate(tensors, read_options(transfer));
}

/// What Adam's update needs from the parameter's group.
struct Hyper {
  double lr = 0, eps = 1e-8, beta1 = 0, beta2 = 0;
  bool has_lr = false, has_betas = false;
};

/// An option's number: as a value, or as a tensor of one element (a learning rate that a compiled
/// step reads).
using ReadNumber = std::function<std::optional<double>(const Value*)>;

/// The tensor that an option is; kNoTensor: it is none.
std::uint32_t option_tensor(const OptimGroup& group, std::string_view option) {
  const Value* value = group.find(option);
  return value != nullptr && value->is_tensor() ? value->tensor_index() : kNoTensor;
}

void add_option_tensors(const OptimGroup& group, std::vector<std::uint32_t>& tensors) {
  for (const std::string_view option : {"lr", "eps"})
    if (const std::uint32_t tensor = option_tensor(group, option); tensor != kNoTensor)
      tensors.push_back(tensor);
}

void add_options(const OptimGroup& group, const ReadNumber& number, Hyper& hyper) {
  if (const auto lr = number(group.find("lr"))) hyper.lr = *lr, hyper.has_lr = true;
  if (const auto eps = number(group.find("eps"))) hyper.eps = *eps;
  const Value* betas = group.find("betas");
  const bool pair = betas &&
                    (betas->kind() == Value::Kind::kTuple || betas->kind() == Value::Kind::kList) &&
                    betas->as_list().size() == 2;
  if (pair && betas->as_list()[0].is_number() && betas->as_list()[1].is_number()) {
    hyper.beta1 = betas->as_list()[0].as_real();
    hyper.beta2 = betas->as_list()[1].as_real();
    hyper.has_betas = true;
  }
}

/// By group index: there may be as many groups as parameters.
class Hypers {
 public:
  Hypers(const OptimState& optim, const ReadNumber& number) {
    for (const OptimGroup& group : optim.groups) add_options(group, number, by_group_[group.index]);
  }
  const Hyper& of(const OptimParameter& p) const {
    static const Hyper none;
    const auto found = by_group_.find(p.group);
    return found == by_group_.end() ? none : found->second;
  }

 private:
  std::map<std::int64_t, Hyper> by_group_;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr std::array kNeverNegative = {
    "exp_avg_sq", "max_exp_avg_sq", "exp_inf",  "square_avg",     "acc_delta",     "sum",
    "row_var",    "col_var",        "variance", "exp_avg_sq_row", "exp_avg_sq_col"};
/// Sums or averages of squared gradients, an element each.
constexpr std::array kSecondMoments = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum",
                                       "variance"};
/// Leaves that gradients fill: all zero after a step means that they were lost.
constexpr std::array kMoments = {"exp_avg", "exp_avg_sq", "exp_inf", "square_avg", "sum"};

bool is_one_of(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Elements of one kind: how many, and where the first is.
struct Tally {
  std::int64_t count = 0, first = -1;
  void add(std::int64_t index) {
    if (count++ == 0) first = index;
  }
};

/// What is seen of one state leaf.
struct LeafHealth {
  const OptimLeaf* leaf = nullptr;
  Tally not_finite, negative;
  bool all_zero = true;
  double max = 0;            // of finite elements
  std::int64_t max_at = -1;  // its index; -1: none is above 0

  void add(std::span<const double> values, std::int64_t at) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == 0) continue;
      all_zero = false;
      const std::int64_t index = at + static_cast<std::int64_t>(i);
      if (!std::isfinite(values[i])) not_finite.add(index);
      if (std::isfinite(values[i]) && values[i] < 0) negative.add(index);
      if (std::isfinite(values[i]) && values[i] > max) max = values[i], max_at = index;
    }
  }
};

/// What one pass over a parameter finds.
struct Moments {
  std::vector<LeafHealth> leaves;
  double update = 0, weight = 0, m = 0;  // sums of squares
  Tally m_without_v;
  std::int64_t master_differs = 0, master_numel = 0;
};

class Scanner {
 public:
  Scanner(const Manifest& manifest, TensorReader::Reading& reading, std::int64_t block)
      : manifest_(manifest), reading_(reading), block_(block) {}

  Moments scan(const OptimParameter& p, const Hyper& hyper, std::optional<double> step) {
    Moments out;
    const std::uint32_t m = leaf_tensor(p, "exp_avg"), v = leaf_tensor(p, "exp_avg_sq");
    const bool adam = readable(manifest_, m) && readable(manifest_, v) && same_numel(m, v);
    if (adam) moments(p, hyper, step, out);
    for (const OptimLeaf& leaf : p.leaves) {
      if (!readable(manifest_, leaf.tensor)) continue;
      if (!adam || (leaf.tensor != m && leaf.tensor != v)) look_at(leaf, out);
      if (is_master_leaf(leaf.name) && readable(manifest_, p.weight) &&
          same_numel(leaf.tensor, p.weight))
        master(leaf.tensor, p.weight, out);
    }
    return out;
  }

 private:
  std::int64_t numel_of(std::uint32_t tensor) const {
    return manifest_.tensors[tensor].spec.shape.numel();
  }
  bool same_numel(std::uint32_t a, std::uint32_t b) const { return numel_of(a) == numel_of(b); }

  void look_at(const OptimLeaf& leaf, Moments& out) {
    LeafHealth health{.leaf = &leaf, .not_finite = {}, .negative = {}};
    DoubleReader values(reading_, manifest_, leaf.tensor);
    const std::int64_t numel = numel_of(leaf.tensor);
    for (std::int64_t at = 0; at < numel; at += block_)
      health.add(values.read(at, std::min(numel, at + block_)), at);
    out.leaves.push_back(health);
  }

  /// Both moments and the weight side by side: each is read once.
  void moments(const OptimParameter& p, const Hyper& hyper, std::optional<double> step,
               Moments& out) {
    LeafHealth m_health{.leaf = p.find("exp_avg"), .not_finite = {}, .negative = {}},
        v_health{.leaf = p.find("exp_avg_sq"), .not_finite = {}, .negative = {}};
    const std::uint32_t m_index = m_health.leaf->tensor, v_index = v_health.leaf->tensor;
    const bool weighted = readable(manifest_, p.weight) && same_numel(p.weight, m_index);
    const bool corrected = hyper.has_betas && step && *step > 0;
    const double c1 = corrected ? 1 - std::pow(hyper.beta1, *step) : 1,
                 c2 = corrected ? 1 - std::pow(hyper.beta2, *step) : 1;
    DoubleReader ms(reading_, manifest_, m_index), vs(reading_, manifest_, v_index),
        ws(reading_, manifest_, weighted ? p.weight : m_index);
    const std::int64_t numel = numel_of(m_index);
    for (std::int64_t at = 0; at < numel; at += block_) {
      const std::int64_t end = std::min(numel, at + block_);
      const auto m = ms.read(at, end), v = vs.read(at, end);
      const auto w = weighted ? ws.read(at, end) : std::span<const double>();
      m_health.add(m, at);
      v_health.add(v, at);
      for (std::size_t i = 0; i < m.size(); ++i) {
        if (weighted && std::isfinite(w[i])) out.weight += w[i] * w[i];
        if (m[i] == 0 || !std::isfinite(m[i]) || !std::isfinite(v[i])) continue;
        if (v[i] == 0) out.m_without_v.add(at + static_cast<std::int64_t>(i));
        const double update =
            hyper.lr * std::abs(m[i] / c1) / (std::sqrt(std::max(0.0, v[i]) / c2) + hyper.eps);
        out.update += update * update;
        out.m += m[i] * m[i];
      }
    }
    out.leaves.push_back(m_health);
    out.leaves.push_back(v_health);
  }

  /// Elements whose master copy, rounded to the weight's type, is not the weight.
  void master(std::uint32_t master, std::uint32_t weight, Moments& out) {
    const DType from = manifest_.tensors[master].spec.dtype,
                to = manifest_.tensors[weight].spec.dtype;
    const std::int64_t numel = manifest_.tensors[weight].spec.shape.numel();
    const auto from_bytes = static_cast<std::size_t>(element_bytes(from)),
               to_bytes = static_cast<std::size_t>(element_bytes(to));
    Bytes a, b, cast;
    for (std::int64_t at = 0; at < numel; at += block_) {
      const std::int64_t end = std::min(numel, at + block_);
      const auto count = static_cast<std::size_t>(end - at);
      a.resize(count * from_bytes), b.resize(count * to_bytes), cast.resize(count * to_bytes);
      reading_.read(master, at, end, a);
      reading_.read(weight, at, end, b);
      cast_elements(from, a, to, cast);
      for (std::size_t i = 0; i < count; ++i)
        out.master_differs += std::memcmp(&cast[i * to_bytes], &b[i * to_bytes], to_bytes) != 0;
    }
    out.master_numel += numel;
  }

  const Manifest& manifest_;
  TensorReader::Reading& reading_;
  std::int64_t block_;
};

/// "element 5 ([1,2])"
std::string place(const Manifest& manifest, const OptimLeaf& leaf, std::int64_t element) {
  const Shape& shape = manifest.tensors[leaf.tensor].spec.shape;
  std::string index;
  std::int64_t rest = element;
  for (int d = 0; d < shape.rank(); ++d) {
    index += fmt::format("{}{}", d ? "," : "", rest / shape.inner_numel(d));
    rest %= shape.inner_numel(d);
  }
  return fmt::format("element {} ([{}])", element, index);
}

const LeafHealth* health_of(const Moments& moments, std::string_view leaf) {
  for (const LeafHealth& health : moments.leaves)
    if (health.leaf->name == leaf) return &health;
  return nullptr;
}

/// NaN or Inf in what the next update is made of.
bool has_lost_its_state(const Moments& moments) {
  return std::ranges::any_of(moments.leaves, [](const LeafHealth& health) {
    return health.not_finite.count > 0 && !is_master_leaf(health.leaf->name);
  });
}

void list_second_moments(const Manifest& manifest, const OptimParameter& p, const Moments& moments,
                         std::vector<SecondMoment>& out) {
  for (const LeafHealth& health : moments.leaves)
    if (is_one_of(kSecondMoments, health.leaf->name) && health.max_at >= 0)
      out.push_back(
          {p.fqn, health.leaf->name, health.max, place(manifest, *health.leaf, health.max_at)});
}

/// `known`: the optimizer is, so that what it does with its moments is.
void judge(const Manifest& manifest, const OptimParameter& p, const Moments& m, bool known,
           std::optional<double> step, std::vector<Note>& findings) {
  const auto add = [&](Finding code, Severity severity, std::string message) {
    findings.push_back({code, severity, std::move(message), "", p.fqn});
  };
  std::string zeroed;
  bool v_zeroed = false, has_moments = false, moments_zero = true;
  for (const LeafHealth& health : m.leaves) {
    const OptimLeaf& leaf = *health.leaf;
    if (health.negative.count && is_one_of(kNeverNegative, leaf.name))
      add(Finding::kNegativeSquare, Severity::kError,
          fmt::format("{} is negative in {}, first at {}", leaf.name,
                      with_noun(health.negative.count, "element"),
                      place(manifest, leaf, health.negative.first)));
    if (health.not_finite.count)
      add(Finding::kNotFinite, Severity::kError,
          fmt::format("{} holds NaN or Inf in {}, first at {}", leaf.name,
                      with_noun(health.not_finite.count, "element"),
                      place(manifest, leaf, health.not_finite.first)));
    if (!is_one_of(kMoments, leaf.name) || manifest.tensors[leaf.tensor].spec.shape.numel() == 0)
      continue;
    has_moments = true;
    moments_zero = moments_zero && health.all_zero;
    if (!health.all_zero) continue;
    zeroed += (zeroed.empty() ? "" : ", ") + leaf.name;
    v_zeroed |= leaf.name == "exp_avg_sq";
  }
  if (!zeroed.empty() && known && step && *step > 0)
    add(Finding::kZeroMoment, Severity::kError,
        fmt::format("every element of {} is zero at step {:g}", zeroed, *step));
  if (has_moments && !moments_zero && step && *step == 0)
    add(Finding::kZeroStep, Severity::kError, "step is 0 but the moments are not zero");
  if (m.m_without_v.count && !v_zeroed)
    add(Finding::kMomentWithoutSquare, Severity::kWarning,
        fmt::format("exp_avg is not zero where exp_avg_sq is, in {}, first at {}",
                    with_noun(m.m_without_v.count, "element"), m.m_without_v.first));
  if (m.master_differs)
    add(Finding::kMasterDiffers, Severity::kWarning,
        fmt::format("the master copy rounds to another weight in {} of {}", m.master_differs,
                    with_noun(m.master_numel, "element")));
}

}  // namespace

std::optional<double> one_number(const Manifest& manifest, const TensorReader& reader,
                                 std::uint32_t tensor) {
  if (!readable(manifest, tensor) || manifest.tensors[tensor].spec.shape.numel() != 1)
    return std::nullopt;
  TensorReader::Reading reading(reader, {&tensor, 1});
  return DoubleReader(reading, manifest, tensor).read(0, 1)[0];
}

std::vector<std::optional<double>> plain_steps(const OptimState& optim) {
  std::vector<std::optional<double>> steps;
  for (const OptimParameter& p : optim.parameters)
    steps.push_back(p.own_step.known() ? p.own_step.value : p.group_step.value);
  return steps;
}

void locate_optimizers(OpenedCheckpoint& checkpoint, const std::vector<OptimState>& optimizers,
                       const TransferOptions& transfer) {
  std::vector<std::uint32_t> tensors;
  for (const OptimState& optim : optimizers) {
    for (const OptimParameter& p : optim.parameters) {
      add_tensors(p, tensors);
      for (const std::uint32_t step : {p.own_step.tensor, p.group_step.tensor})
        if (step != kNoTensor) tensors.push_back(step);
    }
    for (const OptimGroup& group : optim.groups) add_option_tensors(group, tensors);
  }
  locate(checkpoint, std::move(tensors), transfer);
}

std::vector<std::optional<double>> read_steps(OpenedCheckpoint& checkpoint, const OptimState& optim,
                                              const TransferOptions& transfer) {
  std::vector<std::optional<double>> steps = plain_steps(optim);
  const auto tensor_of = [](const OptimParameter& p) {
    return p.own_step.known() ? p.own_step.tensor : p.group_step.tensor;
  };
  std::vector<std::uint32_t> tensors;
  for (const OptimParameter& p : optim.parameters)
    if (readable(checkpoint.manifest, tensor_of(p))) tensors.push_back(tensor_of(p));
  locate(checkpoint, tensors, transfer);
  const TensorReader reader(checkpoint.manifest, *checkpoint.directory, looking(transfer));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::uint32_t tensor = tensor_of(optim.parameters[i]);
    if (const auto step = one_number(checkpoint.manifest, reader, tensor)) steps[i] = step;
  }
  return steps;
}

MomentScan scan_moments(OpenedCheckpoint& checkpoint, const OptimState& optim,
                        const std::vector<std::optional<double>>& steps,
                        const TransferOptions& transfer) {
  MomentScan scan;
  std::vector<std::uint32_t> tensors;
  for (const OptimParameter& p : optim.parameters) add_tensors(p, tensors);
  for (const OptimGroup& group : optim.groups) add_option_tensors(group, tensors);
  locate(checkpoint, tensors, transfer);
  const Manifest& manifest = checkpoint.manifest;
  const TensorReader options(manifest, *checkpoint.directory, looking(transfer));
  const Hypers hypers(optim, [&](const Value* value) -> std::optional<double> {
    if (value == nullptr || !value->is_tensor()) return number_of(value);
    return one_number(manifest, options, value->tensor_index());
  });
  // Room for both moments and the weight, were they compressed; the rest holds them as numbers.
  TransferOptions staged = looking(transfer);
  staged.memory_limit_bytes = transfer.memory_limit_bytes / 4 * 3;
  const TensorReader reader(manifest, *checkpoint.directory, staged);
  const std::int64_t block = block_elements(transfer.memory_limit_bytes / 4, transfer.threads, 3);
  std::vector<Moments> found(optim.parameters.size());
  parallel_for(found.size(), transfer.threads, [&](std::size_t i, int) {
    if (transfer.cancel) transfer.cancel->check();
    const OptimParameter& p = optim.parameters[i];
    std::vector<std::uint32_t> own;
    add_tensors(p, own);
    TensorReader::Reading reading(reader, own);
    found[i] = Scanner(manifest, reading, block).scan(p, hypers.of(p), steps[i]);
  });
  bool any_uncorrected = false, any_without_lr = false;
  std::vector<SecondMoment> seconds;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const OptimParameter& p = optim.parameters[i];
    judge(manifest, p, found[i], optim.known != nullptr, steps[i], scan.findings);
    list_second_moments(manifest, p, found[i], seconds);
    if (!readable(manifest, leaf_tensor(p, "exp_avg")) ||
        !readable(manifest, leaf_tensor(p, "exp_avg_sq")) || !readable(manifest, p.weight))
      continue;
    const Hyper& hyper = hypers.of(p);
    any_without_lr |= !hyper.has_lr;
    UpdateRow row;
    row.fqn = p.fqn;
    row.update_norm = std::sqrt(found[i].update);
    row.weight_norm = std::sqrt(found[i].weight);
    row.ratio = row.weight_norm > 0 ? row.update_norm / row.weight_norm : 0;
    row.m_norm = std::sqrt(found[i].m);
    const LeafHealth& v = *health_of(found[i], "exp_avg_sq");
    row.v_max = v.not_finite.count > 0 ? kNaN : v.max;
    if (has_lost_its_state(found[i])) row.update_norm = row.ratio = kNaN;
    row.lr = hyper.lr;
    row.bias_corrected = hyper.has_betas && steps[i] && *steps[i] > 0;
    any_uncorrected |= !row.bias_corrected;
    scan.updates.push_back(std::move(row));
  }
  for (Note& outlier : find_outliers(seconds)) scan.findings.push_back(std::move(outlier));
  if (scan.updates.empty())
    scan.note =
        "no parameter has exp_avg, exp_avg_sq and its weight here: no ranking by the next update";
  else if (any_without_lr)
    scan.note = "some groups record no lr: their updates rank as 0";
  else if (any_uncorrected)
    scan.note = "some updates are without bias correction: betas or the step are not recorded";
  return scan;
}

std::map<std::string, double> v_norms(OpenedCheckpoint& checkpoint, const OptimState& optim,
                                      const TransferOptions& transfer) {
  std::vector<std::uint32_t> tensors;
  for (const OptimParameter& p : optim.parameters)
    if (readable(checkpoint.manifest, leaf_tensor(p, "exp_avg_sq")))
      tensors.push_back(leaf_tensor(p, "exp_avg_sq"));
  locate(checkpoint, tensors, transfer);
  const TensorReader reader(checkpoint.manifest, *checkpoint.directory, looking(transfer));
  const std::int64_t block = block_elements(transfer.memory_limit_bytes, transfer.threads, 1);
  std::vector<double> sums(optim.parameters.size(), -1);
  parallel_for(sums.size(), transfer.threads, [&](std::size_t i, int) {
    const std::uint32_t tensor = leaf_tensor(optim.parameters[i], "exp_avg_sq");
    if (!readable(checkpoint.manifest, tensor)) return;
    TensorReader::Reading reading(reader, {&tensor, 1});
    DoubleReader values(reading, checkpoint.manifest, tensor);
    const std::int64_t numel = checkpoint.manifest.tensors[tensor].spec.shape.numel();
    sums[i] = 0;
    for (std::int64_t at = 0; at < numel; at += block)
      for (double v : values.read(at, std::min(numel, at + block))) sums[i] += v * v;
  });
  std::map<std::string, double> norms;
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i] >= 0) norms[optim.parameters[i].fqn] = std::sqrt(sums[i]);
  return norms;
}

}  // namespace tessera

#include "lib/ops/optim_values.h"

#include <fmt/format.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/ops/element_blocks.h"

namespace tessera {
namespace {

std::uint32_t leaf_tensor(const OptimParameter& p, std::string_view leaf) {
  const OptimLeaf* found = p.find(leaf);
  return found ? found->tensor : kNoTensor;
}

bool readable(const Manifest& manifest, std::uint32_t tensor) {
  return tensor != kNoTensor && is_castable(manifest.tensors[tensor].spec.dtype);
}

void locate(OpenedCheckpoint& checkpoint, std::vector<std::uint32_t> tensors,
            const TransferOptions& transfer) {
  std::ranges::sort(tensors);
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  ReadOptions read;
  read.memory_limit_bytes = transfer.memory_limit_bytes;
  read.threads = transfer.threads;
  read.check_crc = transfer.check_crc;
  checkpoint.locate(tensors, read);
}

/// What Adam's update needs from the parameter's group.
struct Hyper {
  double lr = 0, eps = 1e-8, beta1 = 0, beta2 = 0;
  bool has_lr = false, has_betas = false;
};

std::optional<double> number(const Value* value) {
  if (!value || !value->is_number()) return std::nullopt;
  return value->as_real();
}

Hyper hyper_of(const OptimState& optim, std::int64_t index) {
  Hyper hyper;
  for (const OptimGroup& group : optim.groups) {
    if (group.index != index) continue;
    if (const auto lr = number(group.find("lr"))) hyper.lr = *lr, hyper.has_lr = true;
    if (const auto eps = number(group.find("eps"))) hyper.eps = *eps;
    const Value* betas = group.find("betas");
    const bool pair =
        betas && (betas->kind() == Value::Kind::kTuple || betas->kind() == Value::Kind::kList) &&
        betas->as_list().size() == 2;
    if (pair && betas->as_list()[0].is_number() && betas->as_list()[1].is_number()) {
      hyper.beta1 = betas->as_list()[0].as_real();
      hyper.beta2 = betas->as_list()[1].as_real();
      hyper.has_betas = true;
    }
  }
  return hyper;
}

/// What one pass over a parameter finds.
struct Moments {
  double update = 0, weight = 0, m = 0, v_max = 0;  // sums of squares; v_max as is
  std::int64_t negative_v = 0, first_negative = -1;
  std::int64_t m_without_v = 0, first_m_without_v = -1;
  std::int64_t not_finite = 0, first_not_finite = -1;
  bool all_zero = true;
  std::int64_t master_differs = 0, master_numel = 0;
};

class Scanner {
 public:
  Scanner(const Manifest& manifest, const TensorReader& reader, std::int64_t block)
      : manifest_(manifest), reader_(reader), block_(block) {}

  Moments scan(const OptimParameter& p, const Hyper& hyper, std::optional<double> step) {
    Moments out;
    const std::uint32_t m = leaf_tensor(p, "exp_avg"), v = leaf_tensor(p, "exp_avg_sq");
    if (readable(manifest_, m) && readable(manifest_, v) && same_numel(m, v))
      moments(p, m, v, hyper, step, out);
    for (const OptimLeaf& leaf : p.leaves)
      if (is_master_leaf(leaf.name) && readable(manifest_, leaf.tensor) &&
          readable(manifest_, p.weight) && same_numel(leaf.tensor, p.weight))
        master(leaf.tensor, p.weight, out);
    return out;
  }

 private:
  bool same_numel(std::uint32_t a, std::uint32_t b) const {
    return manifest_.tensors[a].spec.shape.numel() == manifest_.tensors[b].spec.shape.numel();
  }

  void moments(const OptimParameter& p, std::uint32_t m_index, std::uint32_t v_index,
               const Hyper& hyper, std::optional<double> step, Moments& out) {
    const bool weighted = readable(manifest_, p.weight) && same_numel(p.weight, m_index);
    const bool corrected = hyper.has_betas && step && *step > 0;
    const double c1 = corrected ? 1 - std::pow(hyper.beta1, *step) : 1,
                 c2 = corrected ? 1 - std::pow(hyper.beta2, *step) : 1;
    DoubleReader ms(reader_, manifest_, m_index), vs(reader_, manifest_, v_index),
        ws(reader_, manifest_, weighted ? p.weight : m_index);
    const std::int64_t numel = manifest_.tensors[m_index].spec.shape.numel();
    for (std::int64_t at = 0; at < numel; at += block_) {
      const std::int64_t end = std::min(numel, at + block_);
      const auto m = ms.read(at, end), v = vs.read(at, end);
      const auto w = weighted ? ws.read(at, end) : std::span<const double>();
      for (std::size_t i = 0; i < m.size(); ++i) {
        const auto index = at + static_cast<std::int64_t>(i);
        if (!std::isfinite(m[i]) || !std::isfinite(v[i])) {
          count(out.not_finite, out.first_not_finite, index);
          out.all_zero = false;
          continue;
        }
        if (v[i] < 0) count(out.negative_v, out.first_negative, index);
        if (v[i] == 0 && m[i] != 0) count(out.m_without_v, out.first_m_without_v, index);
        if (m[i] != 0 || v[i] != 0) out.all_zero = false;
        const double update =
            hyper.lr * std::abs(m[i] / c1) / (std::sqrt(std::max(0.0, v[i]) / c2) + hyper.eps);
        out.update += update * update;
        out.m += m[i] * m[i];
        out.v_max = std::max(out.v_max, v[i]);
        if (weighted) out.weight += w[i] * w[i];
      }
    }
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
      reader_.read(master, at, end, a);
      reader_.read(weight, at, end, b);
      cast_elements(from, a, to, cast);
      for (std::size_t i = 0; i < count; ++i)
        out.master_differs += std::memcmp(&cast[i * to_bytes], &b[i * to_bytes], to_bytes) != 0;
    }
    out.master_numel += numel;
  }

  static void count(std::int64_t& number, std::int64_t& first, std::int64_t index) {
    if (number++ == 0) first = index;
  }

  const Manifest& manifest_;
  const TensorReader& reader_;
  std::int64_t block_;
};

void judge(const OptimParameter& p, const Moments& m, std::optional<double> step,
           std::vector<Note>& findings) {
  const auto add = [&](const char* code, const char* severity, std::string message) {
    findings.push_back({code, severity, std::move(message), "", p.fqn});
  };
  if (m.negative_v)
    add("OP006", "error",
        fmt::format("exp_avg_sq is negative in {} elements, first at {}", m.negative_v,
                    m.first_negative));
  if (m.not_finite)
    add("OP007", "error",
        fmt::format("NaN or Inf in the moments of {} elements, first at {}", m.not_finite,
                    m.first_not_finite));
  const bool has_moments = p.find("exp_avg") && p.find("exp_avg_sq");
  if (has_moments && m.all_zero && step && *step > 0)
    add("OP008", "error", fmt::format("all moments are zero at step {:g}", *step));
  if (has_moments && !m.all_zero && step && *step == 0)
    add("OP009", "error", "step is 0 but the moments are not zero");
  if (m.m_without_v)
    add("OP017", "warning",
        fmt::format("exp_avg is not zero where exp_avg_sq is, in {} elements, first at {}",
                    m.m_without_v, m.first_m_without_v));
  if (m.master_differs)
    add("OP018", "warning",
        fmt::format("the master copy rounds to another weight in {} of {} elements",
                    m.master_differs, m.master_numel));
}

}  // namespace

std::vector<std::optional<double>> plain_steps(const OptimState& optim) {
  std::vector<std::optional<double>> steps;
  for (const OptimParameter& p : optim.parameters)
    steps.push_back(p.own_step.known() ? p.own_step.value : p.group_step.value);
  return steps;
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
  const TensorReader reader(checkpoint.manifest, *checkpoint.directory, transfer);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::uint32_t tensor = tensor_of(optim.parameters[i]);
    if (!readable(checkpoint.manifest, tensor) ||
        checkpoint.manifest.tensors[tensor].spec.shape.numel() != 1)
      continue;
    steps[i] = DoubleReader(reader, checkpoint.manifest, tensor).read(0, 1)[0];
  }
  return steps;
}

MomentScan scan_moments(OpenedCheckpoint& checkpoint, const OptimState& optim,
                        const std::vector<std::optional<double>>& steps,
                        const TransferOptions& transfer) {
  MomentScan scan;
  std::vector<std::uint32_t> tensors;
  for (const OptimParameter& p : optim.parameters) {
    for (const OptimLeaf& leaf : p.leaves)
      if (leaf.tensor != kNoTensor) tensors.push_back(leaf.tensor);
    if (p.weight != kNoTensor) tensors.push_back(p.weight);
  }
  locate(checkpoint, tensors, transfer);
  const Manifest& manifest = checkpoint.manifest;
  const TensorReader reader(manifest, *checkpoint.directory, transfer);
  const std::int64_t block = block_elements(transfer.memory_limit_bytes, transfer.threads, 3);
  std::vector<Moments> found(optim.parameters.size());
  parallel_for(found.size(), transfer.threads, [&](std::size_t i, int) {
    if (transfer.cancel) transfer.cancel->check();
    const OptimParameter& p = optim.parameters[i];
    found[i] = Scanner(manifest, reader, block).scan(p, hyper_of(optim, p.group), steps[i]);
  });
  bool any_uncorrected = false, any_without_lr = false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const OptimParameter& p = optim.parameters[i];
    judge(p, found[i], steps[i], scan.findings);
    if (!readable(manifest, leaf_tensor(p, "exp_avg")) ||
        !readable(manifest, leaf_tensor(p, "exp_avg_sq")) || !readable(manifest, p.weight))
      continue;
    const Hyper hyper = hyper_of(optim, p.group);
    any_without_lr |= !hyper.has_lr;
    UpdateRow row;
    row.fqn = p.fqn;
    row.update_norm = std::sqrt(found[i].update);
    row.weight_norm = std::sqrt(found[i].weight);
    row.ratio = row.weight_norm > 0 ? row.update_norm / row.weight_norm : 0;
    row.m_norm = std::sqrt(found[i].m);
    row.v_max = found[i].v_max;
    row.lr = hyper.lr;
    row.bias_corrected = hyper.has_betas && steps[i] && *steps[i] > 0;
    any_uncorrected |= !row.bias_corrected;
    scan.updates.push_back(std::move(row));
  }
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
  const TensorReader reader(checkpoint.manifest, *checkpoint.directory, transfer);
  const std::int64_t block = block_elements(transfer.memory_limit_bytes, transfer.threads, 1);
  std::vector<double> sums(optim.parameters.size(), -1);
  parallel_for(sums.size(), transfer.threads, [&](std::size_t i, int) {
    const std::uint32_t tensor = leaf_tensor(optim.parameters[i], "exp_avg_sq");
    if (!readable(checkpoint.manifest, tensor)) return;
    DoubleReader values(reader, checkpoint.manifest, tensor);
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

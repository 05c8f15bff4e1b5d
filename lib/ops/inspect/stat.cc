#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/ops/stat.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/state/roles.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/base/append.h"
#include "lib/ops/inspect/element_blocks.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/quantile_select.h"
#include "lib/ops/inspect/stat_pass.h"
#include "lib/ops/open/dequantize.h"

namespace tessera {
namespace {

/// Values looked at in a row by all who count: they stay in the CPU's cache.
constexpr std::int64_t kLookNumel = 128 * kStatStrip;

/// What one worker holds, from tensor to tensor: fresh memory for each would cost more than the
/// looking.
struct Scratch {
  AlignedBuffer bytes;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<double> parts;
};

/// One tensor's values, block by block, as often as asked: as float where that is exact, of complex
/// elements the moduli. What fits `keep_bytes` is read once.
template <class Real>
class ValueBlocks {
 public:
  ValueBlocks(TensorReader::Reading& reading, std::uint32_t tensor, const TensorSpec& spec,
              std::int64_t block, std::uint64_t keep_bytes, Scratch& scratch)
      : scratch_(scratch),
        reading_(reading),
        tensor_(tensor),
        dtype_(spec.dtype),
        numel_(spec.shape.numel()),
        block_(block),
        width_(static_cast<std::size_t>(element_bytes(spec.dtype))),
        keep_(static_cast<std::uint64_t>(spec.size_bytes()) <= keep_bytes) {}

  /// visit(values, index of the first).
  template <class Visit>
  void each(const CancelToken* cancel, Visit&& visit) {
    for (std::int64_t at = 0; at < numel_; at += block_) {
      if (cancel) cancel->check();
      const std::int64_t end = std::min(numel_, at + block_);
      const ByteView block = bytes(at, end);
      for (std::int64_t look = at; look < end; look += kLookNumel) {
        const std::int64_t count = std::min(kLookNumel, end - look);
        visit(values(block.subspan(static_cast<std::size_t>(look - at) * width_,
                                   static_cast<std::size_t>(count) * width_)),
              look);
      }
    }
    whole_ = keep_;
  }

 private:
  ByteView bytes(std::int64_t begin, std::int64_t end) {
    const auto offset = static_cast<std::size_t>(begin) * width_;
    const auto length = static_cast<std::size_t>(end - begin) * width_;
    scratch_.bytes.reserve(static_cast<std::size_t>(keep_ ? numel_ : std::min(numel_, block_)) *
                           width_);
    const MutableBytes part(scratch_.bytes.data() + (keep_ ? offset : 0), length);
    if (!whole_) reading_.read(tensor_, begin, end, part);
    return part;
  }

  std::span<const Real> values(ByteView bytes) {
    if constexpr (std::is_same_v<Real, float>) {
      return floats_of(dtype_, bytes, scratch_.floats);
    } else {
      scratch_.doubles.resize(bytes.size() / width_);
      if (is_complex(dtype_))
        moduli(bytes, scratch_.doubles);
      else
        to_double(dtype_, bytes, scratch_.doubles);
      return scratch_.doubles;
    }
  }

  void moduli(ByteView bytes, std::vector<double>& values) {
    const DType part = dtype_ == DType::kComplex32   ? DType::kFloat16
                       : dtype_ == DType::kComplex64 ? DType::kFloat32
                                                     : DType::kFloat64;
    scratch_.parts.resize(values.size() * 2);
    to_double(part, bytes, scratch_.parts);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double re = scratch_.parts[2 * i], im = scratch_.parts[2 * i + 1];
      // hypot(Inf, NaN) is Inf; a NaN in either part is to be seen.
      values[i] = std::isnan(re) || std::isnan(im) ? std::nan("") : std::hypot(re, im);
    }
  }

  Scratch& scratch_;
  TensorReader::Reading& reading_;
  std::uint32_t tensor_;
  DType dtype_;
  std::int64_t numel_, block_;
  std::size_t width_;
  bool keep_, whole_ = false;
};

class TensorScan {
 public:
  TensorScan(const Manifest& manifest, const TensorReader& reader, const StatOptions& options,
             std::span<const double> quantiles, std::int64_t block, std::uint64_t keep_bytes,
             bool histogram, Scratch& scratch)
      : manifest_(manifest),
        reader_(reader),
        options_(options),
        quantiles_(quantiles),
        block_(block),
        keep_bytes_(keep_bytes),
        histogram_(histogram),
        scratch_(scratch) {}

  TensorStat scan(std::uint32_t index) {
    const StoredTensor& tensor = manifest_.tensors[index];
    const DType dtype = tensor.spec.dtype;
    TensorStat stat;
    stat.name = tensor.name;
    stat.dtype = torch_name(dtype);
    stat.shape.assign(tensor.spec.shape.extents().begin(), tensor.spec.shape.extents().end());
    stat.kind = tensor.kind;
    if (!is_complex(dtype) && !is_castable(dtype)) {
      stat.skipped = fmt::format("{} has no arithmetic here", stat.dtype);
      stat.count = tensor.spec.shape.numel();
    } else if (!is_complex(dtype) && is_float_exact(dtype)) {
      run<float>(index, stat);
    } else {
      run<double>(index, stat);
    }
    return stat;
  }

 private:
  template <class Real>
  void run(std::uint32_t index, TensorStat& stat) {
    const TensorSpec& spec = manifest_.tensors[index].spec;
    const bool rows = options_.row_norms && spec.shape.rank() == 2 && spec.shape.numel() > 0;
    StatPass pass(spec.dtype, rows ? spec.shape[1] : 1, rows);
    TensorReader::Reading reading(reader_, {&index, 1});
    ValueBlocks<Real> blocks(reading, index, spec, block_, keep_bytes_, scratch_);
    const CancelToken* cancel = options_.transfer.cancel;
    QuantileSelect<Real> quantiles(quantiles_, spec.shape.numel());
    blocks.each(cancel, [&](std::span<const Real> values, std::int64_t at) {
      pass.add(values, at);
      quantiles.add(values);
    });
    pass.finish(stat);
    if (options_.most_row_norms > 0)
      stat.row_norms = grouped_norms(stat.row_norms, options_.most_row_norms);
    if (pass.finite() == 0) return;
    quantiles.end_first_pass(pass.finite());
    std::vector<Filling> filling;
    if (histogram_) {
      fill(stat.histogram, pass, options_.log_histogram && !options_.both_histograms, filling);
      if (options_.both_histograms) fill(stat.log_histogram, pass, true, filling);
    }
    for (bool first = true; !quantiles.done() || (first && histogram_); first = false) {
      blocks.each(cancel, [&](std::span<const Real> values, std::int64_t) {
        quantiles.add(values);
        if (!first) return;
        for (Filling& each : filling) each.bins.add(values);
      });
      quantiles.end_pass();
    }
    for (const Filling& each : filling) {
      each.histogram.counts = each.bins.counts();
      each.histogram.zeros = each.bins.zeros();
    }
    stat.quantiles = quantiles.values();
  }

  struct Filling {
    Histogram& histogram;
    BinCounter bins;
  };

  void fill(std::optional<Histogram>& histogram, const StatPass& pass, bool logarithmic,
            std::vector<Filling>& filling) const {
    histogram = empty_histogram(pass, logarithmic);
    const auto bins = static_cast<std::size_t>(std::max(1, options_.bins));
    filling.push_back({*histogram, BinCounter(histogram->low, histogram->high, bins, logarithmic)});
  }

  static Histogram empty_histogram(const StatPass& pass, bool logarithmic) {
    Histogram out;
    out.logarithmic = logarithmic;
    out.low = out.logarithmic ? std::log10(std::max(pass.smallest_modulus(), 5e-324)) : pass.low();
    out.high = out.logarithmic ? std::log10(std::max(pass.largest_modulus(), 5e-324)) : pass.high();
    return out;
  }

  const Manifest& manifest_;
  const TensorReader& reader_;
  const StatOptions& options_;
  std::span<const double> quantiles_;
  std::int64_t block_;
  std::uint64_t keep_bytes_;
  bool histogram_;
  Scratch& scratch_;
};

std::vector<double> ascending(std::vector<double> fractions) {
  for (const double fraction : fractions)
    if (!(fraction >= 0 && fraction <= 1))
      fail(Code::kInvalidArgument, fmt::format("quantile {} is not in 0 .. 1", fraction));
  std::ranges::sort(fractions);
  fractions.erase(std::unique(fractions.begin(), fractions.end()), fractions.end());
  return fractions;
}

void judge(const TensorStat& stat, std::vector<Note>& findings) {
  const auto add = [&](Finding code, Severity severity, std::string message) {
    findings.push_back({code, severity, std::move(message), "", stat.name});
  };
  if (stat.nan)
    add(Finding::kNaN, Severity::kError,
        fmt::format("{} NaN, first at element {}", stat.nan, *stat.first_nan));
  const std::int64_t inf = stat.pos_inf + stat.neg_inf;
  // A best score begins as Inf (Lightning's ModelCheckpoint keeps it).
  const bool is_score = stat.kind == TensorKind::kOther && stat.count == 1;
  if (inf)
    add(Finding::kInf, is_score ? Severity::kInfo : Severity::kError,
        fmt::format("{} Inf ({} positive, {} negative), first at element {}", inf, stat.pos_inf,
                    stat.neg_inf, *stat.first_inf));
  if (stat.kind != TensorKind::kParam || stat.count < 2) return;
  if (stat.all_zero) {
    add(Finding::kAllZero, Severity::kWarning, "every element of this parameter is zero");
  } else if (stat.constant) {
    // Fresh norms and biases are constant: worth a look, no defect.
    add(Finding::kConstant, Severity::kInfo,
        fmt::format("every element of this parameter is {:g}", *stat.min));
  }
}

}  // namespace

bool StatReport::ok() const {
  return std::ranges::none_of(findings,
                              [](const Note& note) { return note.severity == Severity::kError; });
}

std::vector<double> grouped_norms(const std::vector<double>& norms, std::size_t most) {
  if (norms.size() <= most) return norms;
  std::vector<double> means(most);
  for (std::size_t g = 0; g < most; ++g) {
    const std::size_t begin = g * norms.size() / most, end = (g + 1) * norms.size() / most;
    double squares = 0;
    for (std::size_t i = begin; i < end; ++i) squares += norms[i] * norms[i];
    means[g] = std::sqrt(squares / static_cast<double>(end - begin));
  }
  return means;
}

namespace {

/// Tensors inside of values (modules, tuples, dicts that DCP keeps as one item) have no names.
void note_unmeasured(const Manifest& manifest, const std::vector<std::uint32_t>& measured,
                     std::vector<Note>& notes) {
  const std::set<std::uint32_t> seen(measured.begin(), measured.end());
  std::set<std::uint32_t> inner;
  std::string first;
  for (const StateEntry& entry : manifest.state.entries) {
    if (entry.value.is_tensor()) continue;
    for_each_tensor(entry.value, [&](std::uint32_t index) {
      if (seen.contains(index)) return;
      if (inner.empty()) first = entry.name;
      inner.insert(index);
    });
  }
  if (inner.empty()) return;
  notes.push_back({Finding::kNone, Severity::kWarning,
                   fmt::format("{} inside of values, first in \"{}\", {} not measured",
                               with_noun(static_cast<std::int64_t>(inner.size()), "tensor"),
                               printable(first), inner.size() == 1 ? "is" : "are"),
                   "", ""});
}

}  // namespace

StatReport stat_checkpoint(OpenedCheckpoint& checkpoint, const StatOptions& options) {
  const TransferOptions& transfer = options.transfer;
  std::vector<Note> unseen;
  if (options.dequantized) unseen = view_dequantized(checkpoint, transfer);
  // The view numbers tensors anew.
  const bool all = options.tensors.empty() || options.dequantized;
  const std::vector<std::uint32_t> leaves =
      all ? listed_tensors(checkpoint.manifest) : options.tensors;
  checkpoint.locate(leaves, read_options(transfer));
  const Manifest& manifest = checkpoint.manifest;
  StatReport report;
  report.path = checkpoint.path;
  report.format = manifest.format;
  report.quantiles = ascending(options.quantiles);
  // Half of the limit holds one kept tensor per worker, a quarter the blocks; the reader stages in
  // the rest. Blocks begin at multiples of a strip: sums do not depend on the limit.
  const int threads = std::max(1, transfer.threads);
  const std::uint64_t share = transfer.memory_limit_bytes / static_cast<std::uint64_t>(threads);
  TransferOptions staged = looking(transfer);
  staged.memory_limit_bytes = transfer.memory_limit_bytes / 4;
  const TensorReader reader(manifest, *checkpoint.directory, staged);
  const std::int64_t block =
      block_elements(transfer.memory_limit_bytes / 4, threads, 1) / kStatStrip * kStatStrip;
  report.tensors.resize(leaves.size());
  std::vector<Scratch> scratch(static_cast<std::size_t>(threads));
  if (transfer.progress)
    for (const std::uint32_t leaf : leaves)
      transfer.progress->total_bytes +=
          static_cast<std::uint64_t>(manifest.tensors[leaf].spec.size_bytes());
  parallel_for(leaves.size(), threads, [&](std::size_t i, int worker) {
    report.tensors[i] = in_tensor(manifest.tensors[leaves[i]].name, [&] {
      return TensorScan(manifest, reader, options, report.quantiles, block, share / 2,
                        leaves.size() <= options.histograms_up_to,
                        scratch[static_cast<std::size_t>(worker)])
          .scan(leaves[i]);
    });
    if (transfer.progress)
      transfer.progress->done_bytes +=
          static_cast<std::uint64_t>(manifest.tensors[leaves[i]].spec.size_bytes());
  });
  checkpoint.check_archives();
  for (const TensorStat& stat : report.tensors) judge(stat, report.findings);
  report.measured = report.tensors.size();
  for (std::uint32_t i : leaves)
    report.bytes += static_cast<std::uint64_t>(manifest.tensors[i].spec.size_bytes());
  report.notes = manifest.notes;
  append(report.notes, unseen);
  if (options.tensors.empty()) note_unmeasured(manifest, leaves, report.notes);
  return report;
}

}  // namespace tessera

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/ops/stat.h>

#include <algorithm>
#include <cmath>

#include "lib/ops/element_blocks.h"
#include "lib/ops/listing.h"
#include "lib/ops/stat_pass.h"

namespace tessera {
namespace {

/// Bins of the second pass that bounds quantiles of tensors too large to sort.
constexpr std::size_t kSketchBins = std::size_t{1} << 16;

/// Moduli of complex elements; both parts of one type.
class ModulusReader {
 public:
  ModulusReader(const TensorReader& reader, std::uint32_t tensor, DType dtype)
      : reader_(reader),
        tensor_(tensor),
        width_(static_cast<std::size_t>(element_bytes(dtype))),
        part_(dtype == DType::kComplex32   ? DType::kFloat16
              : dtype == DType::kComplex64 ? DType::kFloat32
                                           : DType::kFloat64) {}

  std::span<const double> read(std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    bytes_.resize(count * width_);
    parts_.resize(count * 2);
    values_.resize(count);
    reader_.read(tensor_, begin, end, bytes_);
    to_double(part_, bytes_, parts_);
    for (std::size_t i = 0; i < count; ++i) {
      const double re = parts_[2 * i], im = parts_[2 * i + 1];
      // hypot(Inf, NaN) is Inf; a NaN in either part is to be seen.
      values_[i] = std::isnan(re) || std::isnan(im) ? std::nan("") : std::hypot(re, im);
    }
    return values_;
  }

 private:
  const TensorReader& reader_;
  std::uint32_t tensor_;
  std::size_t width_;
  DType part_;
  Bytes bytes_;
  std::vector<double> parts_, values_;
};

class TensorScan {
 public:
  TensorScan(const Manifest& manifest, const TensorReader& reader, const StatOptions& options,
             std::int64_t block, std::uint64_t sortable)
      : manifest_(manifest),
        reader_(reader),
        options_(options),
        block_(block),
        sortable_numel_(sortable) {}

  TensorStat scan(std::uint32_t index) {
    const StoredTensor& tensor = manifest_.tensors[index];
    TensorStat stat;
    stat.name = tensor.name;
    stat.dtype = torch_name(tensor.spec.dtype);
    stat.shape.assign(tensor.spec.shape.extents().begin(), tensor.spec.shape.extents().end());
    stat.kind = tensor.kind;
    if (is_complex(tensor.spec.dtype)) {
      run(index, ModulusReader(reader_, index, tensor.spec.dtype), stat);
    } else if (is_castable(tensor.spec.dtype)) {
      run(index, DoubleReader(reader_, manifest_, index), stat);
    } else {
      stat.skipped = fmt::format("{} has no arithmetic here", stat.dtype);
      stat.count = tensor.spec.shape.numel();
    }
    return stat;
  }

 private:
  template <class Reader, class Visit>
  void each_block(Reader& reader, std::int64_t numel, Visit&& visit) {
    for (std::int64_t at = 0; at < numel; at += block_) {
      if (options_.transfer.cancel) options_.transfer.cancel->check();
      visit(reader.read(at, std::min(numel, at + block_)), at);
    }
  }

  template <class Reader>
  void run(std::uint32_t index, Reader reader, TensorStat& stat) {
    const TensorSpec& spec = manifest_.tensors[index].spec;
    const std::int64_t numel = spec.shape.numel();
    const bool rows = options_.row_norms && spec.shape.rank() == 2 && numel > 0;
    StatPass pass(spec.dtype, rows ? spec.shape[1] : 1, rows);
    // A tensor that fits is kept: its quantiles are exact and nothing is read twice.
    const bool keep = static_cast<std::uint64_t>(numel) <= sortable_numel_;
    std::vector<double> kept;
    each_block(reader, numel, [&](std::span<const double> values, std::int64_t at) {
      pass.add(values, at);
      if (keep)
        std::ranges::copy_if(values, std::back_inserter(kept),
                             [](double x) { return std::isfinite(x); });
    });
    pass.finish(stat);
    if (pass.finite() == 0) return;
    const auto again = [&](auto&& visit) {
      keep ? visit(std::span<const double>(kept))
           : each_block(reader, numel, [&](std::span<const double> v, std::int64_t) { visit(v); });
    };
    if (options_.histogram) stat.histogram = histogram(pass, again);
    if (options_.quantiles)
      keep ? exact_quantiles(kept, stat) : sketch_quantiles(pass, again, stat);
  }

  template <class Again>
  Histogram histogram(const StatPass& pass, Again&& again) {
    Histogram out;
    out.logarithmic = options_.log_histogram;
    out.low = out.logarithmic ? std::log10(std::max(pass.smallest_modulus(), 5e-324)) : pass.low();
    out.high = out.logarithmic ? std::log10(std::max(pass.largest_modulus(), 5e-324)) : pass.high();
    BinCounter counter(out.low, out.high, static_cast<std::size_t>(std::max(1, options_.bins)),
                       out.logarithmic);
    again([&](std::span<const double> values) { counter.add(values); });
    out.counts = counter.counts();
    out.zeros = counter.zeros();
    return out;
  }

  static void exact_quantiles(std::vector<double>& values, TensorStat& stat) {
    std::ranges::sort(values);
    for (double q : kQuantiles) stat.quantiles.push_back(sorted_quantile(values, q));
  }

  template <class Again>
  static void sketch_quantiles(const StatPass& pass, Again&& again, TensorStat& stat) {
    BinCounter counter(pass.low(), pass.high(), kSketchBins, false);
    again([&](std::span<const double> values) { counter.add(values); });
    const double width = (pass.high() - pass.low()) / static_cast<double>(kSketchBins);
    // The middle of the bin that holds the n-th smallest value: half a bin off at most.
    const auto nth = [&](std::int64_t n) {
      std::size_t bin = 0;
      for (std::int64_t before = counter.counts()[0]; before <= n && bin + 1 < kSketchBins;)
        before += counter.counts()[++bin];
      return pass.low() + (static_cast<double>(bin) + 0.5) * width;
    };
    for (double q : kQuantiles) {
      const double position = q * static_cast<double>(pass.finite() - 1);
      const auto below = static_cast<std::int64_t>(position);
      const double a = nth(below), b = nth(std::min(below + 1, pass.finite() - 1));
      stat.quantiles.push_back(a + (b - a) * (position - static_cast<double>(below)));
    }
    stat.quantile_error = 1.0 / static_cast<double>(kSketchBins);
  }

  const Manifest& manifest_;
  const TensorReader& reader_;
  const StatOptions& options_;
  std::int64_t block_;
  std::uint64_t sortable_numel_;
};

void judge(const TensorStat& stat, std::vector<Note>& findings) {
  const auto add = [&](const char* code, const char* severity, std::string message) {
    findings.push_back({code, severity, std::move(message), "", stat.name});
  };
  if (stat.nan)
    add("ST001", "error", fmt::format("{} NaN, first at element {}", stat.nan, *stat.first_nan));
  const std::int64_t inf = stat.pos_inf + stat.neg_inf;
  if (inf)
    add("ST002", "error",
        fmt::format("{} Inf ({} positive, {} negative), first at element {}", inf, stat.pos_inf,
                    stat.neg_inf, *stat.first_inf));
  if (stat.kind != TensorKind::kParam || stat.count < 2) return;
  if (stat.all_zero) {
    add("ST003", "warning", "every element of this parameter is zero");
  } else if (stat.constant) {
    // Fresh norms and biases are constant: worth a look, no defect.
    add("ST004", "info", fmt::format("every element of this parameter is {:g}", *stat.min));
  }
}

}  // namespace

bool StatReport::ok() const {
  return std::ranges::none_of(findings, [](const Note& note) { return note.severity == "error"; });
}

StatReport stat_checkpoint(OpenedCheckpoint& checkpoint, const StatOptions& options) {
  const TransferOptions& transfer = options.transfer;
  const std::vector<std::uint32_t> leaves = leaf_tensors(checkpoint.manifest);
  checkpoint.locate(leaves, read_options(transfer));
  const Manifest& manifest = checkpoint.manifest;
  StatReport report;
  report.path = checkpoint.path;
  report.format = manifest.format;
  // Half of the limit holds one kept tensor per worker, a quarter the blocks; the reader stages in
  // the rest.
  const int threads = std::max(1, transfer.threads);
  const std::uint64_t share = transfer.memory_limit_bytes / static_cast<std::uint64_t>(threads);
  TransferOptions staged = transfer;
  staged.memory_limit_bytes = transfer.memory_limit_bytes / 4;
  const TensorReader reader(manifest, *checkpoint.directory, staged);
  report.tensors.resize(leaves.size());
  parallel_for(leaves.size(), threads, [&](std::size_t i, int) {
    report.tensors[i] = in_tensor(manifest.tensors[leaves[i]].name, [&] {
      return TensorScan(manifest, reader, options,
                        block_elements(transfer.memory_limit_bytes / 4, threads, 1),
                        share / 2 / sizeof(double))
          .scan(leaves[i]);
    });
    if (transfer.progress)
      transfer.progress->done_bytes +=
          static_cast<std::uint64_t>(manifest.tensors[leaves[i]].spec.size_bytes());
  });
  for (const TensorStat& stat : report.tensors) judge(stat, report.findings);
  for (std::uint32_t i : leaves)
    report.bytes += static_cast<std::uint64_t>(manifest.tensors[i].spec.size_bytes());
  report.notes = manifest.notes;
  return report;
}

}  // namespace tessera

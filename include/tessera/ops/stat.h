#pragma once
// stat: numbers about the values of each tensor. Streams the tensors. Quantiles and histograms are
// exact at any size; they need a second pass over the values (up to four for float64 and wide
// integers), which rereads what does not fit the memory limit.
//
// Accumulation in fp64, compensated: count, mean, std, norms agree with a NumPy fp64 reference
// within 1e-12 relative. NaN and Inf are counted and left out of the rest. std is the population's
// (ddof 0). Complex tensors: statistics of the modulus, NaN or Inf in either part; bool: 0 and 1.
// Types without arithmetic here (4 and 6 bits, opaque bits) are listed as skipped.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct Histogram {
  bool logarithmic = false;  // bins of log10 |x|; zeros apart
  double low = 0;            // edges: value, or log10 of the modulus
  double high = 0;
  std::int64_t zeros = 0;  // logarithmic only
  std::vector<std::int64_t> counts;
};

/// Maximum number of tensors reported with a histogram.
inline constexpr std::size_t kStatInFull = 3;
inline constexpr int kMostBins = 4096;

struct StatOptions {
  std::vector<double> quantiles = {0.01, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99};  // each 0 to 1
  /// If more tensors are selected, none gets a histogram, which costs as much as all other numbers.
  std::size_t histograms_up_to = kStatInFull;
  bool log_histogram = false;
  bool both_histograms = false;  // linear ones, and TensorStat::log_histogram from the same pass
  int bins = 32;
  bool row_norms = false;          // L2 norm per index of dim 0, tensors of rank 2 only
  std::size_t most_row_norms = 0;  // of each tensor: grouped_norms(); 0: one for each row
  /// Only these, by their places in Manifest::tensors; empty: all.
  std::vector<std::uint32_t> tensors;
  bool dequantized = false;  // quantized weights as what their codes mean
  TransferOptions transfer;
};

struct TensorStat {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  TensorKind kind = TensorKind::kOther;
  std::string skipped;     // why there are no numbers; "" otherwise
  std::int64_t count = 0;  // elements
  std::int64_t finite = 0;
  std::int64_t nan = 0;
  std::int64_t pos_inf = 0;
  std::int64_t neg_inf = 0;
  std::int64_t zeros = 0;
  std::int64_t subnormal = 0;     // of the tensor's own type
  std::int64_t outside_bf16 = 0;  // finite, but rounds to Inf in bfloat16
  std::int64_t outside_fp16 =
      0;  // finite, but rounds to Inf in float16, or non-zero and rounds to zero there
  std::optional<std::int64_t> first_nan;  // flat index, row-major
  std::optional<std::int64_t> first_inf;
  // Over finite elements; empty when there are none.
  std::optional<double> min, max, mean, std, l1, l2, abs_max;
  bool constant = false;  // all elements equal (and finite), count > 1
  bool all_zero = false;
  std::vector<double> quantiles;  // StatReport::quantiles; linear interpolation as NumPy's default
  std::optional<Histogram> histogram;
  std::optional<Histogram> log_histogram;  // StatOptions::both_histograms
  std::vector<double> row_norms;
};

/// Findings are errors for NaN (ST001) and Inf (ST002), which name the tensor and the first index,
/// and warnings for parameters that are constant or all zero.
struct StatReport {
  std::string path;
  std::string format;
  std::vector<double> quantiles;  // which ones were asked for, ascending
  std::vector<TensorStat> tensors;
  std::uint64_t measured = 0;  // tensors that were looked at
  std::vector<Note> findings;
  std::uint64_t bytes = 0;
  std::vector<Note> notes;
  bool ok() const;  // no finding of Severity::kError
};

/// At most `most` numbers in place of norms: root mean squares of neighbours, in groups of one size
/// (or one more). As they are where there are no more than that.
std::vector<double> grouped_norms(const std::vector<double>& norms, std::size_t most);

StatReport stat_checkpoint(OpenedCheckpoint& checkpoint, const StatOptions& options = {});

}  // namespace tessera

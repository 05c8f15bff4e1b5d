#pragma once
// Two tensors of one shape compared element by element, run by run: runs of one tensor are compared
// by any thread in any order and then joined in the order of their elements, so that the result
// hangs on neither.
#include <tessera/ops/diff.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/aligned_buffer.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/ops/inspect/diff_sums.h"
#include "lib/ops/inspect/stat_pass.h"

namespace tessera {

/// One side: where its bytes come from and what they are.
struct DiffSide {
  const TensorReader& reader;
  std::uint32_t tensor;
  const TensorSpec& spec;
};

/// What the elements of a run come to.
struct DiffRun {
  std::int64_t count = 0;  // that differ under the mode
  std::int64_t first = 0;  // where the first of them is, and what it is
  std::string first_a, first_b;
  double max_abs = 0, max_rel = 0;
  std::int64_t nonfinite_mismatch = 0;
  CompensatedSum squares_a, squares_b, squares_diff, dot;

  void add(const PairSums& sums);
  /// Adds the run behind this one.
  void join(const DiffRun& next);
};

/// What one worker holds, from run to run.
struct DiffScratch {
  struct Side {
    AlignedBuffer bytes;
    Bytes cast;
    std::vector<float> floats;
    std::vector<double> doubles;
  };
  Side a, b;
};

class ElementDiff {
 public:
  ElementDiff(const DiffOptions& options, DiffSide a, DiffSide b);
  /// Elements that one thread compares in a row; runs begin at multiples.
  std::int64_t run_numel() const;
  DiffRun compare(std::int64_t begin, std::int64_t end, DiffScratch& scratch) const;
  /// Precondition: whole.count > 0.
  TensorDiff report(DiffRun whole) const;

 private:
  /// Elements in the type compared in, as they lie in memory and as numbers.
  template <class Real>
  struct Values {
    ByteView raw;
    std::span<const Real> numbers;
  };

  bool by_bytes() const;
  void compare_bytes(ByteView a, ByteView b, std::int64_t begin, DiffRun& run) const;
  template <class Real>
  void compare_numbers(ByteView a, ByteView b, std::int64_t begin, DiffScratch& scratch,
                       DiffRun& run) const;
  template <class Real>
  Values<Real> load(const DiffSide& side, ByteView bytes, DiffScratch::Side& scratch) const;
  template <class Real>
  void compare_strip(const Values<Real>& a, const Values<Real>& b, std::int64_t begin,
                     DiffRun& run) const;
  template <class Real>
  bool element_equal(const Values<Real>& a, const Values<Real>& b, std::size_t i) const;

  const DiffOptions& options_;
  DiffSide a_, b_;
  DType compared_;     // type of what is compared
  std::size_t width_;  // bytes of one element of it
  std::int64_t numel_;
  bool exact_;
  Tolerance tolerance_;
};

}  // namespace tessera

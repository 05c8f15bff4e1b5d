#pragma once
// Two tensors of one shape compared element by element, streamed in lockstep.
#include <tessera/ops/diff.h>
#include <tessera/reshard/tensor_reader.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// One side: where its bytes come from and what they are.
struct DiffSide {
  const TensorReader& reader;
  std::uint32_t tensor;
  const TensorSpec& spec;
};

class ElementDiff {
 public:
  ElementDiff(const DiffOptions& options, DiffSide a, DiffSide b);
  /// nullopt when equal under the mode.
  std::optional<TensorDiff> compare();

 private:
  bool by_bytes() const;
  void compare_bytes(std::int64_t begin, std::int64_t numel);
  void compare_numbers(std::int64_t begin, std::int64_t numel);
  bool element_equal(double a, double b) const;
  void note_first(std::int64_t index, std::string a, std::string b);
  /// Elements of `side` in the type compared in (DiffOptions::as, else its own), as doubles.
  void load(const DiffSide& side, ByteView bytes, Bytes& cast, std::vector<double>& values) const;
  void measure(double a, double b);
  void finish();

  const DiffOptions& options_;
  DiffSide a_, b_;
  TensorDiff out_;
  Bytes bytes_a_, bytes_b_, cast_a_, cast_b_;
  std::vector<double> values_a_, values_b_;
  double squares_a_ = 0, squares_b_ = 0, squares_diff_ = 0, dot_ = 0;
};

}  // namespace tessera

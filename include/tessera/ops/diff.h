#pragma once
// diff: whether two checkpoints of any formats and shardings hold the same. Both are streamed in
// lockstep blocks under one memory limit.
//
// Equal means: the same names, dtypes, shapes; elements equal under the mode; the same values
// (groups included). Names are those of today's rule of flattening, whatever rule a writer used.
//   exact   bit for bit (NaN equals the same NaN)
//   abs     |a - b| <= abs
//   rel     |a - b| <= rel * max(|a|, |b|); abs and rel both given: either suffices
//   ulp     at most n representable steps apart, in the tensor's own type
//   as      both rounded to a type first (then dtypes may differ), then compared under the mode
//           above
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct DiffOptions {
  std::optional<double> abs;
  std::optional<double> rel;
  std::optional<std::int64_t> ulp;
  std::optional<DType> as;
  bool nan_equal = true;        // any NaN equals any NaN in abs, rel and ulp modes
  bool stop_at_first = false;   // -q: the answer is enough
  bool dequantized = false;     // quantized weights as what their codes mean
  bool canonical_optim = true;  // index-keyed optimizers compare by FQN with those keyed by FQN
  /// Only the tensors of these names (sorted), and no other values; empty: everything.
  std::vector<std::string> names;
  TransferOptions transfer;
};

struct TensorDiff {
  enum class What : std::uint8_t { kMissing, kUnexpected, kShape, kDType, kQuantizer, kValues };
  std::string name;  // in A (kUnexpected: in B)
  What what = What::kValues;
  std::string a;  // kShape, kDType: "float32 [4,5]"; kQuantizer: scheme, scale, zero point
  std::string b;
  // kValues
  std::int64_t count = 0;  // elements that differ under the mode
  std::int64_t numel = 0;
  std::optional<std::int64_t> first;      // flat index of the first
  std::vector<std::int64_t> first_index;  // the same, per dim
  std::string first_a, first_b;
  double max_abs = 0;  // over elements finite on both sides
  double max_rel = 0;
  double l2 = 0;           // |a - b|
  double relative_l2 = 0;  // |a - b| / |a|; 0 when both are 0
  double cosine = 1;
  std::int64_t nonfinite_mismatch = 0;  // NaN or Inf on one side only, or Inf of other sign
};

struct ValueDiff {
  enum class What : std::uint8_t { kMissing, kUnexpected, kDiffers };
  std::string name;
  What what = What::kDiffers;
  Value a;  // JSON form; None when absent
  Value b;
  /// kDiffers: the first place inside that differs, ".state.lr"; "" = the values as a whole.
  std::string path = {};
  std::optional<Value> at_a = {};  // JSON form of what is there; nullopt: nothing
  std::optional<Value> at_b = {};
};

struct DiffReport {
  std::string path_a, path_b;
  std::string format_a, format_b;
  bool equal = true;
  std::uint64_t tensors_compared = 0;
  std::uint64_t tensors_equal = 0;
  std::uint64_t values_compared = 0;
  /// How many of them are equal as far as they could be followed, which is not to the end.
  std::uint64_t not_compared = 0;
  std::vector<TensorDiff> tensors;
  std::vector<ValueDiff> values;
  std::uint64_t bytes = 0;
  std::vector<Note> notes;
};

/// The tensors of one layer that differ: of "model.layers.3", or of a module without a number
/// ("model.embed").
struct LayerDiff {
  std::string name;
  std::uint64_t tensors = 0;     // that differ
  std::uint64_t other_form = 0;  // of them: on one side alone, or of another type or shape
  double relative_l2 = 0;        // |a - b| / |a| over all of them whose values were compared
  std::string most_changed;      // the one with the largest relative_l2; "" where none was compared
  double most_relative_l2 = 0;  // NaN where it got a NaN or an Inf
};
/// In natural order of their names.
std::vector<LayerDiff> diff_by_layer(const DiffReport& report);

DiffReport diff_checkpoints(OpenedCheckpoint& a, OpenedCheckpoint& b,
                            const DiffOptions& options = {});

}  // namespace tessera

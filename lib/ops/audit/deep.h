#pragma once
// The judging half of `deep`: numbers of a series, checkpoint by checkpoint.
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/ops/audit/deep_reader.h"
#include "lib/ops/audit/run.h"

namespace tessera {

/// How far a tensor went between two checkpoints, by the elements that are kept of it.
struct SampledChange {
  double change = 0;  // |after - before|
  double before = 0;  // |before|
  double cosine = 1;  // of the two
  std::optional<double> relative() const {
    return before > 0 ? std::optional(change / before) : std::nullopt;
  }
};
/// nullopt: of other sizes, or not finite.
std::optional<SampledChange> sampled_change(const TensorNumbers& before,
                                            const TensorNumbers& after);

/// Whether values look like a usual initializer's: a uniform or normal distribution whose spread
/// follows from the shape, or is a customary one.
bool looks_fresh(const TensorFact& fact, const TensorNumbers& numbers);

/// What is known of a tensor so far.
struct TensorHistory {
  std::uint64_t digest = 0;  // of the first checkpoint that had it
  std::size_t first = 0, last = 0;
  std::uint32_t seen = 0;
  bool moved = false;
  bool bad = false;        // NaN or Inf was reported
  bool is_masked = false;  // has held Inf from the start, and nothing trains it
  bool is_zero = false;
  /// One for each checkpoint so far: root of the mean second moment, bias corrected; relative change a
  /// step.
  std::vector<float> gradients, rates;
};

/// Judges one series; feed() in order, then finish().
class DeepSeries {
 public:
  DeepSeries(AuditRun& run, std::vector<AuditLayer>& layers, std::string share)
      : run_(run), layers_(layers), share_(std::move(share)) {}

  void feed(std::size_t checkpoint, const DeepNumbers& numbers);
  void finish();

 private:
  using Numbers = std::unordered_map<std::uint32_t, const TensorNumbers*>;
  /// A number of all tensors of a checkpoint against those of the checkpoints before, and the tensor
  /// that jumped most.
  struct Jump {
    double all = 0;  // sum of squares
    double ratio = 0;
    std::uint32_t id = 0;
    std::size_t jumped = 0;  // tensors that jumped as far as counts
    bool has_any = false;
  };

  void take_digests(std::size_t checkpoint, const Numbers& numbers);
  void note_bad(const AuditedCheckpoint& row, const TensorFact& fact, const TensorNumbers& t,
                TensorHistory& history);
  void check_moments(std::size_t checkpoint, const Numbers& numbers);
  bool is_reset(const TensorFact& fact, const TensorNumbers& before, const TensorNumbers& after,
                double steps) const;
  void check_reinitialized(std::size_t checkpoint, const Numbers& numbers);
  /// Compares a tensor's number with the ones of the checkpoints before, and keeps it with them.
  static void judge(std::vector<float>& before, double now, std::uint32_t id, Jump& jump);
  static void judge_gradients(const TensorFact& fact, const TensorNumbers& t,
                              TensorHistory& history, const AuditedCheckpoint& row, Jump& jump);
  /// Whether all together jumped; keeps their number.
  bool is_spike(const Jump& jump, std::vector<float>& before, double all) const;
  void report_spike(const AuditedCheckpoint& row, const Jump& jump, const char* what);
  void add_to_layers(std::size_t checkpoint, const Numbers& numbers);
  void check_never_moved();
  void check_fresh();
  /// Steps of the optimizer, else of the run, since the checkpoint before; 0: not known.
  double steps_since(std::size_t checkpoint) const;

  AuditRun& run_;
  std::vector<AuditLayer>& layers_;
  const std::string share_;
  std::map<std::string, std::size_t> layer_index_;
  std::unordered_map<std::uint32_t, TensorHistory> histories_;
  std::optional<std::size_t> before_;
  std::vector<TensorNumbers> before_numbers_;  // of that
  std::vector<float> gradients_, rates_;       // of all tensors, by checkpoint
  bool spiked_ = false, drifted_ = false;
  std::size_t bad_listed_ = 0, bad_more_ = 0;
};

}  // namespace tessera

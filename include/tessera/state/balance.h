#pragma once
// Balance: the account of a run that writes a checkpoint. What the source holds is what was written
// and what was left out, each with its reason:
//
//   source + restated = written + left out          in tensors, in values and in bytes
//
// `restated` is what other names and forms do to these numbers without a loss: fused weights,
// casts, rows added to a vocabulary, tied weights stored again. The equation is checked when the
// account is closed, and so is that every tensor left in the state has its bytes in a file of the
// plan: what nobody accounts for is an error (kInternal) before any work, never silent.
//
// An account is opened over a manifest, given every step that edits it, and closed over the plan.
// Pure; not thread-safe.
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// How much of a state. Differences may be negative.
struct StateCount {
  std::int64_t tensors = 0;        // entries that are tensors
  std::int64_t values = 0;         // all other entries
  std::int64_t inner_tensors = 0;  // inside of values, each counted where it stands
  std::int64_t bytes = 0;          // of both kinds of tensors, by their shapes and types

  StateCount& operator+=(const StateCount& other);
  StateCount& operator-=(const StateCount& other);
  bool operator==(const StateCount&) const = default;
  bool is_zero() const { return *this == StateCount{}; }
};
StateCount count_state(const Manifest& manifest);

/// A step that changed the numbers and lost nothing.
struct RestatedStep {
  std::string step;  // "rules", "--dtype"
  StateCount change;
};

/// Files and folders beside the source that belong to the same training state and are no part of
/// what was read.
struct LeftBehind {
  std::string path;         // relative to the source's folder
  std::string what;         // "optimizer state", "random number state"
  std::uint64_t bytes = 0;  // of the file, or of the files in the folder
};

/// Everything that was left out for one reason.
struct LeftOutGroup {
  std::string reason;
  StateCount count;
  std::vector<std::string> tensors;  // names
  std::vector<std::string> values;   // names; of values that hold tensors, and of attributes too
};

class Balance {
 public:
  /// Opens the account. Entries that the manifest's selection has left out already are the source's
  /// as well. Takes Manifest::left_out, as every step does.
  void open(Manifest& manifest);
  /// What the source should hold, and was lost before it could be counted.
  void add_unread(std::string name, std::string reason);
  /// After a step that only leaves out: entries without a reason of their own get this one.
  /// kInternal when anything else changed in number.
  void leave_out(Manifest& manifest, std::string_view reason);
  /// After a step that gives entries other names, types or forms, and may leave out others.
  void restate(Manifest& manifest, std::string_view step, std::string_view reason = "");
  /// Closes the account: `plan` is of `manifest` as it stands. kInternal where it does not add up.
  void close(const Manifest& manifest, const OutputPlan& plan);

  const StateCount& source() const { return source_; }
  const StateCount& written() const { return written_; }
  const std::vector<RestatedStep>& restated() const { return restated_; }
  /// By reason, in the order in which these first occurred.
  const std::vector<LeftOutGroup>& left_out() const { return groups_; }
  std::vector<LeftBehind> left_behind;

  /// source + restated = written + left out. Throws kInternal naming what does not add up.
  void check() const;
  /// An account as it was recorded: of one that does not add up kCorrupt.
  static Balance recorded(StateCount source, StateCount written, std::vector<RestatedStep> restated,
                          std::vector<LeftOutGroup> left_out);

 private:
  StateCount take(Manifest& manifest, std::string_view reason);
  void add(const LeftOut& entry, std::string_view reason);
  StateCount accounted() const;

  StateCount source_, current_, written_;
  std::vector<RestatedStep> restated_;
  std::vector<LeftOutGroup> groups_;
};

}  // namespace tessera

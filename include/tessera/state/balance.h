#pragma once
// Balance: what happens to everything the source of a conversion or save holds. It is either
// written, or left out for a stated reason:
//
//   source + restated = written + left out          in tensors, in values and in bytes
//
// `restated` is how other names and forms change these numbers without a loss: fused weights,
// casts, rows added to a vocabulary, tied weights stored again. close() checks the equation, and
// that every tensor left in the state has its bytes in a file of the plan. A difference is an error
// (kInternal) before any work; nothing is lost silently.
//
// Call open() with the manifest, leave_out() or restate() after every step that edits it, and
// close() with the plan. Pure; not thread-safe.
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Numbers of tensors, values and bytes of a state. Differences may be negative.
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

/// A file or folder next to the source that belongs to the same training state but was not read.
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
  /// Starts counting. Entries that the manifest's selection has already left out count as the
  /// source's, too. Takes Manifest::left_out, as every step does.
  void open(Manifest& manifest);
  /// Adds what the source should hold but was lost before it could be counted.
  void add_unread(std::string name, std::string reason);
  /// Call after a step that only leaves entries out: those without a reason get this one. Throws
  /// kInternal if any other number changed.
  void leave_out(Manifest& manifest, std::string_view reason);
  /// Call after a step that gives entries other names, types or forms, and may leave out others.
  void restate(Manifest& manifest, std::string_view step, std::string_view reason = "");
  /// Checks the equation. `plan` must have been made of `manifest` as it is now. Throws kInternal
  /// if the numbers do not add up.
  void close(const Manifest& manifest, const OutputPlan& plan);

  const StateCount& source() const { return source_; }
  const StateCount& written() const { return written_; }
  const std::vector<RestatedStep>& restated() const { return restated_; }
  /// One per reason, in the order in which the reasons first occurred.
  const std::vector<LeftOutGroup>& left_out() const { return groups_; }
  std::vector<LeftBehind> left_behind;

  /// source + restated = written + left out. Throws kInternal naming what does not add up.
  void check() const;
  /// A balance as it was recorded. Throws kCorrupt if it does not add up.
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

// The commit protocol as a model: a coordinator and two other ranks, any of which may crash at any
// step, and messages that may be lost or late; every reachable state is visited. What
// storage/stage.h and ops/save promise must hold in all of them.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

namespace commit_model_test {

namespace {

constexpr int kRanks = 3;  // rank 0 coordinates
constexpr int kTags = 2;   // saves of the job, to one name: the second overwrites the first

// One rank within the save in progress.
enum class Phase : std::uint8_t {
  kIdle,     // between saves
  kWriting,  // its file exists in the stage, bytes not durable
  kSynced,   // its file is durable
  kTold,     // waits for the decision (the coordinator: for all acks)
  kSealed,   // coordinator: seal written and durable, folder synced
  kRenamed,  // coordinator: visible under the final name, not durable
  kDurable,  // coordinator: parent synced, the commit point
  kFailed,   // has reported an error
  kDead,
};

struct State {
  std::array<Phase, kRanks> phase{};
  std::uint8_t tag = 1;           // of the save in progress
  std::uint8_t stage = 0;         // bit r: rank r's file is in the stage
  std::uint8_t stage_synced = 0;  // bit r: ... and durable
  std::uint8_t acks = 0;          // bit r: the coordinator has rank r's ack
  std::uint8_t in_flight = 0;     // bit r: an ack on its way
  std::uint8_t decision = 0;      // bit r: the outcome is on its way to rank r
  std::uint8_t outcome = 0;       // 0 open, 1 committed, 2 aborted
  bool sealed = false;            // the stage has its seal
  std::uint8_t visible = 0;       // tag under the final name, in the page cache
  std::uint8_t durable = 0;       // tag under the final name after a power cut; 0: none
  bool torn_publish = false;      // something incomplete became visible
  std::uint8_t acknowledged = 0;  // newest tag that save() returned for on some rank
  std::uint8_t faults = 0;        // crashes and losses so far

  auto key() const {
    std::uint64_t k = 0;
    for (const Phase p : phase) k = k * 9 + static_cast<std::uint64_t>(p);
    for (const std::uint64_t part :
         {std::uint64_t{tag}, std::uint64_t{stage}, std::uint64_t{stage_synced},
          std::uint64_t{acks}, std::uint64_t{in_flight}, std::uint64_t{decision},
          std::uint64_t{outcome}, std::uint64_t{sealed}, std::uint64_t{visible},
          std::uint64_t{durable}, std::uint64_t{torn_publish}, std::uint64_t{acknowledged},
          std::uint64_t{faults}})
      k = k * 8 + part;
    return k;
  }
};

// What a flawed implementation would do instead; the model must object to each.
enum class Flaw { kNone, kNoWaitForAcks, kNoFileSync, kAckBeforeParentSync, kNoDeadline };

constexpr std::uint8_t kMostFaults = 3;
constexpr std::uint8_t bit(int rank) { return static_cast<std::uint8_t>(1 << rank); }
constexpr std::uint8_t kAll = (1 << kRanks) - 1;

class Model {
 public:
  explicit Model(Flaw flaw) : flaw_(flaw) {}

  /// Every reachable state; the violations found, with how one came about.
  std::vector<std::string> explore() {
    State start;
    visit(start, "");
    while (!queue_.empty() && violations_.size() < 5) {
      const State state = queue_.front();
      queue_.pop_front();
      const std::size_t before = steps_;
      expand(state);
      if (steps_ == before) check_end(state);
    }
    return violations_;
  }
  std::size_t states() const { return seen_.size(); }
  std::size_t steps() const { return steps_; }
  std::size_t commits() const { return commits_; }
  std::size_t aborts() const { return aborts_; }

 private:
  void visit(const State& state, const std::string& how) {
    ++steps_;
    if (!seen_.emplace(state.key(), how).second) return;
    check(state, how);
    queue_.push_back(state);
  }

  void check(const State& s, const std::string& how) {
    if (s.torn_publish) violations_.push_back(how + ": visible before every file was durable");
    // What one rank was told is done must survive a power cut: as it is, or as a later save.
    if (s.acknowledged > s.durable) violations_.push_back(how + ": an acknowledged save is lost");
    if (s.durable > s.visible) violations_.push_back(how + ": the new name went before the old");
  }

  /// Nobody can do anything any more: all must be over, whatever crashed or was lost.
  void check_end(const State& s) {
    for (int r = 0; r < kRanks; ++r) {
      const Phase p = s.phase[static_cast<std::size_t>(r)];
      if (p != Phase::kDead && p != Phase::kFailed && p != Phase::kIdle)
        violations_.push_back(fmt::format("rank {} waits for ever", r));
    }
    if (s.outcome == 1) ++commits_;
    if (s.outcome != 1) ++aborts_;
  }

  void expand(const State& s) {
    for (int r = 0; r < kRanks; ++r) {
      step_of(s, r);
      crash(s, r);
      deliver(s, r);
    }
    power_cut(s);
  }

  static Phase at(const State& s, int r) { return s.phase[static_cast<std::size_t>(r)]; }
  static void set(State& s, int r, Phase p) { s.phase[static_cast<std::size_t>(r)] = p; }

  void step_of(const State& s, int r) {
    State next = s;
    switch (at(s, r)) {
      case Phase::kIdle:
        if (s.outcome != 0) return;  // of this save it is done
        next.stage |= bit(r);
        set(next, r, Phase::kWriting);
        return visit(next, "write");
      case Phase::kWriting: {
        if (flaw_ != Flaw::kNoFileSync) next.stage_synced |= bit(r);
        set(next, r, Phase::kSynced);
        visit(next, "sync");
        State failing = s;  // a write or a sync that fails: said instead of the ack
        set(failing, r, Phase::kFailed);
        if (r == 0) abort(failing);
        return visit(failing, "fail");
      }
      case Phase::kSynced:
        set(next, r, Phase::kTold);
        if (r == 0) next.acks |= bit(0);
        if (r != 0) next.in_flight |= bit(r);
        return visit(next, "tell");
      case Phase::kTold:
        return r == 0 ? coordinate(s) : wait(s, r);
      case Phase::kSealed:
        next.visible = s.tag;
        next.torn_publish |= s.stage_synced != kAll || !s.sealed;
        set(next, 0, Phase::kRenamed);
        if (flaw_ == Flaw::kAckBeforeParentSync) next.acknowledged = s.tag;
        return visit(next, "rename");
      case Phase::kRenamed:
        next.durable = s.tag;
        set(next, 0, Phase::kDurable);
        return visit(next, "sync the parent");
      case Phase::kDurable:
        next.acknowledged = s.tag;
        next.outcome = 1;
        next.decision = kAll & ~bit(0);
        set(next, 0, Phase::kIdle);
        return visit(next, "acknowledge");
      case Phase::kFailed:
      case Phase::kDead:
        return;
    }
  }

  /// The coordinator waits for acks; a failed or dead rank, and a lost message, show as a deadline.
  void coordinate(const State& s) {
    const bool enough = s.acks == kAll || flaw_ == Flaw::kNoWaitForAcks;
    State next = s;
    if (enough) {
      next.sealed = true;
      set(next, 0, Phase::kSealed);
      visit(next, "seal");
    }
    if (s.acks == kAll || flaw_ == Flaw::kNoDeadline) return;
    abort(next);
    set(next, 0, Phase::kFailed);
    visit(next, "deadline");
  }

  void wait(const State& s, int r) {
    if (flaw_ == Flaw::kNoDeadline) return;
    // The outcome never comes: this rank reports that it does not know.
    const bool none_coming =
        (s.decision & bit(r)) == 0 && (s.outcome != 0 || at(s, 0) == Phase::kDead);
    if (!none_coming) return;
    State next = s;
    set(next, r, Phase::kFailed);
    visit(next, "deadline");
  }

  static void abort(State& s) {
    s.stage = s.stage_synced = 0;
    s.sealed = false;
    s.outcome = 2;
    s.decision = kAll & ~bit(0);
  }

  void deliver(const State& s, int r) {
    if ((s.in_flight & bit(r)) != 0) {
      State next = s;
      next.in_flight &= static_cast<std::uint8_t>(~bit(r));
      if (at(s, 0) != Phase::kDead && at(s, 0) != Phase::kFailed) next.acks |= bit(r);
      visit(next, "ack arrives");
      lose(s, next.in_flight, s.decision);
    }
    if ((s.decision & bit(r)) != 0) {
      State next = s;
      next.decision &= static_cast<std::uint8_t>(~bit(r));
      if (at(s, r) != Phase::kDead && at(s, r) != Phase::kFailed)
        set(next, r, s.outcome == 1 ? Phase::kIdle : Phase::kFailed);
      visit(next, "outcome arrives");
      lose(s, s.in_flight, next.decision);
    }
  }

  void lose(const State& s, std::uint8_t in_flight, std::uint8_t decision) {
    if (s.faults >= kMostFaults) return;
    State next = s;
    next.in_flight = in_flight;
    next.decision = decision;
    ++next.faults;
    visit(next, "lost");
  }

  void crash(const State& s, int r) {
    if (s.faults >= kMostFaults || at(s, r) == Phase::kDead) return;
    State next = s;
    ++next.faults;
    set(next, r, Phase::kDead);
    visit(next, "crash");
  }

  /// All processes and the page cache are gone; the job starts again and saves its next tag, or
  /// this one, over what is there.
  void power_cut(const State& s) {
    if (s.faults < kMostFaults) {
      // Either the rename had reached the disk by itself, or it had not.
      for (const bool written : {false, true}) {
        if (written && s.visible == s.durable) continue;
        State next;
        next.tag = s.tag;
        next.faults = static_cast<std::uint8_t>(s.faults + 1);
        next.durable = next.visible = written ? s.visible : s.durable;
        next.acknowledged = s.acknowledged;
        next.torn_publish = s.torn_publish;
        visit(next, "power cut");
      }
    }
    const bool all_done = s.outcome == 1 && s.phase == std::array<Phase, kRanks>{};
    if (!all_done || s.tag == kTags) return;
    State next;
    next.tag = static_cast<std::uint8_t>(s.tag + 1);
    next.faults = s.faults;
    next.durable = s.durable;
    next.visible = s.visible;
    next.acknowledged = s.acknowledged;
    visit(next, "next save");
  }

  Flaw flaw_;
  std::unordered_map<std::uint64_t, std::string> seen_;
  std::deque<State> queue_;
  std::vector<std::string> violations_;
  std::size_t steps_ = 0;
  std::size_t commits_ = 0;
  std::size_t aborts_ = 0;
};

std::string first_of(const std::vector<std::string>& list) { return list.empty() ? "" : list[0]; }

}  // namespace

TEST_CASE("no crash and no lost message of three ranks breaks the commit protocol") {
  Model model(Flaw::kNone);
  const auto violations = model.explore();
  INFO(first_of(violations));
  REQUIRE(violations.empty());
  fmt::print(
      "commit model: {} states, {} steps, up to {} crashes and losses, {} ends committed, {} not; "
      "0 "
      "violations\n",
      model.states(), model.steps(), kMostFaults, model.commits(), model.aborts());
  REQUIRE(model.states() > 10'000);
  REQUIRE(model.commits() > 0);
  REQUIRE(model.aborts() > 0);
}

TEST_CASE("the model of the commit protocol objects to each missing step") {
  CHECK(first_of(Model(Flaw::kNoWaitForAcks).explore()).find("visible before") !=
        std::string::npos);
  CHECK(first_of(Model(Flaw::kNoFileSync).explore()).find("visible before") != std::string::npos);
  CHECK(first_of(Model(Flaw::kAckBeforeParentSync).explore()).find("is lost") != std::string::npos);
  CHECK(first_of(Model(Flaw::kNoDeadline).explore()).find("for ever") != std::string::npos);
}

}  // namespace commit_model_test

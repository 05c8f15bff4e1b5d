// A save or load that is cancelled on one rank, at any moment: every rank does the same, the
// checkpoint is the old one or the new one, and so is the memory.
#include <fmt/format.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "tests/support/live_trainer.h"

namespace live_cancel_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr int kRanks = 3;

/// Cancels before its n-th operation.
class CancelAt final : public ObservedFileSystem {
 public:
  CancelAt(FileSystem& inner, CancelToken& token, int at)
      : ObservedFileSystem(inner), token_(token), left_(at) {}
  bool came() const { return left_ <= 0; }

 protected:
  void before(const IoEvent&) const override {
    if (--left_ == 0) token_.cancel();
  }

 private:
  CancelToken& token_;
  mutable std::atomic<int> left_;
};

void save_whole(FileSystem& fs, float value) {
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), kRanks);
    trainer.set(value);
    save("/run/a", trainer.state(), ranks, to(fs));
  }));
}

/// The value that every element of every rank has; -1 where they differ.
float value_of(const std::vector<std::unique_ptr<Trainer>>& trainers) {
  for (const auto& trainer : trainers)
    if (!trainer->is(trainers[0]->step)) return -1;
  return trainers[0]->step;
}

std::vector<std::unique_ptr<Trainer>> trainers_at(float value) {
  std::vector<std::unique_ptr<Trainer>> made;
  for (int r = 0; r < kRanks; ++r) {
    made.push_back(std::make_unique<Trainer>(r, kRanks));
    made.back()->set(value);
  }
  return made;
}

float saved_value(FileSystem& fs) {
  const auto trainers = trainers_at(0);
  LoadPolicy policy;
  policy.file_system = &fs;
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    load("/run/a", trainers[static_cast<std::size_t>(ranks.rank())]->state(), ranks, policy);
  }));
  return value_of(trainers);
}

/// Whether all ranks threw; they do the same.
bool all_cancelled(const std::vector<std::string>& thrown) {
  for (const std::string& message : thrown) {
    REQUIRE(message.empty() == thrown[0].empty());
    if (!message.empty()) REQUIRE(message.find("stopped on request") != std::string::npos);
  }
  return !thrown[0].empty();
}

}  // namespace

TEST_CASE("a save that one rank cancels at its n-th operation is one that all have, or none") {
  const int canceller = GENERATE(0, 1);
  const bool in_background = GENERATE(false, true);
  CAPTURE(canceller, in_background);
  int cancelled = 0, published = 0;
  for (int n = 1;; ++n) {
    CAPTURE(n);
    REQUIRE(n < 500);
    MemoryFileSystem fs;
    save_whole(fs, 1);
    CancelToken token;
    CancelAt cancelling(fs, token, n);
    const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
      Trainer trainer(ranks.rank(), kRanks);
      trainer.set(2);
      const bool cancels = ranks.rank() == canceller;
      SaveOptions options = to(cancels ? static_cast<FileSystem&>(cancelling) : fs);
      options.force = true;
      if (cancels) options.cancel = &token;
      if (in_background)
        save_async("/run/a", trainer.state(), ranks, options).wait();
      else
        save("/run/a", trainer.state(), ranks, options);
    });
    const bool failed = all_cancelled(thrown);
    ++(failed ? cancelled : published);
    REQUIRE(saved_value(fs) == (failed ? 1 : 2));
    REQUIRE(fs.open_directory("/run")->list().size() == 1);
    if (!cancelling.came()) break;
  }
  CHECK(cancelled > 5);
  CHECK(published >= 1);
}

TEST_CASE("a load that one rank cancels at its n-th operation fills all of the memory, or none") {
  const auto safety = GENERATE(LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace);
  const int canceller = GENERATE(0, 2);
  CAPTURE(static_cast<int>(safety), canceller);
  MemoryFileSystem fs;
  save_whole(fs, 1);
  int cancelled = 0, partly = 0;
  for (int n = 1;; ++n) {
    CAPTURE(n);
    REQUIRE(n < 500);
    CancelToken token;
    CancelAt cancelling(fs, token, n);
    const auto trainers = trainers_at(5);
    const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
      const bool cancels = ranks.rank() == canceller;
      LoadPolicy policy;
      policy.safety = safety;
      policy.file_system = cancels ? static_cast<FileSystem*>(&cancelling) : &fs;
      policy.memory_limit_bytes = 1;  // the smallest blocks there are
      if (cancels) policy.cancel = &token;
      load("/run/a", trainers[static_cast<std::size_t>(ranks.rank())]->state(), ranks, policy);
    });
    const bool failed = all_cancelled(thrown);
    if (thrown[0].find("partly filled") != std::string::npos) {
      ++partly;
    } else {
      cancelled += failed;
      REQUIRE(value_of(trainers) == (failed ? 5 : 1));
    }
    if (!cancelling.came()) break;
  }
  CHECK(cancelled >= 1);
  CHECK((partly > 0) == (safety == LoadSafety::kInPlace));
}

TEST_CASE("a load is cancelled before it has begun, and until nothing is left but to land") {
  const auto safety = GENERATE(LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace);
  const bool at_end = GENERATE(false, true);
  const bool alone = GENERATE(false, true);  // rank 1 has nothing to read
  CAPTURE(static_cast<int>(safety), at_end, alone);
  MemoryFileSystem fs;
  std::vector<float> memory(8, 1);
  const auto state_of = [&](RankGroup& ranks) {
    LiveState state;
    if (ranks.rank() == 0 || !alone)
      state.add_piece("w", {DType::kFloat32, {alone ? 8 : 16}},
                      {Chunk::whole_of({{8 * ranks.rank()}, {8}}), memory.data(), {}});
    return state;
  };
  require_quiet(
      on_ranks(2, [&](RankGroup& ranks) { save("/run/a", state_of(ranks), ranks, to(fs)); }));
  memory.assign(8, 5);
  CancelToken token;
  if (!at_end) token.cancel();
  const auto thrown = on_ranks(2, [&](RankGroup& ranks) {
    LoadPolicy policy;
    policy.safety = safety;
    policy.file_system = &fs;
    if (ranks.rank() == 1) policy.cancel = &token;
    LiveState state = state_of(ranks);
    state.check_loaded = [&](const std::vector<std::string>&) { token.cancel(); };
    load("/run/a", state, ranks, policy);
  });
  CHECK(all_cancelled(thrown));
  CHECK(thrown[0].find("partly filled") == std::string::npos);
  CHECK(memory == std::vector<float>(8, 5));
}

}  // namespace live_cancel_test

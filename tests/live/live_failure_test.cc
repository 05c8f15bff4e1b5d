// A rank that fails or dies at any point of a save or a load: every rank reports it, the checkpoint
// before stays whole, and nothing is left that the next save would not clear away.
#include <fmt/format.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <map>

#include "tests/support/live_job.h"

namespace live_failure_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kRanks = 3;

struct Memory {
  explicit Memory(int rank_) : rank(rank_), rows(24), bias(6) {}
  LiveState state() {
    LiveState made;
    made.add_piece("w", {DType::kFloat32, {kRanks * 6, 4}},
                   {Chunk::whole_of({{rank * 6, 0}, {6, 4}}), rows.data(), {}});
    made.add("bias", {DType::kFloat32, {6}, {}, bias.data()});
    made.add_value("step", Value::integer(static_cast<std::int64_t>(bias[0])));
    return made;
  }
  void set(float value) {
    rows.assign(rows.size(), value);
    bias.assign(bias.size(), value);
  }
  bool is(float value) const {
    return rows == std::vector<float>(rows.size(), value) &&
           bias == std::vector<float>(bias.size(), value);
  }
  int rank;
  std::vector<float> rows, bias;
};

SaveOptions options_for(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  options.force = true;
  return options;
}
LoadPolicy policy_for(FileSystem& fs, LoadSafety safety = LoadSafety::kAside) {
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.safety = safety;
  return policy;
}

void save_value(FileSystem& fs, float value) {
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    Memory memory(ranks.rank());
    memory.set(value);
    save("/run/a", memory.state(), ranks, options_for(fs));
  }));
}

/// What /run/a holds, by loading it on all ranks; -1 when ranks differ.
float saved_value(FileSystem& fs) {
  std::vector<float> values(kRanks, -1);
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    Memory memory(ranks.rank());
    load("/run/a", memory.state(), ranks, policy_for(fs));
    if (memory.is(memory.bias[0])) values[static_cast<std::size_t>(ranks.rank())] = memory.bias[0];
  }));
  return values == std::vector<float>(kRanks, values[0]) ? values[0] : -1;
}

/// Forwards to a group, and leaves it for good at the n-th call.
class MortalRank final : public RankGroup {
 public:
  MortalRank(std::unique_ptr<RankGroup> inner, int dies_at)
      : inner_(std::move(inner)), left_(dies_at) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    if (inner_ && --left_ == 0) inner_.reset();
    if (!inner_) throw std::runtime_error("dead");
    return inner_->all_gather(bytes);
  }
  bool dead() const { return !inner_; }

 private:
  std::unique_ptr<RankGroup> inner_;
  int rank_ = inner_->rank();
  int left_;
};

/// Runs `job` with rank 1 dying at its first collective call, then at its second, and so on until
/// it lives through all of them; the survivors of each report it within 5 s. `judge` is told
/// whether it died, and what each rank threw. Returns how often it did.
int deaths_at_any_call(
    const std::function<void(RankGroup&)>& job,
    const std::function<void(bool died, const std::vector<std::string>& thrown)>& judge) {
  for (int at = 1;; ++at) {
    INFO("call " << at);
    REQUIRE(at < 100);
    auto groups = thread_ranks(kRanks);
    std::vector<std::unique_ptr<RankGroup>> mortal;
    for (int r = 0; r < kRanks; ++r)
      mortal.push_back(std::make_unique<MortalRank>(std::move(groups[static_cast<std::size_t>(r)]),
                                                    r == 1 ? at : 0));
    const auto start = std::chrono::steady_clock::now();
    const auto thrown = on_ranks(mortal, job);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
    const bool died = static_cast<MortalRank&>(*mortal[1]).dead();
    if (!died) require_quiet(thrown);
    for (const int survivor : {0, 2})
      if (died) CHECK_THAT(thrown[static_cast<std::size_t>(survivor)], Contains("rank 1"));
    judge(died, thrown);
    if (!died) return at - 1;
  }
}

bool says_partly_filled(const std::string& message) {
  return message.find("partly filled") != std::string::npos;
}

constexpr LoadSafety kSafeties[] = {LoadSafety::kAside, LoadSafety::kReadTwice,
                                    LoadSafety::kInPlace};

/// Of every rank, all zero.
std::vector<std::unique_ptr<Memory>> fresh_memory() {
  std::vector<std::unique_ptr<Memory>> memory;
  for (int r = 0; r < kRanks; ++r) memory.push_back(std::make_unique<Memory>(r));
  return memory;
}

std::map<std::string, std::string> visible(const MemoryFileSystem& fs) {
  auto all = fs.contents("/run");
  std::erase_if(all, [](const auto& entry) { return entry.first.starts_with("."); });
  return all;
}

}  // namespace

TEST_CASE("the n-th operation of one rank's disk fails: every rank throws, old or new stays") {
  for (const int culprit : {0, 1}) {
    for (const bool sticky : {false, true}) {
      MemoryFileSystem fs;
      save_value(fs, 1);
      const auto old = visible(fs);
      int failures = 0;
      for (std::uint64_t n = 1;; ++n) {
        INFO("rank " << culprit << ", operation " << n << (sticky ? " and all later" : ""));
        REQUIRE(n < 2000);
        std::uint64_t faults = 0;
        const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
          Memory memory(ranks.rank());
          memory.set(2);
          FaultyFileSystem faulty(
              fs, {.at = ranks.rank() == culprit ? n : 0, .error = EIO, .sticky = sticky});
          try {
            save("/run/a", memory.state(), ranks, options_for(faulty));
          } catch (...) {
            if (ranks.rank() == culprit) faults = faulty.faults();
            throw;
          }
          if (ranks.rank() == culprit) faults = faulty.faults();
        });
        for (const std::string& message : thrown) REQUIRE(message.empty() == thrown[0].empty());
        const auto now = visible(fs);
        if (thrown[0].empty()) {  // past the last one, or one that does not matter
          REQUIRE(saved_value(fs) == 2);
        } else {
          ++failures;
          CHECK_THAT(thrown[0], Contains("rank " + std::to_string(culprit)));
          if (now != old) REQUIRE(saved_value(fs) == 2);
        }
        save_value(fs, 1);  // whatever was left is no obstacle
        for (const FileInfo& info : fs.open_directory("/run")->list()) REQUIRE(info.name == "a");
        if (faults == 0) break;
      }
      CHECK(failures >= 6);
    }
  }
}

TEST_CASE("a rank that dies at any call of a save: survivors report, the old checkpoint stays") {
  MemoryFileSystem fs;
  save_value(fs, 1);
  const auto job = [&](RankGroup& ranks) {
    Memory memory(ranks.rank());
    memory.set(2);
    save("/run/a", memory.state(), ranks, options_for(fs));
  };
  const int deaths = deaths_at_any_call(job, [&](bool died, const auto&) {
    const float value = saved_value(fs);
    CHECK((value == 2 || (died && value == 1)));
    save_value(fs, 1);
    for (const FileInfo& info : fs.open_directory("/run")->list()) CHECK(info.name == "a");
  });
  CHECK(deaths >= 6);
}

TEST_CASE("a rank that dies at any call of a load: survivors report, the checkpoint stays") {
  for (const LoadSafety safety : kSafeties) {
    INFO("safety " << static_cast<int>(safety));
    MemoryFileSystem fs;
    save_value(fs, 1);
    auto memory = fresh_memory();
    int told = 0, kept = 0, landed = 0;
    const auto job = [&](RankGroup& ranks) {
      load("/run/a", memory[static_cast<std::size_t>(ranks.rank())]->state(), ranks,
           policy_for(fs, safety));
    };
    const auto judge = [&](bool died, const std::vector<std::string>& thrown) {
      CHECK(saved_value(fs) == 1);
      for (const std::size_t survivor : {0, 2}) {
        INFO(thrown[survivor]);
        const Memory& theirs = *memory[survivor];
        CHECK(says_partly_filled(thrown[survivor]) == says_partly_filled(thrown[0]));
        if (says_partly_filled(thrown[survivor])) continue;
        CHECK((theirs.is(1) || (died && theirs.is(0))));  // all or nothing
      }
      told += says_partly_filled(thrown[0]);
      kept += died && memory[0]->is(0) && !says_partly_filled(thrown[0]);
      landed += died && memory[0]->is(1) && !says_partly_filled(thrown[0]);
      memory = fresh_memory();
    };
    CHECK(deaths_at_any_call(job, judge) >= 8);
    // At the meetings after what reads into place: in place, checksums are folded then.
    CHECK(told == (safety == LoadSafety::kAside ? 0 : safety == LoadSafety::kInPlace ? 3 : 1));
    CHECK(kept >= 6);    // until all had read
    CHECK(landed <= 1);  // at the last meeting
  }
}

namespace {

/// Loses what a rank has written, once it is closed: all of the file, or its end. So does a file
/// system that shows one host's files to another late.
class LosingDisk final : public ObservedFileSystem {
 public:
  LosingDisk(MemoryFileSystem& inner, bool all)
      : ObservedFileSystem(inner), memory_(inner), all_(all) {}

 protected:
  void after(const IoEvent& event) const override {
    if (event.op != IoOp::kClose || !event.path.ends_with(".distcp")) return;
    const Bytes bytes = memory_.read_file(event.path);
    memory_.remove_file(event.path);
    if (!all_) memory_.write_file(event.path, ByteView(bytes).first(bytes.size() - 1));
  }

 private:
  MemoryFileSystem& memory_;
  bool all_;
};

}  // namespace

TEST_CASE("what a rank wrote and the publishing one does not see stops the save, without waiting") {
  int lost = 0;
  for (const bool all : {true, false}) {
    for (int loser = 0; loser < kRanks; ++loser) {
      MemoryFileSystem fs;
      save_value(fs, 1);
      const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
        LosingDisk losing(fs, all);
        Memory memory(ranks.rank());
        memory.set(2);
        FileSystem& own = ranks.rank() == loser ? static_cast<FileSystem&>(losing) : fs;
        save("/run/a", memory.state(), ranks, options_for(own));
      });
      INFO("rank " << loser << ", all of it " << all << ": " << thrown[0]);
      for (const std::string& message : thrown)
        CHECK_THAT(message, Contains(fmt::format("rank {} was to write", loser)));
      CHECK(saved_value(fs) == 1);
      save_value(fs, 3);
      CHECK(saved_value(fs) == 3);
      ++lost;
    }
  }
  fmt::print("files lost between ranks: {}, each told to every rank, 0 published\n", lost);
  REQUIRE(lost == 2 * kRanks);
}

TEST_CASE("what a callback throws on one rank, every rank throws, and nothing is written") {
  MemoryFileSystem fs;
  save_value(fs, 1);
  const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
    Memory memory(ranks.rank());
    LiveState state = memory.state();
    if (ranks.rank() == 2)
      state.before_save = [] { fail(Code::kResourceExhausted, "no room for a copy"); };
    save("/run/a", state, ranks, options_for(fs));
  });
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("no room for a copy") && Contains("rank 2"));
  CHECK(saved_value(fs) == 1);
}

TEST_CASE(
    "what is thrown for a value that is handed over comes when every rank has the new state") {
  MemoryFileSystem fs;
  save_value(fs, 1);
  auto memory = fresh_memory();
  std::atomic<int> committed = 0;
  const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
    LiveState state = memory[static_cast<std::size_t>(ranks.rank())]->state();
    state.on_value = [&](const StateEntry&) {
      if (ranks.rank() == 2) fail(Code::kResourceExhausted, "no room for it");
    };
    state.after_load = [&](const std::vector<std::string>& loaded) {
      committed += loaded.empty() ? 0 : 1;
    };
    load("/run/a", state, ranks, policy_for(fs));
  });
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("no room for it") && Contains("rank 2"));
  for (const auto& theirs : memory) CHECK(theirs->is(1));
  CHECK(committed == kRanks);
}

TEST_CASE("the n-th operation of one rank's disk fails while it loads: the state is as it was") {
  for (const LoadSafety safety : kSafeties) {
    MemoryFileSystem fs;
    save_value(fs, 1);
    int told = 0, untouched = 0;
    for (std::uint64_t n = 1;; ++n) {
      INFO("safety " << static_cast<int>(safety) << ", operation " << n);
      REQUIRE(n < 2000);
      std::uint64_t faults = 0;
      const auto memory = fresh_memory();
      const auto thrown = on_ranks(kRanks, [&](RankGroup& ranks) {
        FaultyFileSystem faulty(fs, {.at = ranks.rank() == 1 ? n : 0, .error = EIO});
        struct Count {
          FaultyFileSystem& faulty;
          std::uint64_t* to;
          ~Count() {
            if (to != nullptr) *to = faulty.faults();
          }
        } count{faulty, ranks.rank() == 1 ? &faults : nullptr};
        load("/run/a", memory[static_cast<std::size_t>(ranks.rank())]->state(), ranks,
             policy_for(faulty, safety));
      });
      for (const std::string& message : thrown) {
        REQUIRE(message.empty() == thrown[0].empty());
        REQUIRE(says_partly_filled(message) == says_partly_filled(thrown[0]));
      }
      if (says_partly_filled(thrown[0])) {
        ++told;
      } else {
        for (const auto& theirs : memory) REQUIRE(theirs->is(thrown[0].empty() ? 1 : 0));
        untouched += !thrown[0].empty();
      }
      if (faults == 0) break;
    }
    CHECK(untouched >= 4);
    CHECK((told > 0) == (safety != LoadSafety::kAside));
  }
}

}  // namespace live_failure_test

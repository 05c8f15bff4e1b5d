// Power cuts on a simulated disk: after a crash anywhere in a publication, and after another one in
// the recovery, the next run finds the old output or the new one.
#include <fmt/format.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/simulated_disk.h>
#include <tessera/storage/stage.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/storage/stage_fixture.h"
#include "tests/support/sanitized.h"

namespace stage_crash_test {

using namespace tessera;
using namespace tessera::test;
using tessera::testing::kSanitized;

namespace {

// One file of `tree` per name, several pages long where asked, and different in every version.
Tree version(int number) {
  auto text = [&](std::size_t size, char salt) {
    std::string out;
    while (out.size() < size) out += fmt::format("v{}{}{} ", number, salt, out.size());
    return out.substr(0, size);
  };
  Tree tree = {{"a.bin", text(9000, 'a')}, {"sub/", ""}, {"sub/b.bin", text(700, 'b')}};
  if (number % 2 == 1) tree["odd.bin"] = text(10, 'o');
  return tree;
}

Bytes seal_of(int number) {
  const std::string text = fmt::format("seal {}", number);
  const ByteView bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

Tree result(int number, bool single_file) {
  if (number == 0) return {};
  const Bytes seal = seal_of(number);
  if (single_file)
    return {{"out", version(number).at("a.bin")}, {"out.tessera.json", std::string(as_text(seal))}};
  Tree tree = version(number);
  tree["tessera.manifest.json"] = std::string(as_text(seal));
  return under("out", tree);
}

// A file may be without its seal, and a seal may wait for its first file; the seal of another file
// is never beside one.
bool is_version(const Tree& found, int number, bool single_file) {
  Tree expected = result(number, single_file);
  if (found == expected) return true;
  if (!single_file) return false;
  if (number == 0) return found == Tree{{"out.tessera.json", std::string(as_text(seal_of(1)))}};
  expected.erase("out.tessera.json");
  return found == expected;
}

struct Story {
  std::vector<std::size_t> committing;  // operations before the first rename of publication i
  std::vector<std::size_t> acked;       // operations when publish() i had returned
};

Story run(SimulatedDisk& disk, int versions, bool single_file, bool same_hash) {
  Story story;
  for (int number = 1; number <= versions; ++number) {
    const std::string hash = same_hash ? kHash : fmt::format("{:016x}", number);
    const auto stage =
        Stage::open(disk, "/w/out", hash,
                    {.force = number > 1, .single_file = single_file, .resumable = !same_hash});
    fill(*stage, single_file ? Tree{{"", version(number).at("a.bin")}} : version(number));
    stage->publish({}, [&] {
      story.committing.push_back(disk.operations());
      return seal_of(number);
    });
    story.acked.push_back(disk.operations());
  }
  return story;
}

void recover(FileSystem& fs, bool single_file, const char* hash = "abcdef") {
  Stage::open(fs, "/w/out", hash, {.force = true, .single_file = single_file})->discard();
}

// The version that /w holds after recovery, or -1 for a mix.
int version_found(const MemoryFileSystem& fs, int versions, bool single_file) {
  const Tree found = fs.contents("/w");
  for (int number = 0; number <= versions; ++number)
    if (is_version(found, number, single_file)) return number;
  return -1;
}

struct Setup {
  bool has_exchange;
  bool single_file;
  bool same_hash;
};

CrashCounts explore(const Setup& setup, int versions, int subsets, std::uint64_t& nested) {
  MemoryFileSystem live(MemoryFileSystemOptions{.has_exchange = setup.has_exchange});
  live.make_directories("/w");
  SimulatedDisk disk(live);
  const Story story = run(disk, versions, setup.single_file, setup.same_hash);
  REQUIRE(live.contents("/w") == result(versions, setup.single_file));
  CrashOptions options{.random_subsets = subsets, .seed = 42};
  options.marks = story.committing;
  options.marks.insert(options.marks.end(), story.acked.begin(), story.acked.end());
  std::uint64_t count = 0;
  return disk.for_each_crash_state(options, [&](MemoryFileSystem& fs, const CrashState& state) {
    int least = 0;
    int most = 0;
    for (const std::size_t mark : story.acked) least += mark <= state.prefix;
    for (const std::size_t mark : story.committing) most += mark < state.prefix;
    INFO(state.description << ", exchange " << setup.has_exchange << ", file " << setup.single_file
                           << ", seed 42");
    if (++count % 16 == 0) {  // a second crash, while the first one is being repaired
      SimulatedDisk second(fs);
      recover(second, setup.single_file);
      nested += second
                    .for_each_crash_state({.random_subsets = 4, .seed = count},
                                          [&](MemoryFileSystem& again, const CrashState& deeper) {
                                            INFO("then " << deeper.description);
                                            recover(again, setup.single_file);
                                            const int found =
                                                version_found(again, versions, setup.single_file);
                                            if (found < least || found > most)
                                              FAIL("second crash: version " << found);
                                          })
                    .distinct;
    } else {
      recover(fs, setup.single_file);
    }
    const int found = version_found(fs, versions, setup.single_file);
    if (found < least || found > most)
      FAIL("version " << found << ", allowed " << least << " to " << most);
    if (setup.single_file && state.prefix >= story.acked.back() && found == versions) {
      REQUIRE(fs.contents("/w") == result(versions, true));
    }
  });
}

}  // namespace

TEST_CASE("a crash leaves the old output or the new one, never a mix", "[one_thread][wide]") {
  constexpr int kSubsets = kSanitized ? 10 : 150;
  CrashCounts total;
  std::uint64_t nested = 0;
  for (const bool has_exchange : {true, false}) {
    for (const bool single_file : {false, true}) {
      for (const bool same_hash : {true, false}) {
        const CrashCounts counts =
            explore({has_exchange, single_file, same_hash}, 3, kSubsets, nested);
        total.generated += counts.generated;
        total.distinct += counts.distinct;
      }
    }
  }
  fmt::print(
      "stage crashes: {} states generated, {} distinct ones checked, {} after a second crash\n",
      total.generated, total.distinct, nested);
  REQUIRE(total.distinct > (kSanitized ? 1000 : 5000));
  REQUIRE(nested > (kSanitized ? 500 : 5000));
}

namespace {

struct Resumes {
  std::uint64_t states = 0, finished = 0, nothing = 0, between = 0;
};

// The run whose publication was cut continues from what it left. `number` is its version.
bool finish(FileSystem& fs, int number, bool single_file) {
  try {
    const auto stage = Stage::open(
        fs, "/w/out", fmt::format("{:016x}", number),
        {.force = number > 1, .resume = true, .single_file = single_file, .resumable = true});
    fill(*stage, single_file ? Tree{{"", version(number).at("a.bin")}} : version(number));
    stage->publish({}, [&] { return seal_of(number); });
    return true;
  } catch (const Error& error) {
    REQUIRE((error.code() == Code::kNotFound || error.code() == Code::kAlreadyExists));
    return false;
  }
}

// Each publication is cut anywhere; the same run resumes, and may be cut again while it does.
void explore_resumes(bool has_exchange, bool single_file, Resumes& total) {
  constexpr int kVersions = 3;
  MemoryFileSystem live(MemoryFileSystemOptions{.has_exchange = has_exchange});
  live.make_directories("/w");
  SimulatedDisk disk(live);
  const Story story = run(disk, kVersions, single_file, false);
  CrashOptions options{.random_subsets = kSanitized ? 8 : 60, .seed = 7};
  options.marks = story.committing;
  options.marks.insert(options.marks.end(), story.acked.begin(), story.acked.end());
  std::uint64_t count = 0;
  disk.for_each_crash_state(options, [&](MemoryFileSystem& fs, const CrashState& state) {
    int least = 0;
    int most = 0;
    for (const std::size_t mark : story.acked) least += mark <= state.prefix;
    for (const std::size_t mark : story.committing) most += mark < state.prefix;
    const int number = std::min(least + 1, kVersions);
    INFO(state.description << ", exchange " << has_exchange << ", file " << single_file
                           << ", resuming version " << number);
    ++total.states;
    const auto check = [&](MemoryFileSystem& found_in, bool finished) {
      if (!finished) recover(found_in, single_file);
      const int found = version_found(found_in, kVersions, single_file);
      if (finished ? found != number : found < least || found > std::max(most, number))
        FAIL("version " << found << " after a resume that "
                        << (finished ? "finished" : "found nothing"));
    };
    if (++count % 16 == 0) {
      SimulatedDisk second(fs);
      finish(second, number, single_file);
      second.for_each_crash_state({.random_subsets = 4, .seed = count},
                                  [&](MemoryFileSystem& again, const CrashState& deeper) {
                                    INFO("then " << deeper.description);
                                    check(again, finish(again, number, single_file));
                                  });
      return;
    }
    const bool finished = finish(fs, number, single_file);
    ++(finished ? total.finished : total.nothing);
    total.between += finished && most > least;
    check(fs, finished);
  });
}

}  // namespace

TEST_CASE("a resume after a crash finishes its own output or finds nothing, never a mix",
          "[one_thread]") {
  Resumes total;
  for (const bool has_exchange : {true, false})
    for (const bool single_file : {false, true}) explore_resumes(has_exchange, single_file, total);
  fmt::print(
      "resumes after crashes: {} states, {} finished ({} cut while they published), {} found "
      "nothing\n",
      total.states, total.finished, total.between, total.nothing);
  REQUIRE(total.states > (kSanitized ? 300 : 2000));
  REQUIRE(total.finished > (kSanitized ? 60 : 500));
  REQUIRE(total.between > (kSanitized ? 10 : 100));
  REQUIRE(total.nothing > (kSanitized ? 10 : 100));
}

namespace {

// A replacement whose n-th rename or folder sync fails, the next run (`next_hash`), and a power cut
// anywhere in both. False when n is past the last such operation.
bool crash_after_fault(const Setup& setup, const char* next_hash, bool after, std::uint64_t n,
                       std::uint64_t& states) {
  MemoryFileSystem live(MemoryFileSystemOptions{.has_exchange = setup.has_exchange});
  for (const auto& [path, content] : result(1, setup.single_file))
    if (!path.ends_with('/')) live.write_file("/w/" + path, as_bytes(content));
  SimulatedDisk disk(live);
  const std::uint32_t ops = io_op_bit(IoOp::kSyncDirectory) | io_op_bit(IoOp::kExchange) |
                            io_op_bit(IoOp::kRename) | io_op_bit(IoOp::kRenameNew);
  FaultyFileSystem faulty(disk, {.at = n, .after = after, .ops = ops});
  try {
    const auto stage =
        Stage::open(faulty, "/w/out", kHash,
                    {.force = true, .single_file = setup.single_file, .resumable = after});
    fill(*stage, setup.single_file ? Tree{{"", version(2).at("a.bin")}} : version(2));
    stage->publish({}, [] { return seal_of(2); });
  } catch (const Error&) {
  }
  if (faulty.faults() == 0) return false;
  recover(disk, setup.single_file, next_hash);
  auto check = [&](MemoryFileSystem& fs, const CrashState& state) {
    INFO(faulty.first_fault() << ", happened " << after << ", exchange " << setup.has_exchange
                              << ", file " << setup.single_file << "; then " << state.description);
    recover(fs, setup.single_file);
    const int found = version_found(fs, 2, setup.single_file);
    if (found != 1 && found != 2) FAIL("version " << found);
  };
  states += disk.for_each_crash_state({.random_subsets = kSanitized ? 4 : 40}, check).distinct;
  return true;
}

}  // namespace

TEST_CASE("a crash after a failed rename or folder sync leaves the old output or the new one",
          "[one_thread][wide]") {
  std::uint64_t states = 0;
  for (const bool has_exchange : {true, false}) {
    for (const bool single_file : {false, true}) {
      for (const char* next_hash : {"abcdef", kHash}) {  // another request, or the same one again
        for (const bool after : {false, true}) {
          std::uint64_t n = 1;
          while (crash_after_fault({has_exchange, single_file, false}, next_hash, after, n, states))
            ++n;
          REQUIRE(n > 3);
        }
      }
    }
  }
  fmt::print("stage crashes after faults: {} distinct states checked\n", states);
  REQUIRE(states > (kSanitized ? 1000 : 10000));
}

namespace {

// Publishing by hand, with a step left out.
enum class Flaw { kNone, kNoFileSync, kNoFolderSync, kNoParentSync, kInPlace };

std::uint64_t violations(Flaw flaw) {
  MemoryFileSystem live;
  live.write_file("/w/out/a", as_bytes(std::string(5000, 'o')));
  SimulatedDisk disk(live);
  const std::string folder = flaw == Flaw::kInPlace ? "/w/out" : "/w/tmp";
  if (flaw != Flaw::kInPlace) disk.create_directory(folder);
  {
    const auto file = flaw == Flaw::kInPlace ? disk.reopen(folder + "/a", IoMode::kBuffered)
                                             : disk.create(folder + "/a", IoMode::kBuffered);
    file->write_at(0, as_bytes(std::string(5000, 'n')));
    if (flaw != Flaw::kNoFileSync) file->sync();
    file->close();
  }
  if (flaw != Flaw::kNoFolderSync) disk.sync_directory(folder);
  if (flaw != Flaw::kInPlace) disk.exchange("/w/tmp", "/w/out");
  if (flaw != Flaw::kNoParentSync) disk.sync_directory("/w");
  const std::size_t acked = disk.operations();
  std::uint64_t bad = 0;
  disk.for_each_crash_state({.marks = {acked}}, [&](MemoryFileSystem& fs, const CrashState& state) {
    const auto tree = fs.contents("/w/out");
    const bool is_old = tree == Tree{{"a", std::string(5000, 'o')}};
    const bool is_new = tree == Tree{{"a", std::string(5000, 'n')}};
    bad += state.prefix >= acked ? !is_new : !is_old && !is_new;
  });
  return bad;
}

}  // namespace

TEST_CASE("the simulated disk finds each missing step of a commit") {
  REQUIRE(violations(Flaw::kNone) == 0);
  REQUIRE(violations(Flaw::kNoFileSync) > 0);
  REQUIRE(violations(Flaw::kNoFolderSync) > 0);
  REQUIRE(violations(Flaw::kNoParentSync) > 0);
  REQUIRE(violations(Flaw::kInPlace) > 0);
}

TEST_CASE("the simulated disk keeps what was synced and may lose anything else") {
  MemoryFileSystem live;
  live.write_file("/d/kept", as_bytes("k"));
  SimulatedDisk disk(live);
  const auto file = disk.create("/d/new", IoMode::kBuffered);
  disk.sync_directory("/d");
  file->write_at(0, Bytes(4096 * 2, std::byte{'x'}));
  const std::size_t before_sync = disk.operations();
  file->sync();
  std::map<std::string, int> seen;
  disk.for_each_crash_state(
      {.marks = {before_sync + 1}}, [&](MemoryFileSystem& fs, const CrashState& state) {
        REQUIRE(fs.contents("/d").at("kept") == "k");
        if (state.prefix <= 1) return;
        const Bytes bytes = fs.read_file("/d/new");
        if (state.prefix > before_sync) REQUIRE(bytes == Bytes(4096 * 2, std::byte{'x'}));
        if (bytes.empty()) ++seen["empty"];
        if (bytes == Bytes(8192)) ++seen["zeros"];
        if (bytes.size() == 8192 && bytes[0] == std::byte{0} && bytes[5000] == std::byte{'x'})
          ++seen["second page only"];
        if (bytes.size() == 8192 && bytes[4096 + 511] == std::byte{'x'} &&
            bytes[4096 + 512] == std::byte{0})
          ++seen["torn"];
      });
  REQUIRE(seen["empty"] > 0);
  REQUIRE(seen["zeros"] > 0);
  REQUIRE(seen["second page only"] > 0);
  REQUIRE(seen["torn"] > 0);
}

}  // namespace stage_crash_test

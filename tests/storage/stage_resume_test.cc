// A stage that was kept: its journal, its files, and what others did to them.
#include <tessera/storage/stage.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/storage/stage_fixture.h"

namespace stage_resume_test {

using namespace tessera;
using namespace tessera::test;

TEST_CASE("a kept stage is resumed with its files and its journal") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  const bool force = GENERATE(false, true);
  if (force) publish(*rig.fs, rig.at("out"), kOtherHash, {}, kOld);
  std::vector<JournalEntry> entries;
  for (std::uint32_t i = 0; i < 100; ++i) entries.push_back({i, i * 7, i * 1000, 1000});
  for (int round = 0; round < 2; ++round) {
    auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {.force = force, .resume = round > 0});
    REQUIRE(stage->finished().size() == static_cast<std::size_t>(round) * 50);
    auto file = stage->create("sub/a", IoMode::kBuffered);
    file->write_at(static_cast<std::uint64_t>(round) * 2, as_bytes(round == 0 ? "AA" : "BB"));
    if (round == 0) {
      auto dropped = stage->create("no/longer", IoMode::kBuffered);  // of the next one's plan
      dropped->write_at(0, as_bytes("W"));
      dropped->close();
    }
    file->sync();
    file->close();
    for (int i = 0; i < 50; ++i) stage->journal(entries[static_cast<std::size_t>(round * 50 + i)]);
    stage->keep();
  }
  auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {.force = force, .resume = true});
  REQUIRE(stage->finished().size() == 100);
  for (std::size_t i = 0; i < 100; ++i) {
    REQUIRE(stage->finished()[i].file == entries[i].file);
    REQUIRE(stage->finished()[i].crc32 == entries[i].crc32);
    REQUIRE(stage->finished()[i].offset == entries[i].offset);
    REQUIRE(stage->finished()[i].length == entries[i].length);
  }
  auto file = stage->create("sub/a", IoMode::kBuffered);
  file->sync();
  file->close();
  stage->publish({}, seal_bytes);
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed({{"sub/", ""}, {"sub/a", "AABB"}})));
}

TEST_CASE("a stage that others changed is resumed without what they put there") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  fs->create_directory(temp / "elsewhere");
  put(*fs, temp / "elsewhere/a", "theirs");
  const StageOptions resume{.resume = true};
  const auto kept = [&] {
    auto stage = Stage::open(*fs, temp / "out", kHash, {});
    for (const char* name : {"sub/a", "b"}) {
      const auto file = stage->create(name, IoMode::kBuffered);
      file->write_at(0, as_bytes("ours"));
      file->sync();
      file->close();
    }
    stage->keep();
    return stage->directory();
  };
  const std::string stage = kept();
  for (const char* name : {"/sub/a", "/b"}) {  // a link in the place of a file
    std::filesystem::remove(stage + name);
    std::filesystem::create_symlink(temp / "elsewhere/a", stage + name);
    auto again = Stage::open(*fs, temp / "out", kHash, resume);
    REQUIRE(code_of([&] { again->create(name + 1, IoMode::kBuffered); }) == Code::kCorrupt);
    again->keep();
  }
  std::filesystem::remove_all(stage + "/sub");  // and in that of a folder
  std::filesystem::create_directory_symlink(temp / "elsewhere", stage + "/sub");
  {
    auto again = Stage::open(*fs, temp / "out", kHash, resume);
    REQUIRE(code_of([&] { again->create("sub/a", IoMode::kBuffered); }) == Code::kCorrupt);
    again->keep();
  }
  REQUIRE(tree_of(*fs, temp / "elsewhere") == Tree{{"a", "theirs"}});
  // What nobody asks for goes, links and folders without being entered.
  std::filesystem::remove(stage + "/b");
  std::filesystem::create_directory(stage + "/more");
  put(*fs, stage + "/more/x", "x");
  put(*fs, stage + "/loose", "x");
  auto again = Stage::open(*fs, temp / "out", kHash, resume);
  const auto file = again->create("b", IoMode::kBuffered);
  file->write_at(0, as_bytes("new"));
  file->sync();
  file->close();
  again->publish({}, seal_bytes);
  REQUIRE(tree_of(*fs, temp / "out") == sealed({{"b", "new"}}));
  REQUIRE(tree_of(*fs, temp / "elsewhere") == Tree{{"a", "theirs"}});
}

TEST_CASE("of two journals the one that can be read is gone on with") {
  MemoryFileSystem fs;
  {
    auto stage = Stage::open(fs, "/out", kHash, {});
    for (std::uint32_t i = 0; i < 5; ++i) stage->journal({i, i, i, i});
    stage->keep();
  }
  const std::string stage = "/.out.tmp-" + std::string(kHash).substr(0, 16);
  const Bytes whole = fs.read_file(stage + "/.tessera-journal");
  fs.write_file(stage + ".jrnl", as_bytes("stale"));
  auto first = Stage::open(fs, "/out", kHash, {.resume = true});
  REQUIRE(first->finished().size() == 5);
  first->keep();
  REQUIRE(!fs.stat(stage + ".jrnl"));
  // Torn inside, whole beside, but without a word of a seal: it may speak of other content.
  fs.write_file(stage + "/.tessera-journal", ByteView(whole).first(10));
  fs.write_file(stage + ".jrnl", whole);
  REQUIRE(code_of([&] { Stage::open(fs, "/out", kHash, {.resume = true}); }) == Code::kNotFound);
  REQUIRE(fs.read_file(stage + ".jrnl") == whole);
}

TEST_CASE("resuming needs a stage of the same request") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  const StageOptions resume{.resume = true};
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), kHash, resume); }) == Code::kNotFound);
  Stage::open(*rig.fs, rig.at("out"), kHash, {})->keep();
  const Tree kept = tree_of(*rig.fs, rig.root);
  // Another request finds nothing of its own, and leaves this one to whoever kept it.
  const std::string message =
      message_of([&] { Stage::open(*rig.fs, rig.at("out"), kOtherHash, resume); });
  REQUIRE(message.find("nothing to resume") != std::string::npos);
  REQUIRE(tree_of(*rig.fs, rig.root) == kept);
  // The names agree in the first 16 digits, the journals do not: what was left is of no use.
  const std::string near = std::string(kHash).substr(0, 16) + "ffff";
  auto anew = Stage::open(*rig.fs, rig.at("out"), near, resume);
  REQUIRE(anew->started_anew());
  REQUIRE(anew->finished().empty());
  anew->discard();
  REQUIRE(tree_of(*rig.fs, rig.root).empty());
}

TEST_CASE("a torn or damaged journal ends at its last whole record") {
  MemoryFileSystem fs;
  {
    auto stage = Stage::open(fs, "/out", kHash, {});
    for (std::uint32_t i = 0; i < 5; ++i) stage->journal({i, i, i, i});
    stage->keep();
  }
  const std::string path =
      std::string("/.out.tmp-") + std::string(kHash).substr(0, 16) + "/.tessera-journal";
  const Bytes whole = fs.read_file(path);
  const std::size_t header = whole.size() - 5 * 28;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    fs.write_file(path, ByteView(whole).first(size));
    const StageOptions resume{.resume = true};
    if (size < header) {
      REQUIRE(code_of([&] { Stage::open(fs, "/out", kHash, resume); }) == Code::kNotFound);
      REQUIRE(message_of([&] {
                Stage::open(fs, "/out", kHash, resume);
              }).find("nothing to continue in") != std::string::npos);
      continue;
    }
    const auto stage = Stage::open(fs, "/out", kHash, resume);
    REQUIRE(stage->finished().size() == (size - header) / 28);
    stage->keep();
    REQUIRE(fs.read_file(path).size() == header + stage->finished().size() * 28);
  }
  Bytes damaged = whole;
  damaged[header + 2 * 28 + 5] ^= std::byte{1};
  fs.write_file(path, damaged);
  REQUIRE(Stage::open(fs, "/out", kHash, {.resume = true})->finished().size() == 2);
}

}  // namespace stage_resume_test

// The life of a stage: publish, replace, keep, resume, discard, two holders, the janitor.
#include <tessera/storage/counting_file_system.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/stage.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/storage/stage_fixture.h"

namespace stage_test {

using namespace tessera;
using namespace tessera::test;

namespace {
const char* const kKinds[] = {"memory", "memory without exchange", "posix",
                              "posix without renameat2"};
}

TEST_CASE("publish makes the folder appear whole, with its seal and nothing else") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kKinds), std::end(kKinds))));
  INFO(rig.kind);
  auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {});
  REQUIRE(stage->final_path() == rig.at("out"));
  fill(*stage, kNew);
  REQUIRE(!rig.fs->stat(rig.at("out")));
  bool proved = false;
  stage->publish([&] { proved = true; },
                 [&] {
                   REQUIRE(proved);
                   return seal_bytes();
                 });
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kNew)));
  stage.reset();
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kNew)));
}

TEST_CASE("an existing output is refused without force and replaced with it") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kKinds), std::end(kKinds))));
  INFO(rig.kind);
  publish(*rig.fs, rig.at("out"), kHash, {}, kOld);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), kHash, {}); }) == Code::kAlreadyExists);
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
  publish(*rig.fs, rig.at("out"), kOtherHash, {.force = true}, kNew);
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kNew)));
  publish(*rig.fs, rig.at("out/"), kOtherHash, {.force = true}, kOld);  // the same plan hash again
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
}

TEST_CASE("a one-file result appears with its seal beside it") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kKinds), std::end(kKinds))));
  INFO(rig.kind);
  const StageOptions one{.single_file = true};
  const StageOptions force{.force = true, .single_file = true};
  auto write = [&](const StageOptions& options, const char* hash, std::string_view text,
                   bool with_seal) {
    auto stage = Stage::open(*rig.fs, rig.at("model.st"), hash, options);
    const auto file = stage->create("", IoMode::kDirect);
    file->write_at(0, as_bytes(text));
    file->sync();
    file->close();
    stage->publish({}, [&] { return with_seal ? seal_bytes() : Bytes(); });
  };
  write(one, kHash, "first", true);
  REQUIRE(tree_of(*rig.fs, rig.root) ==
          Tree{{"model.st", "first"}, {"model.st.tessera.json", kSealText}});
  REQUIRE(code_of([&] { write(one, kHash, "second", true); }) == Code::kAlreadyExists);
  write(force, kHash, "second", true);
  REQUIRE(tree_of(*rig.fs, rig.root) ==
          Tree{{"model.st", "second"}, {"model.st.tessera.json", kSealText}});
  write(force, kOtherHash, "third", false);  // the old seal would not fit
  REQUIRE(tree_of(*rig.fs, rig.root) == Tree{{"model.st", "third"}});
}

TEST_CASE("force replaces like by like only, and never follows a link") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  fs->create_directory(temp / "folder");
  put(*fs, temp / "file", "x");
  std::filesystem::create_directory_symlink(temp / "folder", temp / "link");
  std::filesystem::create_symlink("nowhere", temp / "dangling");
  const Tree before = tree_of(*fs, temp.path());
  const StageOptions force{.force = true};
  REQUIRE(code_of([&] { Stage::open(*fs, temp / "file", kHash, force); }) ==
          Code::kInvalidArgument);
  REQUIRE(code_of([&] {
            Stage::open(*fs, temp / "folder", kHash, {.force = true, .single_file = true});
          }) == Code::kInvalidArgument);
  for (const std::string name : {"link", "dangling"}) {
    for (const bool forced : {false, true}) {
      const std::string message =
          message_of([&] { Stage::open(*fs, temp / name, kHash, {.force = forced}); });
      REQUIRE(message.find(temp / name + " is a symbolic link") != std::string::npos);
    }
  }
  REQUIRE(tree_of(*fs, temp.path()) == before);
  // A link on the way is the user's choice.
  publish(*fs, temp / "link/out", kHash, {}, kNew);
  REQUIRE(tree_of(*fs, temp / "folder/out") == sealed(kNew));
}

TEST_CASE("bad output paths are refused before anything is made") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("no/out"), kHash, {}); }) == Code::kNotFound);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, "/", kHash, {}); }) == Code::kInvalidArgument);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at(".."), kHash, {}); }) ==
          Code::kInvalidArgument);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), "../x", {}); }) ==
          Code::kInvalidArgument);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), "", {}); }) == Code::kInvalidArgument);
  REQUIRE(tree_of(*rig.fs, rig.root).empty());
}

TEST_CASE("names of files that leave the stage or are ours are refused") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {});
  for (const std::string name : {"../x", "/x", "a/../../x"})
    REQUIRE(code_of([&] { stage->create(name, IoMode::kBuffered); }) == Code::kCorrupt);
  REQUIRE(code_of([&] { stage->create("tessera.manifest.json", IoMode::kBuffered); }) ==
          Code::kInvalidArgument);
  REQUIRE(code_of([&] { stage->create(".tessera-journal", IoMode::kBuffered); }) ==
          Code::kInvalidArgument);
}

TEST_CASE("a file that was not synced and closed stops the publication") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  for (const int flaw : {0, 1, 2}) {
    auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {});
    auto file = stage->create("a", IoMode::kBuffered);
    file->write_at(0, as_bytes("x"));
    if (flaw != 0) file->sync();
    if (flaw == 1) file->write_at(1, as_bytes("y"));  // after the sync
    if (flaw != 2) file->close();
    REQUIRE(code_of([&] { stage->publish({}, seal_bytes); }) == Code::kInternal);
    file.reset();
    stage.reset();
    REQUIRE(tree_of(*rig.fs, rig.root).empty());
  }
}

TEST_CASE("a failing proof publishes nothing and removes the stage") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  publish(*rig.fs, rig.at("out"), kHash, {}, kOld);
  auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {.force = true});
  fill(*stage, kNew);
  REQUIRE(code_of([&] { stage->publish([] { fail(Code::kCorrupt, "a hole"); }, seal_bytes); }) ==
          Code::kCorrupt);
  stage.reset();
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
}

TEST_CASE("discard and the destructor remove the stage and leave the output alone") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  publish(*rig.fs, rig.at("out"), kHash, {}, kOld);
  for (const bool by_destructor : {true, false}) {
    auto stage = Stage::open(*rig.fs, rig.at("out"), kHash, {.force = true});
    fill(*stage, kNew);
    if (!by_destructor) stage->discard();
    if (by_destructor) stage.reset();
    REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
  }
}

TEST_CASE("a kept stage is resumed with its files and its journal") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kKinds), std::end(kKinds))));
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
      auto whole = stage->create("whole", IoMode::kBuffered);
      whole->write_at(0, as_bytes("W"));
      whole->close();  // not synced: publishing must make up for it
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
  stage->publish({}, seal_bytes);
  REQUIRE(tree_of(*rig.fs, rig.root) ==
          under("out", sealed({{"sub/", ""}, {"sub/a", "AABB"}, {"whole", "W"}})));
}

TEST_CASE("publishing a resumed stage syncs the files that were not opened again") {
  MemoryFileSystem memory;
  CountingFileSystem fs(memory);
  auto stage = Stage::open(fs, "/out", kHash, {});
  auto file = stage->create("a", IoMode::kBuffered);
  file->write_at(0, as_bytes("x"));
  file->close();
  stage->keep();
  REQUIRE(fs.of("/a").syncs == 0);
  Stage::open(fs, "/out", kHash, {.resume = true})->publish({}, seal_bytes);
  REQUIRE(fs.of("/a").syncs == 1);
}

TEST_CASE("resuming needs a stage of the same request") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  const StageOptions resume{.resume = true};
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), kHash, resume); }) == Code::kNotFound);
  Stage::open(*rig.fs, rig.at("out"), kHash, {})->keep();
  // The names agree in the first 16 digits; the journal knows better, and the stage stays what it
  // is.
  const std::string near = std::string(kHash).substr(0, 16) + "ffff";
  const Tree kept = tree_of(*rig.fs, rig.root);
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), near, resume); }) == Code::kCorrupt);
  REQUIRE(tree_of(*rig.fs, rig.root) == kept);
  // Another request finds nothing of its own, and leaves this one to whoever kept it.
  const std::string message =
      message_of([&] { Stage::open(*rig.fs, rig.at("out"), kOtherHash, resume); });
  REQUIRE(message.find("nothing to resume") != std::string::npos);
  REQUIRE(tree_of(*rig.fs, rig.root) == kept);
  Stage::open(*rig.fs, rig.at("out"), kHash, resume)->discard();
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

TEST_CASE("one stage per output and request; another request may run beside it") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kKinds), std::end(kKinds))));
  INFO(rig.kind);
  auto first = Stage::open(*rig.fs, rig.at("out"), kHash, {});
  fill(*first, kOld);
  for (const bool resume : {false, true}) {
    const std::string message =
        message_of([&] { Stage::open(*rig.fs, rig.at("out"), kHash, {.resume = resume}); });
    REQUIRE(message.find("already exists: another run is writing " + rig.at("out")) == 0);
  }
  auto second =
      Stage::open(*rig.fs, rig.at("out"), kOtherHash, {});  // leaves the first one's stage alone
  fill(*second, kNew);
  first->publish({}, seal_bytes);
  REQUIRE(code_of([&] { second->publish({}, seal_bytes); }) == Code::kAlreadyExists);
  second.reset();
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
}

TEST_CASE("the janitor removes stale names of this output and nothing else") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  FileSystem& fs = *rig.fs;
  put(fs, rig.at("out"), "x");
  fs.remove_file(rig.at("out"));
  auto folder_with_file = [&](const std::string& name) {
    fs.create_directory(rig.at(name));
    put(fs, rig.at(name + "/f"), name);
  };
  folder_with_file("out");
  const std::vector<std::string> stale = {".out.tmp-0123abcd", ".out.trash-00ff"};
  for (const std::string& name : stale) folder_with_file(name);
  put(fs, rig.at(".out.tmp-77.lock"), "");
  put(fs, rig.at(".out.tmp-88.jrnl"), "");
  put(fs, rig.at(".out.tmp-beef.jrnl"), "of the one that is alive");
  const std::vector<std::string> foreign = {
      ".out.tmp-XYZ",      ".out.tmp-",     ".out.tmp-0123456789abcdef0",
      ".out2.tmp-0123",    ".ou.tmp-0123",  "out.tmp-0123",
      ".out.tmp-12.old",   ".out.trash-zz", "out.trash-11",
      ".out.tmp-12.tmp-34"};
  for (const std::string& name : foreign) folder_with_file(name);
  put(fs, rig.at(".out.tmp-55"), "a file, not a folder");
  folder_with_file(".out.tmp-beef");
  const auto held = fs.try_lock(rig.at(".out.tmp-beef.lock"));  // a run that is alive
  auto stage = Stage::open(fs, rig.at("out"), kHash, {.force = true});
  const Tree after = tree_of(fs, rig.root);
  for (const std::string& name : stale) REQUIRE(!after.contains(name + "/"));
  REQUIRE(!after.contains(".out.tmp-77.lock"));
  REQUIRE(!after.contains(".out.tmp-88.jrnl"));
  REQUIRE(after.contains(".out.tmp-beef.jrnl"));
  for (const std::string& name : foreign) {
    INFO(name);
    REQUIRE(after.at(name + "/f") == name);
  }
  REQUIRE(after.at(".out.tmp-55") == "a file, not a folder");
  REQUIRE(after.at(".out.tmp-beef/f") == ".out.tmp-beef");
  REQUIRE(after.at("out/f") == "out");
}

TEST_CASE("an interrupted trash-then-rename is undone by the next open") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  publish(*rig.fs, rig.at("out"), kHash, {}, kOld);
  rig.fs->rename(rig.at("out"), rig.at(".out.trash-00ff"));
  REQUIRE(code_of([&] { Stage::open(*rig.fs, rig.at("out"), kHash, {}); }) == Code::kAlreadyExists);
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
  rig.fs->rename(rig.at("out"), rig.at(".out.trash-00ff"));
  publish(*rig.fs, rig.at("out"), kHash, {.force = true}, kNew);
  REQUIRE(tree_of(*rig.fs, rig.root) == under("out", sealed(kNew)));
}

TEST_CASE("two interrupted replacements are for the user to sort out") {
  MemoryFileSystem fs;
  fs.write_file("/.out.trash-01/f", as_bytes("1"));
  fs.write_file("/.out.trash-02/f", as_bytes("2"));
  const auto before = fs.contents();
  REQUIRE(code_of([&] { Stage::open(fs, "/out", kHash, {.force = true}); }) ==
          Code::kAlreadyExists);
  REQUIRE(fs.contents() == before);
}

TEST_CASE("without locks an existing stage is never taken for stale") {
  MemoryFileSystem fs(MemoryFileSystemOptions{.has_locks = false});
  auto first = Stage::open(fs, "/out", kHash, {});
  fill(*first, kOld);
  const auto before = fs.contents();
  REQUIRE(code_of([&] { Stage::open(fs, "/out", kHash, {}); }) == Code::kAlreadyExists);
  REQUIRE(fs.contents() == before);
  Stage::open(fs, "/out", kOtherHash, {})->discard();
  REQUIRE(fs.contents() == before);
  first->publish({}, seal_bytes);
  REQUIRE(tree_of(fs, "/out") == sealed(kOld));
}

TEST_CASE("everything is synced before the rename, and the parent after it") {
  for (const bool resumable : {false, true}) {
    MemoryFileSystem memory({.has_exchange = true});
    memory.make_directories("/w");
    CountingFileSystem fs(memory);
    auto stage = Stage::open(fs, "/w/out", kHash, {.resumable = resumable});
    fill(*stage, kNew);
    stage->publish({}, seal_bytes);
    const std::string s = stage->directory();
    std::vector<std::string> order;
    for (const std::string& line : fs.trace()) {
      if (line.starts_with("sync") || line.starts_with("rename") || line.starts_with("remove"))
        order.push_back(line);
    }
    const std::string journal = s + "/.tessera-journal";
    std::vector<std::string> expected = {
        "sync " + s + "/a.bin",
        "sync " + s + "/sub/b.bin",
        "sync " + s + "/tessera.manifest.json",
        "sync folder " + s + "/sub",
        resumable ? "rename " + journal + " -> " + s + ".jrnl" : "remove " + journal,
        "sync folder " + s,
        "rename " + s + " -> /w/out",
        "sync folder /w"};
    if (resumable) expected.push_back("remove " + s + ".jrnl");
    expected.push_back("remove " + s);
    REQUIRE(order == expected);
  }
}

}  // namespace stage_test

// The life of a stage: publish, replace, keep, resume, discard, two holders, the janitor.
#include <tessera/storage/counting_file_system.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/observed_file_system.h>
#include <tessera/storage/stage.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/storage/stage_fixture.h"

namespace stage_test {

using namespace tessera;
using namespace tessera::test;

TEST_CASE("publish makes the folder appear whole, with its seal and nothing else") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
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
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
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
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
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

TEST_CASE("one stage per output and request; another request may run beside it") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
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

namespace {

/// Refuses every rename that replaces, as the kernel does in another user's sticky folder.
class Sticky final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kExchange || event.op == IoOp::kRename)
      fail(Code::kIo, "cannot rename: Operation not permitted");
  }
};

}  // namespace

TEST_CASE("a replacement that the system refuses leaves the old output and nothing else") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  publish(*fs, temp / "out", kHash, {}, kOld);
  const Tree before = tree_of(*fs, temp.path());
  Sticky sticky(*fs);
  for (const bool resumable : {false, true}) {
    auto stage =
        Stage::open(sticky, temp / "out", kOtherHash, {.force = true, .resumable = resumable});
    fill(*stage, kNew);
    CHECK(code_of([&] { stage->publish({}, seal_bytes); }) == Code::kIo);
    stage.reset();
    CHECK(tree_of(*fs, temp.path()) == before);
  }
}

TEST_CASE("a resume whose binding no longer holds starts anew") {
  const Rig rig = make_rig(GENERATE("memory", "posix"));
  const auto text = [](ByteView bytes) { return std::string(as_text(bytes)); };
  const auto begin = [&](bool resume, std::string binding) {
    StageOptions options{.resume = resume};
    const ByteView bytes = as_bytes(binding);
    options.binding.assign(bytes.begin(), bytes.end());
    options.still_bound = [binding, text](ByteView kept) { return text(kept) == binding; };
    return Stage::open(*rig.fs, rig.at("out"), kHash, options);
  };
  const auto leave = [&](Stage& stage) {
    fill(stage, kNew);
    stage.journal({0, 1, 2, 3});
    REQUIRE(stage.keep());
  };
  leave(*begin(false, "first"));
  auto same = begin(true, "first");
  CHECK_FALSE(same->started_anew());
  CHECK_FALSE(same->finished().empty());
  REQUIRE(same->keep());
  auto other = begin(true, "second");
  CHECK(other->started_anew());
  CHECK(other->finished().empty());
  fill(*other, kOld);
  other->publish({}, seal_bytes);
  CHECK(tree_of(*rig.fs, rig.root) == under("out", sealed(kOld)));
}

}  // namespace stage_test

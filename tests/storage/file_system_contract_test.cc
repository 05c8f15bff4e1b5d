// What every file system owes its callers, checked on the real one and on the one in memory.
#include <tessera/storage/counting_file_system.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "tests/storage/storage_fixture.h"

namespace file_system_contract_test {

using namespace tessera;
using namespace tessera::test;

TEST_CASE("create makes a new file only, reopen an existing one only") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  put(*rig.fs, rig.at("a"), "one");
  REQUIRE(code_of([&] { rig.fs->create(rig.at("a"), IoMode::kBuffered); }) == Code::kAlreadyExists);
  REQUIRE(code_of([&] { rig.fs->reopen(rig.at("b"), IoMode::kBuffered); }) == Code::kNotFound);
  REQUIRE(code_of([&] { rig.fs->create(rig.at("no/b"), IoMode::kBuffered); }) == Code::kNotFound);
  const auto file = rig.fs->reopen(rig.at("a"), IoMode::kBuffered);
  file->write_at(1, as_bytes("XYZ"));
  file->sync();
  file->close();
  REQUIRE(tree_of(*rig.fs, rig.root) == Tree{{"a", "oXYZ"}});
}

TEST_CASE("names: stat, list, create_directory") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  REQUIRE(!rig.fs->stat(rig.at("d")));
  REQUIRE(code_of([&] { rig.fs->open_directory(rig.at("d")); }) == Code::kNotFound);
  rig.fs->create_directory(rig.at("d"));
  REQUIRE(code_of([&] { rig.fs->create_directory(rig.at("d")); }) == Code::kAlreadyExists);
  for (const std::string name : {"b", "a.10", "a.2", "B"}) put(*rig.fs, rig.at("d/" + name), "x");
  std::vector<std::string> names;
  for (const FileInfo& info : rig.fs->open_directory(rig.root)->list("d"))
    names.push_back(info.name);
  REQUIRE(names == std::vector<std::string>{"B", "a.10", "a.2", "b"});
  REQUIRE(rig.fs->stat(rig.at("d"))->type == FileType::kDirectory);
  const auto info = rig.fs->stat(rig.at("d/b"));
  REQUIRE(info->type == FileType::kRegular);
  REQUIRE(info->size_bytes == 1);
  REQUIRE(!rig.fs->stat(rig.at("d/b/c")));
  REQUIRE(rig.fs->free_bytes(rig.at("d")) > 0);
}

TEST_CASE("file systems tell whether they lie in memory") {
  CHECK(MemoryFileSystem().in_memory("/"));
  std::map<std::string, std::string> types;  // by mount point; of several the last
  std::ifstream mounts("/proc/self/mounts");
  for (std::string device, point, type, rest;
       mounts >> device >> point >> type && std::getline(mounts, rest);)
    types[point] = type;
  const auto posix = make_posix_file_system();
  for (const std::string point : {"/dev/shm", "/proc", "/run"}) {
    if (!types.contains(point)) continue;
    INFO(point << " " << types[point]);
    CHECK(posix->in_memory(point) == (types[point] == "tmpfs" || types[point] == "ramfs"));
  }
  CHECK_FALSE(posix->in_memory("/proc"));
  CHECK_FALSE(posix->in_memory("/no/such/place"));
}

TEST_CASE("rename replaces, rename_new does not") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  put(*rig.fs, rig.at("a"), "1");
  put(*rig.fs, rig.at("b"), "2");
  rig.fs->create_directory(rig.at("d"));
  put(*rig.fs, rig.at("d/x"), "3");
  rig.fs->create_directory(rig.at("e"));
  put(*rig.fs, rig.at("e/y"), "4");
  REQUIRE(code_of([&] { rig.fs->rename_new(rig.at("a"), rig.at("b")); }) == Code::kAlreadyExists);
  REQUIRE(code_of([&] { rig.fs->rename_new(rig.at("d"), rig.at("e")); }) == Code::kAlreadyExists);
  REQUIRE(code_of([&] { rig.fs->rename_new(rig.at("none"), rig.at("c")); }) == Code::kNotFound);
  REQUIRE(code_of([&] { rig.fs->rename(rig.at("d"), rig.at("e")); }) == Code::kAlreadyExists);
  rig.fs->rename(rig.at("a"), rig.at("b"));
  rig.fs->rename_new(rig.at("d"), rig.at("c"));
  REQUIRE(tree_of(*rig.fs, rig.root) ==
          Tree{{"b", "1"}, {"c/", ""}, {"c/x", "3"}, {"e/", ""}, {"e/y", "4"}});
}

TEST_CASE("exchange swaps at once or says that it cannot") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  rig.fs->create_directory(rig.at("d"));
  put(*rig.fs, rig.at("d/x"), "3");
  put(*rig.fs, rig.at("f"), "4");
  const Tree before = tree_of(*rig.fs, rig.root);
  if (rig.fs->exchange(rig.at("d"), rig.at("f"))) {
    REQUIRE(tree_of(*rig.fs, rig.root) == Tree{{"d", "4"}, {"f/", ""}, {"f/x", "3"}});
    REQUIRE(code_of([&] { rig.fs->exchange(rig.at("d"), rig.at("none")); }) == Code::kNotFound);
  } else {
    REQUIRE(rig.kind.find("without") != std::string::npos);
    REQUIRE(tree_of(*rig.fs, rig.root) == before);
  }
}

TEST_CASE("remove_tree removes all below, and absent is fine") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  rig.fs->create_directory(rig.at("d"));
  rig.fs->create_directory(rig.at("d/e"));
  put(*rig.fs, rig.at("d/e/x"), "3");
  put(*rig.fs, rig.at("keep"), "4");
  rig.fs->remove_tree(rig.at("d"));
  rig.fs->remove_tree(rig.at("d"));
  REQUIRE(code_of([&] { rig.fs->remove_file(rig.at("gone")); }) == Code::kNotFound);
  REQUIRE(tree_of(*rig.fs, rig.root) == Tree{{"keep", "4"}});
  rig.fs->remove_file(rig.at("keep"));
  rig.fs->sync_directory(rig.root);
  REQUIRE(tree_of(*rig.fs, rig.root).empty());
}

TEST_CASE("one holder per lock, and no lock file is left behind") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  for (int i = 0; i < 3; ++i) {
    auto first = rig.fs->try_lock(rig.at("lock"));
    REQUIRE(first != nullptr);
    REQUIRE(rig.fs->try_lock(rig.at("lock")) == nullptr);
    REQUIRE(rig.fs->try_lock(rig.at("other")) != nullptr);
    first.reset();
    REQUIRE(tree_of(*rig.fs, rig.root).empty());
  }
  put(*rig.fs, rig.at("lock"), "");  // left by a run that was killed
  REQUIRE(rig.fs->try_lock(rig.at("lock")) != nullptr);
}

TEST_CASE("canonical resolves dots, and the last name may be absent") {
  const Rig rig = make_rig(GENERATE(from_range(std::begin(kRigKinds), std::end(kRigKinds))));
  INFO(rig.kind);
  rig.fs->create_directory(rig.at("d"));
  REQUIRE(rig.fs->canonical(rig.at("d/../d/.")) == rig.at("d"));
  REQUIRE(rig.fs->canonical(rig.at("d//new")) == rig.at("d/new"));
  REQUIRE(rig.fs->canonical(rig.at("d/new/")) == rig.at("d/new"));
  REQUIRE(code_of([&] { (void)rig.fs->canonical(rig.at("no/new")); }) == Code::kNotFound);
}

TEST_CASE("links: followed where the user typed, never where we write or remove") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  fs->create_directory(temp / "real");
  put(*fs, temp / "real/x", "1");
  std::filesystem::create_directory_symlink(temp / "real", temp / "link");
  std::filesystem::create_symlink(temp / "real/x", temp / "file_link");
  REQUIRE(fs->canonical(temp / "link/x") == temp / "real/x");
  REQUIRE(code_of([&] { fs->create(temp / "file_link", IoMode::kBuffered); }) ==
          Code::kAlreadyExists);
  REQUIRE(code_of([&] { fs->reopen(temp / "file_link", IoMode::kBuffered); }) == Code::kCorrupt);
  REQUIRE(code_of([&] { fs->try_lock(temp / "file_link"); }) == Code::kCorrupt);
  fs->create_directory(temp / "holder");
  std::filesystem::create_directory_symlink(temp / "real", temp / "holder/inner");
  fs->remove_tree(temp / "holder");
  fs->remove_tree(temp / "link");
  REQUIRE(tree_of(*fs, temp.path()) == Tree{{"file_link@", ""}, {"real/", ""}, {"real/x", "1"}});
}

TEST_CASE("memory: a full disk is exhausted, at writing and at allocating") {
  MemoryFileSystem fs(MemoryFileSystemOptions{.capacity_bytes = 100});
  const auto file = fs.create("/a", IoMode::kBuffered);
  file->allocate(60);
  REQUIRE(fs.free_bytes("/") == 40);
  REQUIRE(code_of([&] { file->allocate(101); }) == Code::kResourceExhausted);
  const auto other = fs.create("/b", IoMode::kBuffered);
  REQUIRE(code_of([&] { other->write_at(0, Bytes(41)); }) == Code::kResourceExhausted);
  other->write_at(0, Bytes(40));
  REQUIRE(fs.free_bytes("/") == 0);
}

TEST_CASE("memory: removing files gives their room back") {
  MemoryFileSystem fs(MemoryFileSystemOptions{.capacity_bytes = 100});
  for (int i = 0; i < 5; ++i) {
    put(fs, "/a", std::string(90, 'x'));
    fs.remove_file("/a");
  }
  REQUIRE(fs.free_bytes("/") == 100);
}

TEST_CASE("counting tells which bytes of which file were read") {
  MemoryFileSystem memory;
  memory.write_file("/c/data", Bytes(1000));
  memory.write_file("/c/other", Bytes(10));
  CountingFileSystem fs(memory);
  const auto directory = fs.open_directory("/c");
  const auto file = directory->open("data");
  Bytes out(100);
  file->read_at(0, out);
  file->read_at(50, out);
  file->read_at(300, MutableBytes(out).first(10));
  file->read_at(150, out);
  REQUIRE(fs.of("/data").bytes_read == 310);
  REQUIRE(fs.of("/data").reads == 4);
  REQUIRE(fs.of("/other").opens == 0);
  REQUIRE(fs.total().opens == 1);
  REQUIRE(fs.ranges_read("/data") ==
          std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 250}, {300, 310}});
  REQUIRE(fs.bytes_read_within("/data", 200, 305) == 55);
  REQUIRE(fs.ranges_read("/other").empty());
  put(fs, "/c/new", "abc");
  REQUIRE(fs.of("/new").bytes_written == 3);
  REQUIRE(fs.of("/new").syncs == 1);
  fs.reset();
  REQUIRE(fs.total().bytes_read == 0);
}

}  // namespace file_system_contract_test

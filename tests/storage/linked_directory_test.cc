// Links to regular files stand for those files; nothing else is followed.
#include "lib/storage/linked_directory.h"

#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "lib/storage/posix/options.h"
#include "tests/storage/stage_fixture.h"

namespace linked_directory_test {

using namespace tessera;
using namespace tessera::test;
using storage::open_linked_directory;

TEST_CASE("a link to a file is that file: listed, looked at and opened") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  fs->create_directory(temp / "blobs");
  fs->create_directory(temp / "folder");
  put(*fs, temp / "blobs/11", "content");
  std::filesystem::create_symlink("../blobs/11", temp / "folder/model");
  std::filesystem::create_symlink("model", temp / "folder/again");
  const auto directory = open_linked_directory(*fs, temp / "folder");
  const auto plain = fs->stat(temp / "blobs/11");
  const std::vector<FileInfo> entries = directory->list();
  REQUIRE(entries.size() == 2);
  for (const FileInfo& entry : entries) {
    CHECK(entry.type == FileType::kRegular);
    CHECK(entry.size_bytes == 7);
    CHECK(entry.inode == plain->inode);
    CHECK(directory->stat(entry.name)->name == entry.name);
    Bytes bytes(7);
    directory->open(entry.name)->read_at(0, bytes);
    CHECK(as_text(bytes) == "content");
  }
  CHECK_FALSE(directory->stat("absent"));
  CHECK(code_of([&] { directory->open("absent"); }) == Code::kNotFound);
}

TEST_CASE("links to anything but a regular file stay links, and names do not leave the folder") {
  const TempDir temp;
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  fs->create_directory(temp / "folder");
  fs->create_directory(temp / "other");
  put(*fs, temp / "other/x", "1");
  const std::pair<const char*, const char*> links[] = {{"to_folder", "../other"},
                                                       {"dangling", "nowhere"},
                                                       {"device", "/dev/zero"},
                                                       {"process", "/proc/self/environ"},
                                                       {"self", "self"}};
  for (const auto& [name, target] : links)
    std::filesystem::create_symlink(target, temp / (std::string("folder/") + name));
  const auto directory = open_linked_directory(*fs, temp / "folder");
  for (const auto& [name, target] : links) {
    INFO(name);
    CHECK(directory->stat(name)->type == FileType::kSymlink);
    CHECK(code_of([&] { directory->open(name); }) == Code::kCorrupt);
  }
  for (const char* name : {"../other/x", "/etc/passwd", "to_folder/x"}) {
    INFO(name);
    CHECK(code_of([&] { directory->open(name); }) == Code::kCorrupt);
    CHECK(code_of([&] { (void)directory->stat(name); }) == Code::kCorrupt);
  }
}

}  // namespace linked_directory_test

// Names that come from a checkpoint never lead out of its folder, and only regular files open.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/storage/storage_fixture.h"

namespace confinement_test {

using namespace tessera;
using namespace tessera::test;
namespace stdfs = std::filesystem;

namespace {

// inside/ holds a file, a folder and every trap; outside is next to it.
struct Scene {
  TempDir temp;
  std::string inside = temp / "inside";

  explicit Scene(FileSystem& fs) {
    stdfs::create_directories(inside + "/sub/deep");
    put(fs, inside + "/file", "in");
    put(fs, inside + "/sub/deep/file", "deep");
    put(fs, temp / "outside", "secret");
    stdfs::create_symlink(temp / "outside", inside + "/link_absolute");
    stdfs::create_symlink("../outside", inside + "/link_relative");
    stdfs::create_symlink("file", inside + "/link_inside");
    stdfs::create_symlink("nowhere", inside + "/link_dangling");
    stdfs::create_directory_symlink("..", inside + "/link_folder");
    stdfs::create_directory_symlink("sub", inside + "/link_folder_inside");
    stdfs::create_directory_symlink("/proc/self", inside + "/link_proc");
    REQUIRE(::mkfifo((inside + "/fifo").c_str(), 0600) == 0);
  }
};

}  // namespace

TEST_CASE("a folder's files open by plain and nested names") {
  for (const bool use_openat2 : {true, false}) {
    storage::PosixOptions options;
    options.use_openat2 = use_openat2;
    const auto fs = make_posix_file_system(options);
    const Scene scene(*fs);
    const auto directory = fs->open_directory(scene.inside);
    for (const std::string name : {"file", "./file", "sub/deep/file", "sub//deep/./file"}) {
      INFO(name << ", openat2 " << use_openat2);
      const auto file = directory->open(name);
      const Bytes bytes = read_all(*file);
      REQUIRE(as_text(bytes) == (name.find("deep") == std::string::npos ? "in" : "deep"));
    }
    REQUIRE(directory->list("sub").size() == 1);
    REQUIRE(directory->list("").size() == 10);
  }
}

TEST_CASE("no name leads out of the folder") {
  for (const bool use_openat2 : {true, false}) {
    storage::PosixOptions options;
    options.use_openat2 = use_openat2;
    const auto fs = make_posix_file_system(options);
    const Scene scene(*fs);
    const auto directory = fs->open_directory(scene.inside);
    const std::string nul("file\0x", 6);
    const std::vector<std::string> names = {"../outside",
                                            "sub/../../outside",
                                            "sub/..",
                                            "..",
                                            "/etc/passwd",
                                            scene.temp / "outside",
                                            "//etc/passwd",
                                            nul,
                                            "",
                                            ".",
                                            "./",
                                            "link_absolute",
                                            "link_relative",
                                            "link_inside",
                                            "link_dangling",
                                            "link_folder/outside",
                                            "link_folder_inside/deep/file",
                                            "link_proc/status",
                                            "fifo",
                                            "sub",
                                            "sub/deep"};
    for (const std::string& name : names) {
      INFO(name << ", openat2 " << use_openat2);
      REQUIRE(code_of([&] { directory->open(name); }) == Code::kCorrupt);
      REQUIRE(code_of([&] { directory->open(name, IoMode::kDirect); }) == Code::kCorrupt);
    }
    for (const std::string name : {"absent", "sub/absent", "file/below", "absent/file"}) {
      INFO(name << ", openat2 " << use_openat2);
      REQUIRE(code_of([&] { directory->open(name); }) == Code::kNotFound);
      REQUIRE(!directory->stat(name));
    }
  }
}

TEST_CASE("a link is named in the message, whichever component it is") {
  for (const bool use_openat2 : {true, false}) {
    storage::PosixOptions options;
    options.use_openat2 = use_openat2;
    const auto fs = make_posix_file_system(options);
    const Scene scene(*fs);
    const auto directory = fs->open_directory(scene.inside);
    REQUIRE(message_of([&] { directory->open("link_inside"); }) ==
            "corrupt: " + scene.inside +
                "/link_inside is a symbolic link; files of a checkpoint must lie in its folder");
    REQUIRE(message_of([&] {
              directory->open("link_folder_inside/deep/file");
            }).find(scene.inside + "/link_folder_inside is a symbolic link") != std::string::npos);
    REQUIRE(code_of([&] { directory->list("link_folder"); }) == Code::kCorrupt);
    REQUIRE(code_of([&] { directory->list(".."); }) == Code::kCorrupt);
    REQUIRE(code_of([&] { (void)directory->stat("link_folder/outside"); }) == Code::kCorrupt);
    REQUIRE(directory->stat("link_inside")->type == FileType::kSymlink);
    REQUIRE(directory->stat("fifo")->type == FileType::kOther);
    REQUIRE(directory->stat("sub")->type == FileType::kDirectory);
  }
}

TEST_CASE("sockets and devices do not open") {
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  const TempDir temp;
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", temp.path().c_str());
  REQUIRE(::bind(server, reinterpret_cast<struct sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(code_of([&] { fs->open_directory(temp.path())->open("socket"); }) == Code::kCorrupt);
  ::close(server);
  for (const std::string name : {"null", "zero", "full"})
    REQUIRE(code_of([&] { fs->open_directory("/dev")->open(name); }) == Code::kCorrupt);
}

TEST_CASE("the path that the user typed may be a link") {
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  const Scene scene(*fs);
  stdfs::create_directory_symlink(scene.inside, scene.temp / "typed");
  const Bytes bytes = read_all(*fs->open_directory(scene.temp / "typed")->open("file"));
  REQUIRE(as_text(bytes) == "in");
  REQUIRE(fs->stat(scene.temp / "typed")->type == FileType::kDirectory);
  REQUIRE(fs->canonical(scene.temp / "typed") == scene.inside);
}

TEST_CASE("the folder stays the one that was opened when its name moves") {
  const auto fs = make_posix_file_system(storage::PosixOptions{});
  const Scene scene(*fs);
  const auto directory = fs->open_directory(scene.inside);
  fs->rename(scene.inside, scene.temp / "moved");
  fs->create_directory(scene.inside);
  put(*fs, scene.inside + "/file", "other");
  const Bytes bytes = read_all(*directory->open("file"));
  REQUIRE(as_text(bytes) == "in");
}

TEST_CASE("memory file systems refuse the same names") {
  MemoryFileSystem fs;
  fs.write_file("/inside/sub/file", as_bytes("deep"));
  fs.write_file("/outside", as_bytes("secret"));
  fs.add_symlink("/inside/link", "sub/file");
  fs.add_symlink("/inside/folder", "sub");
  fs.add_symlink("/typed", "/inside");
  const auto directory = fs.open_directory("/typed");
  for (const std::string name : {"../outside", "/outside", "link", "folder/file", "sub", "", ".."})
    REQUIRE(code_of([&] { directory->open(name); }) == Code::kCorrupt);
  REQUIRE(code_of([&] { directory->open("sub/none"); }) == Code::kNotFound);
  REQUIRE(directory->open("sub/file")->size_bytes() == 4);
  REQUIRE(directory->stat("link")->type == FileType::kSymlink);
  REQUIRE(fs.canonical("/typed/sub/../sub/file") == "/inside/sub/file");
  fs.add_symlink("/loop", "/loop");
  REQUIRE(code_of([&] { fs.open_directory("/loop"); }) == Code::kIo);
}

}  // namespace confinement_test

// A checkpoint that is replaced while it is read: the reader opens it once more, and gives the old
// one or the new one, never parts of both. What goes on changing is said to have changed.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/convert_case.h"
#include "tests/support/run_command.h"
#include "tests/support/sample_case.h"
#include "tools/failure.h"
#include "tools/reopen.h"

namespace replaced_test {

using namespace tessera;
using namespace tessera::testing;
using tools::Outcome;

namespace {

/// Work on `paths` that calls `each` with the number of the run, from 1.
struct Reader {
  FileSystem& fs;
  std::vector<std::string> paths;
  bool writes = false;
  int runs = 0;

  template <class Each>
  Outcome read(Each each) {
    runs = 0;
    return tools::read_steadily(fs, paths, writes, [&] { return each(++runs); });
  }
  template <class Each>
  Status refusal(Each each) {
    try {
      read(each);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
};

Outcome with_exit(int exit) { return {.out = fmt::format("exit {}", exit), .exit = exit}; }

/// A folder `ck` with a file, and a file `one.pt`, on a real disk.
struct Scene {
  TemporaryFolder folder;
  std::unique_ptr<FileSystem> fs = make_posix_file_system();

  Scene() {
    write("ck/file", "old");
    write("one.pt", "old");
  }
  std::string at(const std::string& name) const { return folder / name; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name)) << text;
  }
  /// Puts another folder in the place of `ck`, as --force does.
  void replace_folder(const std::string& text) const {
    write("new/file", text);
    REQUIRE(fs->exchange(at("new"), at("ck")));
    fs->remove_tree(at("new"));
  }
  void replace_file(const std::string& text) const {
    write("new.pt", text);
    fs->rename(at("new.pt"), at("one.pt"));
  }
};

}  // namespace

TEST_CASE("damage that a replacement explains is read once more, and only once") {
  const Scene scene;
  Reader reader{*scene.fs, {scene.at("ck")}};
  const Outcome outcome = reader.read([&](int run) {
    if (run > 1) return with_exit(0);
    scene.replace_folder("new");
    fail(Code::kCorrupt, "a part of the checkpoint is missing");
  });
  CHECK(outcome.exit == 0);
  CHECK(reader.runs == 2);
  const Status status = reader.refusal([&](int run) -> Outcome {
    scene.replace_folder(fmt::format("run {}", run));
    fail(Code::kNotFound, "gone");
  });
  CHECK(reader.runs == 2);
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.message == "it changed while it was read: gone");
  CHECK(status.context.file == scene.at("ck"));
}

TEST_CASE("damage of what nobody replaced stands, and so does what is no damage") {
  const Scene scene;
  Reader reader{*scene.fs, {scene.at("ck")}};
  const Status damaged =
      reader.refusal([](int) -> Outcome { fail(Code::kCorrupt, "a bit turned"); });
  CHECK(damaged.message == "a bit turned");
  CHECK(reader.runs == 1);
  const Status mistyped = reader.refusal([&](int) -> Outcome {
    scene.replace_folder("new");
    fail(Code::kInvalidArgument, "no such tensor");
  });
  CHECK(mistyped.message == "no such tensor");
  CHECK(reader.runs == 1);
}

TEST_CASE(
    "a negative result of what was replaced is looked at again, a positive one of a folder "
    "stands") {
  const Scene scene;
  Reader reader{*scene.fs, {scene.at("ck")}};
  const Outcome second = reader.read([&](int run) {
    if (run == 1) scene.replace_folder("new");
    return with_exit(run == 1 ? 1 : 0);
  });
  CHECK(second.exit == 0);
  CHECK(reader.runs == 2);
  CHECK(reader.read([](int) { return with_exit(1); }).exit == 1);
  CHECK(reader.runs == 1);
  // The folder was held open: all of it was the old one's.
  reader.read([&](int) {
    scene.replace_folder("newer");
    return with_exit(0);
  });
  CHECK(reader.runs == 1);
  reader.writes = true;  // what is written is there
  reader.read([&](int) {
    scene.replace_folder("newest");
    return with_exit(1);
  });
  CHECK(reader.runs == 1);
}

TEST_CASE("a file that another took the place of is read once more even where all went well") {
  const Scene scene;
  Reader reader{*scene.fs, {scene.at("one.pt")}};
  reader.read([&](int run) {
    if (run == 1) scene.replace_file("new");
    return with_exit(0);
  });
  CHECK(reader.runs == 2);
  const Status status = reader.refusal([&](int run) {
    scene.replace_file(fmt::format("run {}", run));
    return with_exit(0);
  });
  CHECK(status.message == "it changed while it was read");
  CHECK(reader.runs == 2);
}

TEST_CASE("hash of a checkpoint that is replaced at any read is the old one's or the new one's") {
  for (int moment = 0; moment < 3; ++moment) {
    const Scene scene;
    FileSystem& fs = *scene.fs;
    fs.remove_tree(scene.at("ck"));
    ConvertOptions options =
        convert_options(case_path("dcp/fsdp2_w2"), scene.at("ck"), 2, "torch-dcp");
    convert(fs, options);
    options.destination = scene.at("other");
    options.selection.only = Part::kModel;
    convert(fs, options);
    const auto root_at = [&](const std::string& name) {
      OpenedCheckpoint opened = open_checkpoint(fs, scene.at(name));
      opened.locate_all({});
      return hash_checkpoint(opened).root;
    };
    const std::string old_root = root_at("ck"), new_root = root_at("other");
    REQUIRE(old_root != new_root);
    Reader reader{fs, {scene.at("ck")}};
    const Outcome outcome = reader.read([&](int run) {
      const auto pass = [&](int when) {
        if (run > 1 || when != moment) return;
        REQUIRE(fs.exchange(scene.at("other"), scene.at("ck")));
        fs.remove_tree(scene.at("other"));
      };
      pass(0);
      OpenedCheckpoint opened = open_checkpoint(fs, scene.at("ck"));
      pass(1);
      opened.locate_all({});
      pass(2);
      return Outcome{.out = hash_checkpoint(opened).root};
    });
    INFO(moment);
    CHECK(outcome.out == new_root);  // the old one is gone before its data are read
    CHECK(reader.runs == (moment == 0 ? 1 : 2));
  }
}

}  // namespace replaced_test

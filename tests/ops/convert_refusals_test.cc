// What convert refuses, and that a refusal leaves nothing behind.
#include <fmt/format.h>
#include <sys/stat.h>
#include <tessera/base/error.h>
#include <tessera/storage/observed_file_system.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "lib/ops/convert/request.h"
#include "tests/support/convert_case.h"
#include "tests/support/run_command.h"
#include "tests/support/sample_case.h"

namespace convert_refusals_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Code code_of(const std::function<void()>& f, std::string* message = nullptr) {
  try {
    f();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Code::kOk;
}

}  // namespace

TEST_CASE("bad requests are refused and nothing changes") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  fs.make_directories("/there");
  auto before = fs.contents("/");
  auto refuse = [&](const ConvertOptions& options) {
    std::string message;
    Code code = code_of([&] { convert(fs, options); }, &message);
    INFO(message);
    CHECK(fs.contents("/") == before);
    return code;
  };
  CHECK(refuse(convert_options(source, source, 3)) == Code::kInvalidArgument);
  CHECK(refuse(convert_options(source, source + "/inner", 3)) == Code::kInvalidArgument);
  CHECK(refuse(convert_options(source, "/there", 3)) == Code::kAlreadyExists);
  CHECK(refuse(convert_options(source, "/out", 3, "safetensors")) == Code::kUnsupported);
  CHECK(refuse(convert_options(source, "/out", 0)) == Code::kInvalidArgument);
  CHECK(refuse(convert_options(source, "/out", {}, "safetensor")) == Code::kInvalidArgument);
  CHECK(refuse(convert_options(source, "/out.pt", {}, "safetensors")) == Code::kInvalidArgument);
  CHECK(refuse(convert_options("/nowhere", "/out", 3)) == Code::kNotFound);
  ConvertOptions options = convert_options(source, "/out", 3);
  options.selection.exclude = {"nothing.like.this*"};
  CHECK(refuse(options) == Code::kInvalidArgument);
  options = convert_options(source, "/out", 3);
  options.names.renames = {{"nothing.*", "x.*"}};
  CHECK(refuse(options) == Code::kInvalidArgument);
  options.names.renames = {{"*.weight", "same"}};
  CHECK(refuse(options) == Code::kInvalidArgument);
  options = convert_options(source, "/out", 3);
  options.resume = true;
  CHECK(refuse(options) == Code::kNotFound);
}

TEST_CASE("force does not replace a file that the source is made of") {
  MemoryFileSystem fs;
  OpenedCheckpoint source;
  source.path = "/c/main.h5";
  source.display = "main.h5";
  source.file = "main.h5";
  source.manifest.files = {{"main.h5", 1, 0}, {"parts/rank0.h5", 1, 0}};
  fs.make_directories("/c/parts");
  for (const std::string taken : {"/c/parts/rank0.h5", "/c/parts"}) {
    std::string message;
    CHECK(code_of([&] { check_not_a_part(fs, source, taken); }, &message) ==
          Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("parts/rank0.h5"));
  }
  check_not_a_part(fs, source, "/c/parts/rank0.h5.safetensors");
  check_not_a_part(fs, source, "/c/out");
}

TEST_CASE("force replaces an empty folder or a checkpoint, never other people's files") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  fs.make_directories("/precious");
  fs.make_directories("/empty");
  fs.write_file("/precious/thesis.tex", as_bytes("years"));
  const auto before = fs.contents("/precious");
  ConvertOptions options = convert_options(source, "/precious", 3);
  options.force = true;
  CHECK(code_of([&] { convert(fs, options); }) == Code::kInvalidArgument);
  CHECK(fs.contents("/precious") == before);
  options.destination = "/empty";
  CHECK(convert(fs, options).published);
  CHECK(convert(fs, options).published);  // over its own result
}

TEST_CASE("what cannot be replaced is refused before any work, in a dry run too") {
  namespace stdfs = std::filesystem;
  const TemporaryFolder folder;
  const auto fs = make_posix_file_system();
  const std::string source = folder / "source";
  stdfs::copy(case_path("dcp/fsdp2_w2"), source, stdfs::copy_options::recursive);
  stdfs::create_symlink("nowhere", folder / "dangling");
  stdfs::create_symlink("nowhere.pt", folder / "dangling.pt");
  stdfs::create_symlink("source", folder / "to_source");
  stdfs::create_symlink("/dev/null", folder / "null.pt");
  stdfs::create_directory(folder / "folder.pt");
  std::ofstream(folder / "file") << "somebody's";
  for (const char* pipe : {"pipe", "pipe.pt"})
    REQUIRE(::mkfifo((folder / pipe).c_str(), 0600) == 0);
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : stdfs::recursive_directory_iterator(folder.path()))
      found.insert(entry.path());
    return found;
  };
  const auto before = names();
  const std::pair<std::string, const char*> cases[] = {
      {"dangling", "is a symbolic link"},
      {"dangling.pt", "is a symbolic link"},
      {"to_source", "are the same"},
      {"to_source/below", "lies inside the other"},
      {"source", "are the same"},
      {"source/below", "lies inside the other"},
      {"null.pt", "/dev/null is not a regular file"},
      {"folder.pt", "is not a regular file"},
      {"file", "is not a folder"},
      {"file/below", "Not a directory"},
      {"pipe", "is not a folder"},
      {"pipe.pt", "is not a regular file"},
      {std::string(229, 'x'), "229 bytes long; 228 are the most"},
      {".", "lies inside the other"},
      {"..", "lies inside the other"},
  };
  int refusals = 0;
  for (const auto& [name, what] : cases)
    for (const bool dry_run : {false, true})
      for (const bool force : {false, true}) {
        const bool is_file = name.ends_with(".pt");
        ConvertOptions options =
            convert_options(source, folder / name, {}, is_file ? "" : "torch-dcp");
        options.dry_run = dry_run;
        options.force = force;
        std::string message;
        const Code code = code_of([&] { convert(*fs, options); }, &message);
        INFO(name << ", dry run " << dry_run << ", force " << force << ": " << message);
        CHECK(code == (name == "file/below" ? Code::kNotFound : Code::kInvalidArgument));
        CHECK(message.find(what) != std::string::npos);
        CHECK(names() == before);
        ++refusals;
      }
  fmt::print("destinations: {} refused before any work, nothing made or removed\n", refusals);
  REQUIRE(refusals >= 60);
  CHECK(convert(*fs, convert_options(source, folder / std::string(228, 'x'), 2)).published);
}

TEST_CASE("a disk too small is found before any work") {
  MemoryFileSystem fs({true, true, 400'000});
  std::string source = load_sample(fs, "dcp/fsdp2_w4");
  std::string message;
  CHECK(code_of([&] { convert(fs, convert_options(source, "/out", 3)); }, &message) ==
        Code::kResourceExhausted);
  CHECK(message.find("free") != std::string::npos);
  CHECK_FALSE(fs.stat("/out"));
}

namespace {

/// Rewrites a source file when the first output file is synced.
class RewriteSource final : public ObservedFileSystem {
 public:
  RewriteSource(MemoryFileSystem& inner, std::string path)
      : ObservedFileSystem(inner), memory_(inner), path_(std::move(path)) {}

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kSync && !done_.exchange(true)) {
      std::byte one = memory_.read_file(path_).front();
      std::unique_ptr<WriteFile> file = memory_.reopen(path_, IoMode::kBuffered);
      file->write_at(0, {&one, 1});  // the same byte: only the time tells
      file->close();
    }
  }

 private:
  MemoryFileSystem& memory_;
  std::string path_;
  mutable std::atomic<bool> done_{false};
};

}  // namespace

TEST_CASE("a source that changes while it is read is not published") {
  MemoryFileSystem fs;
  std::string source = load_sample(fs, "dcp/fsdp2_w2");
  RewriteSource changing(fs, "/source/__0_0.distcp");
  std::string message;
  CHECK(code_of([&] { convert(changing, convert_options(source, "/out", 3)); }, &message) ==
        Code::kCorrupt);
  CHECK(message.find("changed") != std::string::npos);
  CHECK_FALSE(fs.stat("/out"));
}

}  // namespace convert_refusals_test

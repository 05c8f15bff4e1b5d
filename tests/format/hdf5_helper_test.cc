// What the toolkit makes of a tessera-hdf5 that crashes, lies, hangs or is not there.
#include <fmt/format.h>
#include <stdlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lib/format/hdf5/wire.h"
#include "tests/format/hdf5_fixture.h"

namespace tessera::hdf5_helper_test {
namespace {

using namespace testing;
namespace fs = std::filesystem;

/// A program of a few shell lines, whose descriptor 0 is the socket.
class FakeHelper {
 public:
  explicit FakeHelper(const std::string& script) {
    std::string name = (fs::temp_directory_path() / "tessera-fake-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    std::ofstream(path()) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(path(), fs::perms::owner_all);
  }
  ~FakeHelper() { fs::remove_all(folder_); }
  std::string path() const { return folder_ / "helper"; }

 private:
  fs::path folder_;
};

Status answer_of(const std::string& script, const h5::HelperLimits& limits = {}) {
  const FakeHelper helper(script);
  MemoryFileSystem memory;
  memory.write_file("/c/x.h5", as_bytes("0123456789"));
  const auto file = memory.open_directory("/c")->open("x.h5");
  return status_of([&] { h5::describe_file(helper.path(), *file, limits); });
}

}  // namespace

TEST_CASE("a helper that ends early or is killed is damage, and no hang") {
  CHECK(answer_of("exit 0").code == Code::kCorrupt);
  CHECK(answer_of("exit 3").code == Code::kCorrupt);
  CHECK(answer_of("kill -SEGV $$").code == Code::kCorrupt);
  CHECK(answer_of("kill -SYS $$").message.find("forbidden") != std::string::npos);
  CHECK(answer_of("kill -XCPU $$").code == Code::kResourceExhausted);
  CHECK(answer_of("exit 127").code == Code::kUnsupported);  // the loader found no libhdf5
}

TEST_CASE("a silent helper is given up after its time") {
  const auto start = std::chrono::steady_clock::now();
  const Status status = answer_of("exec sleep 30", {.cpu_seconds = 5, .silence_ms = 200});
  CHECK(status.code == Code::kResourceExhausted);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("garbage instead of frames is damage") {
  CHECK(answer_of("printf 'what is this, no frame at all' >&0").code == Code::kCorrupt);
  CHECK(answer_of("printf '\\002\\377\\377\\377\\377' >&0").code == Code::kCorrupt);  // 4 GiB
  CHECK(answer_of("printf '\\007\\000\\000\\000\\000' >&0").code == Code::kCorrupt);
  // A read past the file's end, and one without its numbers.
  CHECK(answer_of("printf '\\001\\014\\000\\000\\000\\005\\0\\0\\0\\0\\0\\0\\0\\006\\0\\0\\0' >&0")
            .code == Code::kCorrupt);
  CHECK(answer_of("printf '\\001\\001\\000\\000\\000x' >&0").code == Code::kCorrupt);
}

TEST_CASE("what a helper says of its own is passed on, made printable") {
  const Status status = answer_of("printf '\\003\\006\\000\\000\\000\\002a\\033[1m' >&0");
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message.find('\x1b') == std::string::npos);
}

TEST_CASE("a report that ends is taken whole") {
  const FakeHelper helper(
      "printf '\\002\\003\\000\\000\\000abc\\002\\001\\000\\000\\000d\\004\\000\\000\\000\\000' "
      ">&0");
  MemoryFileSystem memory;
  memory.write_file("/c/x.h5", as_bytes("0123456789"));
  const auto file = memory.open_directory("/c")->open("x.h5");
  CHECK(as_text(h5::describe_file(helper.path(), *file)) == "abcd");
}

TEST_CASE("without tessera-hdf5 reading is unsupported and says what is missing") {
  const char* old = std::getenv("TESSERA_HDF5");
  const std::string before = old ? old : "";
  setenv("TESSERA_HDF5", "/nowhere/tessera-hdf5", 1);
  const SampleCase sample("hdf5/contiguous");
  const Status status = status_of([&] { hdf5_driver().manifest(sample.place(), {}); });
  if (old)
    setenv("TESSERA_HDF5", before.c_str(), 1);
  else
    unsetenv("TESSERA_HDF5");
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message.find("tessera-hdf5") != std::string::npos);
}

}  // namespace tessera::hdf5_helper_test

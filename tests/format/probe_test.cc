// What detection makes of a probe that throws: content is an answer, a failing machine is none.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "tests/support/convert_case.h"

namespace tessera::probe_test {
namespace {

class ThrowingDriver final : public FormatDriver {
 public:
  explicit ThrowingDriver(Code code) : code_(code) {}
  std::string_view id() const override { return "throwing"; }
  Capabilities capabilities() const override { return {}; }
  ProbeResult probe(const Place&) const override { fail(code_, "what the probe met"); }
  Manifest manifest(const Place&, const ReadOptions&) const override { return {}; }
  void locate(const Place&, Manifest&, std::span<const std::uint32_t>,
              const ReadOptions&) const override {}
  OutputPlan output_plan(const Manifest&, const TargetRequest&) const override { return {}; }

 private:
  Code code_;
};

Code code_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return Code::kInternal;
}

}  // namespace

TEST_CASE("content that a probe cannot read is somebody else's") {
  const Code code = GENERATE(Code::kCorrupt, Code::kUnsupported, Code::kNotFound,
                             Code::kInvalidArgument, Code::kOutOfRange);
  CHECK(probe_place(ThrowingDriver(code), {}).answer == ProbeResult::Answer::kNo);
}

TEST_CASE("a failing machine is no answer of a probe") {
  const Code code = GENERATE(Code::kIo, Code::kResourceExhausted, Code::kTimeout, Code::kCancelled,
                             Code::kInternal);
  CHECK(code_of([code] { probe_place(ThrowingDriver(code), {}); }) == code);
}

TEST_CASE("no probe takes a folder or a file that is not there for its own") {
  MemoryFileSystem fs;
  fs.make_directories("/c");
  const auto directory = fs.open_directory("/c");
  for (const FormatDriver* driver : all_formats()) {
    CAPTURE(std::string(driver->id()));
    CHECK(probe_place(*driver, {directory.get(), "absent", "absent"}).answer ==
          ProbeResult::Answer::kNo);
    CHECK(probe_place(*driver, {directory.get(), "", "c"}).answer == ProbeResult::Answer::kNo);
  }
}

TEST_CASE("every read of detection that fails is said") {
  const std::string name =
      GENERATE("dcp/fsdp2_w2", "torchsave/plain_zip", "safetensors/hf_sharded");
  MemoryFileSystem disk;
  const std::string path = testing::load_sample(disk, name);
  const bool one_file = disk.stat(path)->type == FileType::kRegular;
  const std::string folder = one_file ? path.substr(0, path.rfind('/')) : path;
  const std::string file = one_file ? path.substr(path.rfind('/') + 1) : "";
  std::uint64_t at = 1;
  for (;; ++at) {
    CAPTURE(name, at);
    const FaultyFileSystem failing(disk, {.at = at});
    std::optional<Code> code;
    try {
      const auto directory = failing.open_directory(folder);
      detect_format({directory.get(), file, path});
    } catch (const Error& error) {
      code = error.code();
    }
    if (failing.faults() == 0) break;
    CHECK(code == Code::kIo);
  }
  CHECK(at > 3);
}

}  // namespace tessera::probe_test

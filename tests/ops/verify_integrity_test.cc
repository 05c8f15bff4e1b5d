// integrity.json of a Megatron-core checkpoint: every listed file is held against its SHA-256.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace tessera::verify_integrity_test {
namespace {

struct Sealed {
  MemoryFileSystem fs;
  std::string folder;

  Sealed() {
    testing::load_sample(fs, "megatron/torch_dist_tp2_dp1");
    folder = "/source/iter_0000100";
    std::string list;
    for (const FileInfo& info : fs.open_directory(folder)->list())
      list += fmt::format(R"({}"{}":"{}")", list.empty() ? "" : ",", info.name,
                          hex(sha256(fs.read_file(folder + "/" + info.name))));
    write(R"({"algorithm":"sha256","files":{)" + list + "}}");
  }
  void write(const std::string& text) { fs.write_file(folder + "/integrity.json", as_bytes(text)); }
  VerifyReport verify(VerifyLevel level = VerifyLevel::kFull) {
    VerifyOptions options;
    options.level = level;
    return verify_checkpoint(fs, folder, options);
  }
  std::vector<std::string> files_found(VerifyLevel level = VerifyLevel::kFull) {
    std::vector<std::string> files;
    for (const Note& note : verify(level).findings)
      if (testing::note_code(note) == "CK096")
        files.push_back(testing::note_severity(note) + " " + note.file);
    return files;
  }
};

}  // namespace

TEST_CASE("a checkpoint that is what its integrity file lists verifies") {
  Sealed sealed;
  CHECK(sealed.verify().ok);
  CHECK(sealed.files_found().empty());
}

TEST_CASE("a turned bit outside of any record is found by the list of sums") {
  Sealed sealed;
  Bytes config = sealed.fs.read_file(sealed.folder + "/metadata.json");
  config.push_back(std::byte{' '});
  sealed.fs.write_file(sealed.folder + "/metadata.json", config);
  CHECK(sealed.files_found() == std::vector<std::string>{"error metadata.json"});
  CHECK(sealed.files_found(VerifyLevel::kDeep).size() == 1);
  CHECK(sealed.files_found(VerifyLevel::kQuick).empty());
  CHECK_FALSE(sealed.verify().ok);
}

TEST_CASE("files the list names and the folder lacks are errors and the other way round warnings") {
  Sealed sealed;
  sealed.write(R"({"algorithm":"sha256","files":{"gone":"00"}})");
  const auto found = sealed.files_found();
  CHECK(std::ranges::count(found, "error gone") == 1);
  CHECK(std::ranges::count(found, "warning common.pt") == 1);
}

TEST_CASE("a list that leaves the folder or is no list is refused") {
  Sealed sealed;
  for (const std::string text :
       {R"({"algorithm":"sha256","files":{"../x":"00"}})", R"({"files":{}})", "[]", "{"}) {
    CAPTURE(text);
    sealed.write(text);
    CHECK_THROWS_AS(sealed.verify(), Error);
  }
  sealed.write(R"({"algorithm":"md5","files":{"common.pt":"00"}})");
  CHECK(sealed.files_found() == std::vector<std::string>{"warning integrity.json"});
}

TEST_CASE("values that differ from a hash report are told") {
  MemoryFileSystem fs;
  const std::string source = testing::load_sample(fs, "dcp/fsdp2_w2");
  OpenedCheckpoint opened = open_checkpoint(fs, source);
  opened.locate_all({});
  const HashReport hashed = hash_checkpoint(opened);
  for (const bool same : {true, false}) {
    CAPTURE(same);
    std::string report = testing::hash_report(hashed.tensors);
    report.insert(1, fmt::format(R"("values_root":"{}",)", same ? hashed.values_root_v1 : "00"));
    fs.write_file("/hash.json", as_bytes(report));
    VerifyOptions options;
    options.against = "/hash.json";
    const VerifyReport found = verify_checkpoint(fs, source, options);
    CHECK(found.ok);  // a warning: not every format keeps every value
    CHECK(std::ranges::any_of(found.findings, [](const Note& note) {
            return testing::note_code(note) == "CK047" && note.severity == Severity::kWarning;
          }) != same);
  }
}

}  // namespace tessera::verify_integrity_test

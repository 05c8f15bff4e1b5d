// Findings of one cause are one line, and several PATHs are all reported on.
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <set>

#include "lib/ops/verify/causes.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/verify_case.h"

namespace verify_causes_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("what a short file took along is one cause, with its bytes and its tensors") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w4");
  const std::size_t size = fs.read_file("/source/__3_0.distcp").size();
  edit(fs, "/source/__3_0.distcp", [](Bytes& bytes) { bytes.resize(100); });
  const VerifyReport report = verify(fs, "/source");
  std::set<std::string> tensors;
  std::size_t findings = 0;
  for (const Note& note : report.findings) {
    if (note.file != "__3_0.distcp") continue;
    ++findings;
    if (!note.tensor.empty()) tensors.insert(note.tensor);
  }
  REQUIRE(findings > 2);
  std::vector<DamageCause> of_file;
  for (const DamageCause& cause : report.causes)
    if (cause.file == "__3_0.distcp") of_file.push_back(cause);
  REQUIRE(of_file.size() == 1);
  CHECK(note_code(of_file[0]) == "CK011");
  CHECK(of_file[0].severity == Severity::kError);
  CHECK(of_file[0].findings == findings);
  CHECK(of_file[0].tensors.size() == tensors.size());
  CHECK(of_file[0].message == "__3_0.distcp is " + format_bytes(size - 100) + " short");
}

TEST_CASE("every finding is in one cause, and one alone keeps its own words") {
  const std::vector<Note> findings{
      {Finding::kHole, Severity::kError, "a hole", "", "a"},
      {Finding::kHole, Severity::kError, "another hole", "", "b"},
      {Finding::kShortFile, Severity::kError, "its item ends past the end", "f", "c"},
      {Finding::kUncomparedReplicas, Severity::kInfo, "alike", "g", "d"},
      {Finding::kUncomparedReplicas, Severity::kInfo, "alike", "g", "e"}};
  const std::vector<DamageCause> causes = find_causes(findings, {});
  REQUIRE(causes.size() == 4);
  std::size_t all = 0;
  for (const DamageCause& cause : causes) all += cause.findings;
  CHECK(all == findings.size());
  CHECK(causes[2].message == "its item ends past the end");
  CHECK(causes[3].tensors == std::vector<std::string>{"d", "e"});
}

TEST_CASE("a missing file is named once for all that it held") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w4");
  fs.remove_file("/source/__3_0.distcp");
  const VerifyReport report = verify(fs, "/source");
  std::size_t of_file = 0;
  for (const DamageCause& cause : report.causes) of_file += cause.file == "__3_0.distcp";
  CHECK(of_file == 1);
  CHECK(note_code(report.causes[0]) == "CK010");
  CHECK(report.causes[0].tensors.size() > 1);
}

TEST_CASE("what cannot be opened is a finding beside the reports of others") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  copy_to(fs, "/run/a");
  copy_to(fs, "/run/b");
  fs.remove_file("/run/b/.metadata");
  std::optional<Status> failure;
  const VerifyReport sound = verify_or_report(fs, "/run/a", {}, failure);
  CHECK(sound.ok);
  CHECK_FALSE(failure);
  for (const auto& [path, code] :
       {std::pair("/run/b", Code::kCorrupt), std::pair("/run/absent", Code::kNotFound)}) {
    const VerifyReport broken = verify_or_report(fs, path, {}, failure);
    CHECK_FALSE(broken.ok);
    CHECK(broken.path == path);
    REQUIRE(broken.findings.size() == 1);
    CHECK(note_code(broken.findings[0]) == "CK001");
    CHECK(broken.causes.size() == 1);
    REQUIRE(failure);
    CHECK(failure->code == code);
  }
}

}  // namespace verify_causes_test

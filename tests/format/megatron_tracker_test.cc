// The tracker file beside a result that Megatron-LM would look for: written after the result is
// whole, never over a later one.
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/storage/faulty_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/support/megatron_case.h"
#include "tests/support/note_text.h"

namespace tessera::megatron_tracker_test {
namespace {

constexpr const char* kTracker = "/run/latest_checkpointed_iteration.txt";

/// A run's folder and a source beside it.
struct Run {
  MemoryFileSystem fs;
  Run() {
    testing::write_toy(fs, "/source", {});
    fs.make_directories("/run");
  }
  ConvertOptions options(const std::string& name, const std::string& format = "") const {
    ConvertOptions out;
    out.source = "/source";
    out.destination = "/run/" + name;
    out.to = format;
    out.target.mesh = Mesh::parse("tp=2");
    if (format == "torch-save") out.target.mesh.reset();
    return out;
  }
  Note write(const std::string& name, const std::string& format = "") {
    return note_of(convert(fs, options(name, format)));
  }
  static Note note_of(const ConvertReport& report) {
    const auto found = std::ranges::find(report.notes, "TRACKER", testing::note_code<Note>);
    return found == report.notes.end() ? Note{} : *found;
  }
  std::string tracker() const {
    const auto all = fs.contents("/run");
    const auto found = all.find("latest_checkpointed_iteration.txt");
    return found == all.end() ? "absent" : found->second;
  }
};

}  // namespace

TEST_CASE("a result named as an iteration gets the tracker file that Megatron looks for") {
  for (const std::string format : {"megatron-torch", "megatron-dist"}) {
    Run run;
    const Note note = run.write("iter_0000100", format);
    CHECK(run.tracker() == "100");
    CHECK(note.severity == Severity::kInfo);
    CHECK_THAT(note.message, Catch::Contains("written, names 100"));
    const OpenedCheckpoint opened = open_checkpoint(run.fs, "/run");
    CHECK(opened.path.ends_with("iter_0000100"));
    for (const auto& [path, bytes] : run.fs.contents("/run"))
      CHECK_FALSE(path.starts_with("."));  // nothing of the commit is left
  }
}

TEST_CASE("a release is tracked by its name") {
  Run run;
  run.write("release");
  CHECK(run.tracker() == "release");
}

TEST_CASE("an earlier tracker is replaced and the same one kept") {
  Run run;
  run.fs.write_file(kTracker, as_bytes(std::string_view("99\n")));
  CHECK_THAT(run.write("iter_0000100").message, Catch::Contains("it named 99"));
  CHECK(run.tracker() == "100");
  ConvertOptions again = run.options("iter_0000100");
  again.force = true;
  CHECK_THAT(Run::note_of(convert(run.fs, again)).message, Catch::Contains("already"));
}

TEST_CASE("a later tracker and one that cannot be compared are left alone with a warning") {
  for (const std::string text : {"101", "release", "", "what?"}) {
    CAPTURE(text);
    Run run;
    run.fs.write_file(kTracker, as_bytes(text));
    const Note note = run.write("iter_0000100");
    CHECK(run.tracker() == text);
    CHECK(note.severity == Severity::kWarning);
    CHECK_THAT(note.message,
               Catch::Contains("printf 100 > '/run/latest_checkpointed_iteration.txt'"));
  }
}

TEST_CASE("other names and other formats get no tracker") {
  for (const std::string name : {"out", "iter_100", "iter_x", "iter_00000100", "iter_-000100"}) {
    CAPTURE(name);
    Run run;
    CHECK(run.write(name).code == Finding::kNone);
    CHECK(run.tracker() == "absent");
  }
  Run run;
  CHECK(run.write("iter_0000100", "torch-save").code == Finding::kNone);
  CHECK(run.tracker() == "absent");
}

TEST_CASE("a dry run says what would become of the tracker") {
  Run run;
  ConvertOptions options = run.options("iter_0000100");
  options.dry_run = true;
  CHECK_THAT(Run::note_of(convert(run.fs, options)).message, Catch::Contains("would be written"));
  CHECK(run.fs.contents("/run").empty());
}

TEST_CASE("at every fault the tracker names a whole result or what it named before", "[wide]") {
  Run good;
  good.write("iter_0000100");
  for (std::uint64_t n = 1; n < 2000; ++n) {
    CAPTURE(n);
    Run run;
    run.fs.write_file(kTracker, as_bytes(std::string_view("50")));
    FaultyFileSystem faulty(run.fs, {.at = n, .error = EIO, .sticky = false});
    std::string message, hint;
    try {
      convert(faulty, run.options("iter_0000100"));
    } catch (const Error& error) {
      message = error.status().message;
      hint = error.status().hint;
    }
    const bool whole =
        run.fs.contents("/run").contains("iter_0000100/mp_rank_01/model_optim_rng.pt");
    CHECK((run.tracker() == "50" || (run.tracker() == "100" && whole)));
    if (faulty.faults() == 0) {
      CHECK(run.tracker() == "100");
      return;
    }
    if (whole && run.tracker() == "50") {
      CHECK_THAT(message, Catch::Contains("the result is complete"));
      CHECK_THAT(hint, Catch::Contains("printf 100 > "));
    }
  }
  FAIL("the faults never ended");
}

}  // namespace tessera::megatron_tracker_test

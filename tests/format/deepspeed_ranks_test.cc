// ZeRO's rank files against each other: what one rank lost, what they disagree about, files that
// are another rank's, padding that is used. The zips are intact; what they hold is not.
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "tests/support/edited_archive.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::deepspeed_ranks_test {
namespace {

using testing::EditedArchive;
using testing::number;
using testing::SampleCase;
using testing::text;

std::string optim_name(int rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
}
const Value kOptimizer = text("optimizer_state_dict");
const EditedArchive::Keys kBase = {kOptimizer, text("base_optimizer_state")};

EditedArchive::Keys below(EditedArchive::Keys keys, const std::vector<Value>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}
EditedArchive::Keys state(std::int64_t id, const std::string& leaf) {
  return below(kBase, {text("state"), number(id), text(leaf)});
}

/// A sample's folder in memory, some of its files edited.
struct Folder {
  MemoryFileSystem fs;
  SampleCase sample;
  std::unique_ptr<Directory> directory;

  explicit Folder(const std::string& name, const std::string& folder = "checkpoint/global_step2")
      : sample(name, folder) {
    copy("");
    directory = fs.open_directory("/c");
  }
  void copy(const std::string& below) {
    for (const FileInfo& info : sample.directory->list(below)) {
      const std::string path = below.empty() ? info.name : below + "/" + info.name;
      if (info.type == FileType::kDirectory) {
        copy(path);
        continue;
      }
      Bytes bytes(info.size_bytes);
      sample.directory->open(path)->read_at(0, bytes);
      fs.write_file("/c/" + path, bytes);
    }
  }
  void edit(const std::string& file, const std::function<void(EditedArchive&)>& change) {
    EditedArchive archive(*directory, file);
    change(archive);
    fs.write_file("/c/" + file, archive.render());
  }
  void rename_over(const std::string& from, const std::string& to) {
    fs.write_file("/c/" + to, fs.read_file("/c/" + from));
  }
  Place place() const { return {directory.get(), "", "global_step2"}; }

  Status failure(const FormatDriver& driver = deepspeed_zero_driver()) const {
    try {
      driver.manifest(place(), {});
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
  Manifest tolerated(const FormatDriver& driver = deepspeed_zero_driver()) const {
    ReadOptions options;
    options.tolerate_damage = true;
    return driver.manifest(place(), options);
  }
};

const Note* find_note(const Manifest& manifest, std::string_view code) {
  const auto found = std::ranges::find(manifest.notes, code, testing::note_code<Note>);
  return found == manifest.notes.end() ? nullptr : &*found;
}

std::int64_t held(const Manifest& manifest, const std::string& name) {
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.name != name || tensor.embedded) continue;
    std::int64_t numel = 0;
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      numel += manifest.chunk(tensor, c).numel();
    return numel;
  }
  return -1;
}

}  // namespace

TEST_CASE("an edited archive without edits reads as the sample") {
  Folder folder("deepspeed/zero1_w2");
  for (const int rank : {0, 1}) folder.edit(optim_name(rank), [](EditedArchive&) {});
  const Manifest again = testing::read_all(deepspeed_zero_driver(), folder.place());
  const Manifest first =
      testing::read_all(deepspeed_zero_driver(), {folder.sample.directory.get(), "", ""});
  CHECK(testing::content_of(again, *folder.directory) ==
        testing::content_of(first, *folder.sample.directory));
}

TEST_CASE("a leaf that one rank lost is damage, whichever rank it is") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    Folder folder("deepspeed/zero1_w2");
    folder.edit(optim_name(rank), [](EditedArchive& a) { a.erase(state(0, "exp_avg")); });
    const Status status = folder.failure();
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message, Catch::Contains("no \"exp_avg\""));
    CHECK(status.context.file == optim_name(rank));
    const Manifest manifest = folder.tolerated();
    REQUIRE(find_note(manifest, "CK024"));
    CHECK(find_note(manifest, "CK024")->file == optim_name(rank));
    // What the other rank holds is still there.
    const std::int64_t left = held(manifest, "optim.state.embed.weight.exp_avg");
    CHECK((left == 0 || left == 66));
    CHECK(held(manifest, "optim.state.embed.weight.exp_avg_sq") == 66);
  }
}

TEST_CASE("the first rank's lost optimizer does not take the others' along") {
  Folder folder("deepspeed/zero1_w2");
  folder.edit(optim_name(0), [](EditedArchive& a) { a.erase(kBase); });
  CHECK(folder.failure().context.file == optim_name(0));
  const Manifest manifest = folder.tolerated();
  CHECK(held(manifest, "optim.state.layers.1.down.weight.exp_avg") > 0);
  CHECK(manifest.state.find("optim.param_groups.0.lr"));
  Folder stage3("deepspeed/zero3_w4");
  stage3.edit(optim_name(0), [](EditedArchive& a) {
    a.erase({kOptimizer, kOptimizer, text("state"), number(0), text("exp_avg")});
  });
  CHECK_THAT(stage3.failure().message, Catch::Contains("no \"exp_avg\""));
}

TEST_CASE("ranks that disagree about the form of a leaf or about options are not joined") {
  Folder form("deepspeed/zero1_w2");
  form.edit(optim_name(0), [](EditedArchive& a) { a.set(state(0, "exp_avg"), number(1)); });
  CHECK_THAT(form.failure().message, Catch::Contains("tensor in one and none in"));
  Folder options("deepspeed/zero1_w2");
  options.edit(optim_name(1), [](EditedArchive& a) {
    a.set(below(kBase, {text("param_groups"), number(0), text("lr")}), Value::real(7));
  });
  CHECK_THAT(options.failure().message, Catch::Contains("options of group 0 differ"));
  Folder plain("deepspeed/zero1_w2");
  plain.edit(optim_name(0), [](EditedArchive& a) { a.set(state(0, "count"), number(1)); });
  plain.edit(optim_name(1), [](EditedArchive& a) { a.set(state(0, "count"), number(2)); });
  CHECK_THAT(plain.failure().message, Catch::Contains("\"count\" of group 0 differs"));
}

TEST_CASE("a file of another rank under this one's name is known by its slices") {
  for (const char* name : {"deepspeed/zero1_w4", "deepspeed/zero2_w4"}) {
    CAPTURE(name);
    Folder copied(name);
    copied.rename_over(optim_name(0), optim_name(1));
    const Status status = copied.failure();
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message, Catch::Contains("another slice"));
    CHECK(status.context.file == optim_name(1));
    const auto notes = copied.tolerated().notes;
    CHECK(std::ranges::count_if(notes, [](const Note& note) {
            return testing::note_code(note) == "CK067" && note.severity == Severity::kError;
          }) == 1);
  }
}

TEST_CASE("where slices are not recorded the archive's own name tells a renamed file") {
  Folder copied("deepspeed/zero3_w4");
  CHECK(!find_note(copied.tolerated(), "CK067"));
  copied.rename_over(optim_name(0), optim_name(1));
  const Manifest manifest = copied.tolerated();
  REQUIRE(find_note(manifest, "CK067"));
  CHECK(find_note(manifest, "CK067")->severity == Severity::kError);
  CHECK(copied.failure().code == Code::kCorrupt);
  CHECK_THAT(find_note(manifest, "CK067")->message,
             Catch::Contains("was saved as zero_pp_rank_0_mp_rank_00_optim_states"));
}

TEST_CASE("padding of partitions is checked to be zero") {
  struct Case {
    const char* name;
    int rank;
    EditedArchive::Keys leaf;
    const char* severity;
  };
  const std::vector<Case> cases = {
      {"deepspeed/zero2_w4", 3, state(1, "exp_avg"), "warning"},
      {"deepspeed/zero3_w4",
       3,
       {kOptimizer, kOptimizer, text("state"), number(0), text("exp_avg_sq")},
       "info"}};
  for (const auto& [name, rank, leaf, severity] : cases) {
    CAPTURE(name);
    Folder folder(name);
    CHECK(!find_note(folder.tolerated(), "CK065"));
    folder.edit(optim_name(rank), [&](EditedArchive& a) {
      a.edit_bytes(leaf, [](MutableBytes bytes) { bytes[bytes.size() - 2] = std::byte{1}; });
    });
    const Manifest manifest = folder.tolerated();
    REQUIRE(find_note(manifest, "CK065"));
    CHECK(testing::note_severity(*find_note(manifest, "CK065")) == severity);
    CHECK(find_note(manifest, "CK065")->file == optim_name(rank));
    CHECK(folder.failure().code == Code::kOk);  // no reader uses it
  }
}

TEST_CASE("a number of ranks far beyond the files is refused before it costs anything") {
  Folder folder("deepspeed/zero1_w2");
  for (const int rank : {0, 1})
    folder.edit(optim_name(rank), [](EditedArchive& a) {
      a.set({kOptimizer, text("partition_count")}, Value::list({number(1 << 20), number(1 << 20)}));
    });
  CHECK_THAT(folder.failure().message, Catch::Contains("partition_count is 1048576"));
  CHECK_THROWS_AS(folder.tolerated(), Error);
}

TEST_CASE("tensors inside a list of the state go along to another ZeRO checkpoint") {
  Folder folder("deepspeed/zero1_w2");
  for (const int rank : {0, 1})
    folder.edit(optim_name(rank), [](EditedArchive& a) {
      a.set(state(0, "history"), Value::list({a.tensor(Shape{2}, {3, 4}), number(1)}));
    });
  const Manifest manifest = testing::read_all(deepspeed_zero_driver(), folder.place());
  const testing::WrittenCheckpoint written(deepspeed_zero_driver(), manifest, *folder.directory);
  const Manifest again = testing::read_all(deepspeed_zero_driver(), written.place());
  CHECK(testing::content_of(again, *written.directory) ==
        testing::content_of(manifest, *folder.directory));
}

TEST_CASE("a universal checkpoint names the leaf that one parameter lost") {
  const std::string lost = "zero/layers.0.up.bias/exp_avg.pt";
  Folder folder("deepspeed/zero2_w2", "golden/universal");
  CHECK(folder.failure(deepspeed_universal_driver()).code == Code::kOk);
  folder.fs.remove_file("/c/" + lost);
  const Status status = folder.failure(deepspeed_universal_driver());
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.file == lost);
  CHECK(status.context.tensor == "optim.state.layers.0.up.bias.exp_avg");
  Folder number_there("deepspeed/zero2_w2", "golden/universal");
  number_there.edit(lost, [](EditedArchive& a) { a.set({text("param")}, number(-1)); });
  CHECK_THAT(number_there.failure(deepspeed_universal_driver()).message,
             Catch::Contains("holds no tensor"));
}

}  // namespace tessera::deepspeed_ranks_test

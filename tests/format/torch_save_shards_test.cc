// Folders of torch.save files with Hugging Face's index: what the index, the names and the files
// say about each other. The real sample is read with all others of its format.
#include <tessera/base/error.h>
#include <tessera/format/torch_save.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_save_shards_test {
namespace {

using Strings = std::vector<std::string>;
using testing::RankArchive;

const std::string kFirst = "pytorch_model-00001-of-00002.bin",
                  kSecond = "pytorch_model-00002-of-00002.bin",
                  kIndex = "pytorch_model.bin.index.json";

/// A folder in memory.
struct Folder {
  MemoryFileSystem fs;
  Folder() { fs.make_directories("/c"); }

  void text(const std::string& name, std::string_view content) {
    fs.write_file("/c/" + name, as_bytes(content));
  }
  /// Tensors of two elements, both `value`.
  void shard(const std::string& name, const Strings& tensors, float value = 1) {
    RankArchive archive;
    std::vector<std::pair<std::string, Value>> items;
    for (const std::string& tensor : tensors)
      items.emplace_back(tensor, archive.tensor({2}, {value, value}));
    fs.write_file("/c/" + name, archive.render(testing::dict(std::move(items))));
  }
  void two_shards() {
    shard(kFirst, {"a", "b"});
    shard(kSecond, {"c"}, 3);
  }
  void index(const std::vector<std::pair<std::string, std::string>>& weight_map,
             int total_size = 24) {
    std::string map;
    for (const auto& [tensor, file] : weight_map)
      map += (map.empty() ? "\"" : ",\"") + tensor + "\":\"" + file + "\"";
    text(kIndex, R"({"metadata":{"total_size":)" + std::to_string(total_size) +
                     R"(},"weight_map":{)" + map + "}}");
  }
  Manifest read(bool tolerate = false, const std::string& file = "") {
    const auto directory = fs.open_directory("/c");
    ReadOptions options;
    options.tolerate_damage = tolerate;
    return testing::read_all(torch_save_driver(), {directory.get(), file, "c"}, options);
  }
  Status failure(const std::string& file = "") {
    try {
      read(false, file);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
};

Strings names(const Manifest& manifest) {
  Strings out;
  for (const StateEntry& entry : manifest.state.entries) out.push_back(entry.name);
  std::ranges::sort(out);
  return out;
}
Strings findings(const Manifest& manifest) {
  Strings out;
  for (const Note& note : manifest.notes)
    out.push_back(testing::note_code(note) + " " + testing::note_severity(note) + " " + note.file +
                  " " + note.tensor);
  std::ranges::sort(out);
  return out;
}

TEST_CASE("torch.save shards with an index are one state") {
  Folder folder;
  folder.two_shards();
  folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  for (const std::string& file : {std::string(), kIndex}) {
    const Manifest manifest = folder.read(false, file);
    CHECK(names(manifest) == Strings{"a", "b", "c"});
    CHECK(manifest.files.size() == 2);
    CHECK(findings(manifest).empty());
    CHECK(manifest.dialect == "torch.save, zip, 2 Hugging Face shards with index");
  }
  CHECK(names(folder.read(false, kSecond)) == Strings{"c"});  // one shard by its name
}

TEST_CASE("torch.save shards without an index are found by their numbers") {
  Folder folder;
  folder.two_shards();
  folder.text("training_args.bin", "not ours");
  folder.text("optimizer.pt", "not ours");
  const Manifest manifest = folder.read();
  CHECK(names(manifest) == Strings{"a", "b", "c"});
  CHECK(findings(manifest) == Strings{"CK018 info optimizer.pt ",
                                      "CK018 warning training_args.bin ",
                                      "CK036 warning pytorch_model-*-of-00002.bin "});
  folder.shard(kSecond, {"b"});
  const Status twice = folder.failure();
  CHECK(twice.code == Code::kCorrupt);
  CHECK_THAT(twice.message, Catch::Contains("stored twice: in " + kFirst + " and in " + kSecond));
  CHECK(twice.context.tensor == "b");
}

TEST_CASE("a torch.save shard that is missing is named, with what it held") {
  Folder folder;
  folder.shard(kFirst, {"a", "b"});
  SECTION("with an index") {
    folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
    const Status missing = folder.failure();
    CHECK(missing.code == Code::kCorrupt);
    CHECK(missing.context.file == kSecond);
    const Manifest rest = folder.read(true);
    CHECK(names(rest) == Strings{"a", "b"});
    CHECK(findings(rest) ==
          Strings{"CK010 error " + kSecond + " ", "CK024 error " + kSecond + " c"});
  }
  SECTION("without") {
    const Status missing = folder.failure();
    CHECK(missing.code == Code::kCorrupt);
    CHECK_THAT(missing.message, Catch::Contains("1 of 2 shards are here; number 2 is missing"));
    CHECK(findings(folder.read(true)) == Strings{"CK010 error pytorch_model-*-of-00002.bin "});
  }
}

TEST_CASE("a torch.save shard that cannot be read counts as lost where damage is tolerated") {
  Folder folder;
  folder.two_shards();
  folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  SECTION("empty") { folder.text(kSecond, ""); }
  SECTION("cut") { folder.text(kSecond, "PK\x03\x04 and no more"); }
  CHECK(folder.failure().code == Code::kCorrupt);
  CHECK(folder.failure().context.file == kSecond);
  const Manifest rest = folder.read(true);
  CHECK(names(rest) == Strings{"a", "b"});
  CHECK(findings(rest) == Strings{"CK024 error " + kSecond + " c", "CK042 error " + kSecond + " "});
}

TEST_CASE("index and torch.save shards that disagree are told apart") {
  Folder folder;
  folder.two_shards();
  SECTION("a tensor that its shard lacks") {
    folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}, {"d", kSecond}});
    CHECK(folder.failure().context.tensor == "d");
    CHECK(findings(folder.read(true)) == Strings{"CK030 error " + kSecond + " d"});
  }
  SECTION("a tensor that the index lacks") {
    folder.index({{"a", kFirst}, {"c", kSecond}});
    const Manifest manifest = folder.read();
    CHECK(names(manifest) == Strings{"a", "b", "c"});
    CHECK(findings(manifest) == Strings{"CK031 warning " + kFirst + " b"});
  }
  SECTION("another size") {
    folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}, 25);
    CHECK(findings(folder.read()) == Strings{"CK032 info " + kIndex + " "});
  }
  SECTION("a stale copy") {
    folder.shard(kSecond, {"b", "c"}, 3);
    folder.index({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}}, 32);
    const Manifest manifest = folder.read();
    CHECK(names(manifest) == Strings{"a", "b", "c"});
    CHECK(findings(manifest) == Strings{"CK033 warning " + kFirst + " b"});
    const auto content = testing::content_of(manifest, *folder.fs.open_directory("/c"));
    CHECK(content.at("b") == content.at("c"));
    CHECK(content.at("b") != content.at("a"));
  }
  SECTION("a file of another save") {
    folder.shard("pytorch_model-00001-of-00007.bin", {"z"});
    folder.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
    const Manifest manifest = folder.read();
    CHECK(names(manifest) == Strings{"a", "b", "c"});
    CHECK(findings(manifest) == Strings{"CK018 warning pytorch_model-00001-of-00007.bin "});
  }
}

TEST_CASE("an index of torch.save shards that leaves the folder is refused") {
  Folder folder;
  folder.two_shards();
  folder.index({{"a", "../" + kFirst}});
  CHECK(folder.failure().code == Code::kCorrupt);
  CHECK(folder.failure().context.file == kIndex);
}

TEST_CASE("a torch.save shard that is no dict of names is refused by its file") {
  Folder folder;
  folder.two_shards();
  RankArchive archive;
  folder.fs.write_file("/c/" + kSecond, archive.render(Value::list({Value::integer(1)})));
  const Status refused = folder.failure();
  CHECK(refused.code == Code::kUnsupported);
  CHECK(refused.context.file == kSecond);
}

TEST_CASE("folders of torch.save shards are recognized") {
  Folder folder;
  const auto answer = [&](const std::string& file = "") {
    const auto directory = folder.fs.open_directory("/c");
    return torch_save_driver().probe({directory.get(), file, "c"}).answer;
  };
  folder.text("training_args.bin", "x");
  CHECK(answer() == ProbeResult::Answer::kNo);
  folder.two_shards();
  CHECK(answer() == ProbeResult::Answer::kYes);
  folder.index({{"a", kFirst}});
  CHECK(answer() == ProbeResult::Answer::kYes);
  CHECK(answer(kIndex) == ProbeResult::Answer::kYes);
}

}  // namespace
}  // namespace tessera::torch_save_shards_test

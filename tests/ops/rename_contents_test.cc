// Renames and resizes in whole conversions: where the renamed lie afterwards, what else knows them
// by name, and the names that nothing may get.
#include <tessera/base/error.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"

namespace rename_contents_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

/// Two networks under one key, and a list of blocks: {"model": {"gen": {"conv.weight": ...}, ...}}.
std::string save_nested(MemoryFileSystem& fs) {
  RankArchive archive;
  const auto weight = [&archive](float first) {
    return archive.tensor(Shape{2, 2}, {first, first + 1, first + 2, first + 3});
  };
  const Value blocks = Value::list(
      {dict({{"w", weight(20)}}), dict({{"w", weight(30)}}), dict({{"w", weight(40)}})});
  fs.make_directories("/in");
  fs.write_file(
      "/in/state.pt",
      archive.render(dict(
          {{"model", dict({{"gen", dict({{"conv.weight", weight(0)}, {"conv.bias", weight(4)}})},
                           {"disc", dict({{"conv.weight", weight(8)}})},
                           {"blocks", blocks}})}})));
  return "/in/state.pt";
}

/// Where the tensors of the torch.save file at /out.pt lie: items joined by '/', indices in [].
std::vector<std::string> places_at(FileSystem& fs) {
  std::vector<std::string> out;
  const OpenedCheckpoint opened = open_checkpoint(fs, "/out.pt");
  for (const StateEntry& entry : opened.manifest.state.entries) {
    std::string place;
    for (const PathItem& item : entry.path) {
      if (!place.empty()) place += "/";
      place += item.kind == PathItem::Kind::kIndex ? "[" + item.text() + "]" : item.text();
    }
    out.push_back(place);
  }
  std::ranges::sort(out);
  return out;
}

std::vector<std::string> places_after(const NameRules& names, const std::string& vocabulary = "") {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(save_nested(fs), "/out.pt", std::nullopt, "torch-save");
  options.names = names;
  if (!vocabulary.empty()) {
    options.transform.vocab_size = 5;
    options.transform.vocab_tensors = {vocabulary};
  }
  convert(fs, options);
  return places_at(fs);
}

NameRules renames(std::vector<std::pair<std::string, std::string>> lines) {
  NameRules rules;
  rules.renames = std::move(lines);
  return rules;
}

using Places = std::vector<std::string>;
const Places kBlocks = {"model/blocks/[0]/w", "model/blocks/[1]/w", "model/blocks/[2]/w"};
const Places kDisc = {"model/disc/conv.weight"};

Places joined(std::initializer_list<Places> parts) {
  Places out;
  for (const Places& part : parts) out.insert(out.end(), part.begin(), part.end());
  std::ranges::sort(out);
  return out;
}

}  // namespace

TEST_CASE("renamed weights stay in the dict or list they were in") {
  const Places gen = {"model/gen/conv.bias", "model/gen/conv.weight"};
  CHECK(places_after({}) == joined({kBlocks, kDisc, gen}));
  CHECK(places_after(renames({{"gen.conv.weight", "gen.c.w"}})) ==
        joined({kBlocks, kDisc, {"model/gen/c.w", "model/gen/conv.bias"}}));
  CHECK(places_after(renames({{"gen.*", "generator.*"}})) ==
        joined({kBlocks, kDisc, {"model/generator/conv.bias", "model/generator/conv.weight"}}));
  CHECK(places_after(renames({{"gen.conv.*", "gen.a.b.*"}})) ==
        joined({kBlocks, kDisc, {"model/gen/a.b.bias", "model/gen/a.b.weight"}}));
  CHECK(places_after(renames({{"blocks.*", "h.*"}})) ==
        joined({{"model/h/[0]/w", "model/h/[1]/w", "model/h/[2]/w"}, kDisc, gen}));
  CHECK(places_after(
            renames({{"blocks.1.w", "disc.conv.weight"}, {"disc.conv.weight", "blocks.1.w"}})) ==
        joined({kBlocks, {"model/disc/conv/weight"}, gen}));
}

TEST_CASE("a resized weight stays where it is") {
  const Places all = places_after({});
  for (const std::string name : {"gen.conv.weight", "blocks.1.w"}) {
    CAPTURE(name);
    CHECK(places_after({}, name) == all);
  }
}

TEST_CASE("names that cannot be are refused as what was asked for, not as damage") {
  struct Case {
    std::pair<std::string, std::string> rename;
    std::string says;
  };
  for (const auto& [rename, says] :
       std::vector<Case>{{{"blocks.0.w", "blocks.1.w.x"}, "inside of"},
                         {{"gen.conv.weight*", "*"}, "no name left"},
                         {{"gen.conv.weight", "blocks.last.w"}, "in a list"}}) {
    MemoryFileSystem fs;
    ConvertOptions options =
        convert_options(save_nested(fs), "/out.pt", std::nullopt, "torch-save");
    options.names = renames({rename});
    const Status status = status_of(fs, options);
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_THAT(status.message, Contains(says));
    CHECK_FALSE(status.hint.empty());
    CHECK_FALSE(fs.stat("/out.pt"));
  }
}

TEST_CASE("a weight is not renamed to what would be an optimizer's state") {
  MemoryFileSystem fs;
  ConvertOptions options =
      convert_options(load_sample(fs, "dcp/fsdp2_w2"), "/out", std::nullopt, "torch-save");
  options.names = renames({{"embed.weight", "state.0.exp_avg"}});
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Contains("of an optimizer"));
  CHECK_FALSE(fs.stat("/out"));
}

TEST_CASE("a number for a parameter's name does not turn an optimizer's names into ids") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "hdf5/chunked");
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
  options.names = renames({{"layers.0.weight", "0"}, {"layers.0.bias", "1"}});
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Contains("optim"));
}

TEST_CASE("DeepSpeed's buffers are still buffers after a rename on the way") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "deepspeed/zero2_w2");
  ConvertOptions there = convert_options(source, "/dcp", 2, "torch-dcp");
  there.names = renames({{"*", "m.*"}});
  convert(fs, there);
  convert(fs, convert_options("/dcp", "/zero", 2, "deepspeed-zero"));
  const OpenedCheckpoint opened = open_checkpoint(fs, "/zero");
  CHECK(opened.manifest.find("model.m.scale_history")->kind == TensorKind::kBuffer);
  CHECK(opened.manifest.find("model.m.tokens_seen")->kind == TensorKind::kBuffer);
}

TEST_CASE("FairScale's wrapper words cannot be part of a name there") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  for (const std::string name : {"_fpw_module.x", "a._fsdp_wrapped_module.b", ".x"}) {
    CAPTURE(name);
    ConvertOptions options = convert_options(source, "/out", 2, "fairscale-fsdp");
    options.names = renames({{"embed.weight", name}});
    const Status status = status_of(fs, options);
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Contains(name));
    CHECK_FALSE(fs.stat("/out"));
  }
}

TEST_CASE("an asset that is a link is the file that it leads to, and one to nothing is told of") {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(save_nested(fs), "/out", std::nullopt, "safetensors");
  fs.make_directories("/base");
  fs.write_file("/base/config.json", as_bytes("{}"));
  fs.write_file("/blobs/22", as_bytes("a vocabulary"));
  fs.add_symlink("/base/vocab.json", "../blobs/22");  // a link to a file is that file
  fs.add_symlink("/base/tokenizer.json", "/elsewhere/tokenizer.json");
  fs.add_symlink("/base/notes.bak", "/elsewhere/notes");
  options.copy_assets = true;
  options.assets_directory = "/base";
  const ConvertReport report = convert(fs, options);
  CHECK(report.assets == std::vector<std::string>{"config.json", "vocab.json"});
  CHECK(as_text(fs.read_file("/out/vocab.json")) == "a vocabulary");
  const auto told = std::ranges::find(report.notes, "tokenizer.json", &Note::file);
  REQUIRE(told != report.notes.end());
  CHECK(told->severity == Severity::kWarning);
  CHECK_THAT(told->message, Contains("symbolic link"));
  CHECK(std::ranges::find(report.notes, "notes.bak", &Note::file) == report.notes.end());
  options.destination = "/none";
  options.assets_directory = "/nowhere";
  CHECK_THAT(status_of(fs, options).message, Contains("--copy-assets") && Contains("/nowhere"));
}

}  // namespace rename_contents_test

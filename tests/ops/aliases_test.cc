// Tied weights that a result records and does not store: what carries the record, who reads it
// back.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/show.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/state/aliases.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace aliases_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr const char* kTied = "torchsave/sgd_tied_zip";
const Alias kAlias{"model.head.weight", "model.embed.weight"};

ConvertOptions with_tied(const std::string& from, const std::string& to, const std::string& format,
                         TiedPolicy tied) {
  ConvertOptions options = convert_options(from, to, std::nullopt, format);
  options.transform.tied = tied;
  return options;
}

std::vector<Alias> aliases_at(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  return list_tensors(opened).aliases;
}

/// The sample with its head left out, as `format`.
std::string without_head(MemoryFileSystem& fs, const std::string& format) {
  convert(fs, with_tied(load_sample(fs, kTied), "/dropped", format, TiedPolicy::kDrop));
  return "/dropped";
}

bool stores(FileSystem& fs, const std::string& path, const std::string& name) {
  return content_at(fs, path).tensors.contains(name);
}

}  // namespace

TEST_CASE("every format that is written records the tied weights that were left out") {
  for (const FormatDriver* driver : all_formats()) {
    if (!driver->capabilities().writes) continue;
    CAPTURE(std::string(driver->id()));
    MemoryFileSystem fs;
    ConvertOptions options =
        with_tied(load_sample(fs, kTied), "/out", std::string(driver->id()), TiedPolicy::kDrop);
    options.selection.only = Part::kModel;
    if (driver->id().starts_with("megatron-")) options.target.mesh = Mesh({{"dp", 1}});
    const ConvertReport report = convert(fs, options);
    CHECK(report.dropped == std::vector<std::string>{kAlias.first});
    OpenedCheckpoint opened;
    try {
      opened = open_checkpoint(fs, "/out");
    } catch (const Error& error) {  // a build without libhdf5
      REQUIRE(driver->id() == "hdf5");
      REQUIRE(error.code() == Code::kUnsupported);
      continue;
    }
    const LsReport listed = list_tensors(opened);
    REQUIRE(listed.aliases.size() == 1);
    CHECK(listed.aliases[0].first.ends_with("head.weight"));
    CHECK(std::ranges::any_of(listed.tensors, [&](const LsTensor& tensor) {
      return tensor.name == listed.aliases[0].second;
    }));
  }
}

TEST_CASE("safetensors carries the record in its own metadata, as save_model does") {
  MemoryFileSystem fs;
  const std::string out = without_head(fs, "safetensors");
  fs.remove_file(out + "/tessera.manifest.json");
  CHECK(aliases_at(fs, out) == std::vector{kAlias});
  load_sample(fs, "safetensors/tied_save_model");
  CHECK(aliases_at(fs, "/source") == std::vector<Alias>{{"head.weight", "embed.weight"}});
}

TEST_CASE("a DCP folder without our manifest has lost the record") {
  MemoryFileSystem fs;
  const std::string out = without_head(fs, "torch-dcp");
  CHECK(aliases_at(fs, out) == std::vector{kAlias});
  fs.remove_file(out + "/tessera.manifest.json");
  CHECK(aliases_at(fs, out).empty());
}

TEST_CASE("show and summary know the names of a tied weight") {
  MemoryFileSystem fs;
  OpenedCheckpoint opened = open_checkpoint(fs, without_head(fs, "torch-dcp"));
  const ShowReport by_alias = show(opened, kAlias.first, {});
  CHECK(by_alias.name == kAlias.first);
  CHECK(by_alias.tensor.name == kAlias.second);
  CHECK(std::ranges::find(by_alias.facts, std::pair<std::string, std::string>(
                                              "also named", kAlias.first + ", stored once")) !=
        by_alias.facts.end());
  const SummaryReport summary = summarize(opened);
  CHECK(summary.aliases == std::vector{kAlias});
  for (const auto& [key, value] : summary.provenance)
    CHECK(key.find("head.weight") == std::string::npos);
}

TEST_CASE("a conversion passes the record on, stores the names again, or refuses") {
  MemoryFileSystem fs;
  const std::string source = without_head(fs, "torch-dcp");
  convert(fs, with_tied(source, "/again", "safetensors", TiedPolicy::kDefault));
  CHECK_FALSE(stores(fs, "/again", kAlias.first));
  CHECK(aliases_at(fs, "/again") == std::vector{kAlias});

  ConvertOptions keep = with_tied("/again", "/both.pt", "torch-save", TiedPolicy::kKeep);
  keep.verify = true;
  const ConvertReport stored = convert(fs, keep);
  CHECK(stored.verified);
  CHECK(aliases_at(fs, "/both.pt").empty());
  MemoryFileSystem fresh;
  const OpenedContent original = content_at(fresh, load_sample(fresh, kTied));
  CHECK(content_at(fs, "/both.pt").tensors == original.tensors);
  CHECK(content_at(fs, "/both.pt").values == original.values);

  convert(fs, with_tied(source, "/drop", "hdf5", TiedPolicy::kDrop));
  try {
    convert(fs, with_tied(source, "/no", "", TiedPolicy::kError));
    FAIL("a recorded tie was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK(std::string(error.what()).find("model.head.weight") != std::string::npos);
  }
}

TEST_CASE("records follow renames, the root and the selection") {
  MemoryFileSystem fs;
  const std::string source = without_head(fs, "torch-dcp");
  ConvertOptions renamed = convert_options(source, "/renamed", std::nullopt, "safetensors");
  renamed.names.renames = {{"embed.weight", "wte.weight"}, {"head.*", "lm_head.*"}};
  convert(fs, renamed);
  CHECK(aliases_at(fs, "/renamed") ==
        std::vector<Alias>{{"model.lm_head.weight", "model.wte.weight"}});

  ConvertOptions hub = convert_options(source, "/hub", std::nullopt, "hf");
  convert(fs, hub);
  CHECK(aliases_at(fs, "/hub") == std::vector<Alias>{{"head.weight", "embed.weight"}});

  ConvertOptions chosen = convert_options(source, "/chosen", std::nullopt, "torch-dcp");
  chosen.selection.exclude = {"model.head.weight"};
  convert(fs, chosen);
  CHECK(aliases_at(fs, "/chosen").empty());
  CHECK(stores(fs, "/chosen", kAlias.second));
}

TEST_CASE("a tied name that stays has the bytes and the state of one that is left out") {
  MemoryFileSystem fs;
  const std::string source = without_head(fs, "torch-dcp");
  ConvertOptions other = convert_options(source, "/other", std::nullopt, "torch-dcp");
  other.selection.exclude = {"model.embed.weight"};
  convert(fs, other);
  CHECK(aliases_at(fs, "/other").empty());
  CHECK_FALSE(stores(fs, "/other", kAlias.second));
  CHECK(content_at(fs, "/other").tensors.at(kAlias.first) ==
        content_at(fs, source).tensors.at(kAlias.second));

  OpenOptions only_alias;
  only_alias.selection.include = {"model.head.weight"};
  const OpenedCheckpoint opened = open_checkpoint(fs, source, only_alias);
  REQUIRE(opened.manifest.state.entries.size() == 1);
  CHECK(opened.manifest.state.entries[0].name == "model.head.weight");
  CHECK(recorded_aliases(opened.manifest).empty());
}

TEST_CASE("a record of a tensor that is not there is damage") {
  MemoryFileSystem fs;
  const std::string out = without_head(fs, "torch-dcp");
  Bytes seal = fs.read_file(out + "/tessera.manifest.json");
  Seal decoded = decode_seal(seal);
  REQUIRE(decoded.aliases == std::vector{kAlias});
  decoded.aliases[0].second = "model.gone.weight";
  fs.write_file(out + "/tessera.manifest.json", encode_seal(decoded));
  CHECK(aliases_at(fs, out).empty());
  const VerifyReport report = verify_checkpoint(fs, out, {});
  CHECK_FALSE(report.ok);
  CHECK(std::ranges::any_of(report.findings, [](const Note& note) {
    return note_code(note) == "CK025" && note.tensor == kAlias.first &&
           note.message.find("model.gone.weight") != std::string::npos;
  }));
}

}  // namespace aliases_test

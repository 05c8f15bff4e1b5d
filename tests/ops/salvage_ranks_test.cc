// --salvage of checkpoints that are a file a rank: one that cannot be read is lost as one that is
// not there, and the report says why.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/zip_reader.h>
#include <tessera/ops/verify.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/sanitized.h"

namespace salvage_ranks_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Outcome {
  std::set<std::string> lost;
  OpenedContent content;
  ConvertReport report;
};

Outcome salvage_source(MemoryFileSystem& fs) {
  ConvertOptions options = convert_options("/source", "/out", 1, "torch-dcp");
  options.salvage = true;
  options.rank_state = RankStatePolicy::kKeep;
  Outcome out;
  out.report = convert(fs, options);
  for (const LostTensor& lost : out.report.lost) out.lost.insert(lost.name);
  out.content = content_at(fs, "/out");
  return out;
}

std::string verify_text(MemoryFileSystem& fs) {
  VerifyOptions options;
  options.level = VerifyLevel::kFull;
  std::string text;
  for (const Note& n : verify_checkpoint(fs, "/source", options).findings)
    text += fmt::format("{} {} [{}] {}: {}\n", note_code(n), note_severity(n), n.file, n.tensor,
                        n.message);
  return text;
}

}  // namespace

TEST_CASE("a rank's file cut short is lost to salvage as one that is missing") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"megatron/legacy_tp2", "iter_0000100/mp_rank_01/model_optim_rng.pt"},
      {"megatron/legacy_tp2", "iter_0000100/mp_rank_00/model_optim_rng.pt"},
      {"deepspeed/zero1_w4", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"},
      {"deepspeed/zero3_w4", "global_step2/zero_pp_rank_3_mp_rank_00_optim_states.pt"},
      {"fairscale/nested_flat_w3", "rank_1.pt"},
      {"torchsave/dtensor_rankfiles_w2", "rank1.pt"},
      {"torchsave/fsdp1_sharded_rankfiles_w2", "rank0.pt"},
      {"torchsave/fsdp1_local_rankfiles_w3", "rank1.pt"}};
  for (const auto& [name, file] : cases) {
    CAPTURE(name, file);
    MemoryFileSystem sound;
    load_sample(sound, name);
    REQUIRE(sound.stat("/source/" + file));
    MemoryFileSystem gone;
    load_sample(gone, name);
    gone.remove_file("/source/" + file);
    const Outcome missing = salvage_source(gone);
    CHECK_FALSE(missing.lost.empty());
    for (const double part : {0.0, 0.3, 0.9}) {
      if (kSanitized && part != 0.3) continue;
      CAPTURE(part);
      MemoryFileSystem fs;
      load_sample(fs, name);
      Bytes bytes = fs.read_file("/source/" + file);
      bytes.resize(static_cast<std::size_t>(static_cast<double>(bytes.size()) * part));
      fs.write_file("/source/" + file, bytes);
      ConvertOptions plain = convert_options("/source", "/plain", 1, "torch-dcp");
      CHECK_THROWS_AS(convert(fs, plain), Error);
      const Outcome cut = salvage_source(fs);
      CHECK(cut.lost == missing.lost);
      CHECK(cut.content.tensors == missing.content.tensors);
      CHECK(cut.content.values == missing.content.values);
      const std::string base = file.substr(file.rfind('/') + 1);
      CHECK(std::ranges::any_of(cut.report.notes, [&](const Note& note) {
        return note_code(note) == "CK042" && note.file.ends_with(base) &&
               note.message.find("counts as lost: ") != std::string::npos;
      }));
      CHECK_THAT(verify_text(fs), Catch::Contains("CK042") && Catch::Contains("CK024"));
    }
  }
}

TEST_CASE(
    "a file of another kind or of another save in a rank's place is lost as one that is missing") {
  const std::string two = "deepspeed/zero2_w4", three = "deepspeed/zero3_w4";
  const std::string folder = "/global_step2/";
  const std::string optim = folder + "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string model = folder + "zero_pp_rank_1_mp_rank_00_model_states.pt";
  struct Case {
    std::string name, file, other, from, reason;
  };
  const std::vector<Case> cases = {
      {two, optim, two, folder + "mp_rank_00_model_states.pt",
       "\"optimizer_state_dict\" is missing"},
      {two, optim, three, optim, "its ZeRO stage differs"},
      {two, optim, "deepspeed/zero2_w2", optim, "of a run over 2 ranks"},
      {three, optim, three, model, "\"optimizer_state_dict\" is missing"},
      {three, model, three, optim, "\"module\" is missing"},
      {"megatron/legacy_tp2", "/iter_0000100/mp_rank_01/model_optim_rng.pt", two, optim,
       "it holds no model"}};
  for (const Case& c : cases) {
    CAPTURE(c.name, c.file, c.from);
    MemoryFileSystem gone, fs, other;
    for (MemoryFileSystem* each : {&gone, &fs}) load_sample(*each, c.name);
    load_sample(other, c.other);
    gone.remove_file("/source" + c.file);
    fs.write_file("/source" + c.file, other.read_file("/source" + c.from));
    const Outcome missing = salvage_source(gone), strange = salvage_source(fs);
    CHECK(strange.lost == missing.lost);
    CHECK(strange.content.tensors == missing.content.tensors);
    CHECK(strange.content.values == missing.content.values);
    CHECK_THAT(verify_text(fs), Catch::Contains("CK042 error") && Catch::Contains(c.reason));
  }
}

TEST_CASE("a gathered optimizer cut short is damage, a text named like an archive is not") {
  MemoryFileSystem made;
  convert(made, convert_options(load_sample(made, "dcp/fsdp2_w2"), "/out", 2, "fairscale-fsdp"));
  const OpenedContent sound = content_at(made, "/out");
  MemoryFileSystem fs;
  fs.make_directories("/source");
  for (const auto& [name, bytes] : bytes_below(made, "/out"))
    if (!name.ends_with('/')) fs.write_file("/source/" + name, as_bytes(bytes));
  const std::string path = "/source/optim.pt";
  REQUIRE(fs.stat(path));
  fs.write_file("/source/notes.pt", as_bytes(std::string_view("of the run")));
  fs.write_file("/source/empty.pt", ByteView());
  CHECK(content_at(fs, "/source").tensors == sound.tensors);
  CHECK_THAT(verify_text(fs), Catch::Contains("CK018 info [notes.pt]") &&
                                  Catch::Contains("CK018 info [empty.pt]") &&
                                  !Catch::Contains(" error "));
  const Bytes whole = fs.read_file(path);
  for (const double part : {0.0, 0.3, 0.9}) {
    CAPTURE(part);
    fs.write_file(path, ByteView(whole).first(
                            static_cast<std::size_t>(static_cast<double>(whole.size()) * part)));
    try {
      content_at(fs, "/source");
      FAIL_CHECK("it is read without its optimizer");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      CHECK(error.status().context.file == "optim.pt");
    }
    CHECK(status_of(fs, convert_options("/source", "/plain", 1, "torch-dcp")).code ==
          Code::kCorrupt);
    CHECK_FALSE(fs.stat("/plain"));
    CHECK_FALSE(verify_checkpoint(fs, "/source", {}).ok);
    CHECK_THAT(verify_text(fs), Catch::Contains("CK042 error [optim.pt] optim: ") &&
                                    Catch::Contains("the gathered optimizer: the file cannot"));
    ConvertOptions options = convert_options("/source", "/saved", 1, "torch-dcp");
    options.salvage = options.force = true;
    const ConvertReport report = convert(fs, options);
    CHECK(std::ranges::any_of(report.notes, [](const Note& note) {
      return note_code(note) == "CK042" && note.severity == Severity::kError &&
             note.file == "optim.pt";
    }));
    CHECK(std::ranges::count(report.lost, "optim", &LostTensor::name) == 1);
    const OpenedContent saved = content_at(fs, "/saved");
    CHECK_FALSE(saved.tensors.empty());
    for (const auto& [tensor, content] : saved.tensors) CHECK(sound.tensors.at(tensor) == content);
  }
}

TEST_CASE("a record without its local header takes along what it holds, and no other record") {
  const std::string name = "deepspeed/zero3_w4";
  const std::string file = "/source/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt";
  MemoryFileSystem sound;
  load_sample(sound, name);
  const OpenedContent before = content_at(sound, "/source");
  const std::string bytes(as_text(sound.read_file(file)));
  for (const std::string record : {"/data/0", "/data/1"}) {
    CAPTURE(record);
    const std::size_t at = bytes.find(record);
    REQUIRE(at != bytes.npos);
    std::string broken = bytes;
    broken[broken.rfind("PK\x03\x04", at)] = 'X';
    MemoryFileSystem fs;
    load_sample(fs, name);
    fs.write_file(file, as_bytes(broken));
    const Outcome out = salvage_source(fs);
    CHECK_FALSE(out.lost.empty());
    CHECK_FALSE(out.content.tensors.empty());
    for (const auto& [tensor, content] : out.content.tensors) {
      CHECK(before.tensors.at(tensor) == content);
      CHECK_FALSE(out.lost.contains(tensor));
    }
    CHECK(out.content.values.size() + out.lost.size() + out.content.tensors.size() ==
          before.values.size() + before.tensors.size());
  }
}

TEST_CASE("a weight that only a lost file says to be tied is lost and not taken for an empty one") {
  const std::string name = "../tests/format/data/deepspeed_frozen_tied/zero3_bf16_w2";
  const std::string file = "/source/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt";
  MemoryFileSystem sound;
  load_sample(sound, name);
  const OpenedContent before = content_at(sound, "/source");
  for (const bool gone : {false, true}) {
    CAPTURE(gone);
    MemoryFileSystem fs;
    load_sample(fs, name);
    if (gone) fs.remove_file(file);
    if (!gone) fs.write_file(file, ByteView(fs.read_file(file)).first(100));
    const Outcome out = salvage_source(fs);
    CHECK(out.lost.contains("model.head.weight"));
    CHECK_FALSE(out.content.tensors.empty());
    for (const auto& [tensor, content] : out.content.tensors)
      CHECK(before.tensors.at(tensor) == content);
  }
}

// Steps become plain numbers, which nothing proves later.
TEST_CASE("salvage takes a sound rank's number for a damaged one, or loses it") {
  const char* name =
      GENERATE("deepspeed/zero1_w2", "deepspeed/zero3_w2", "fairscale/nested_flat_w2");
  MemoryFileSystem sound;
  load_sample(sound, name);
  const Outcome whole = salvage_source(sound);
  REQUIRE(whole.lost.empty());
  int flips = 0;
  for (const auto& [path, text] : bytes_below(sound, "/source")) {
    if (!text.starts_with("PK")) continue;
    const Bytes bytes(as_bytes(text).begin(), as_bytes(text).end());
    const auto file = sound.open_directory("/source")->open(path);
    const ByteWindow window = ByteWindow::whole(*file);
    ZipReader zip(window);
    for (const ZipEntry& entry : zip.entries()) {
      if (!entry.name.starts_with("data/") || entry.size_bytes != 4) continue;
      CAPTURE(name, path, entry.name);
      MemoryFileSystem fs;
      load_sample(fs, name);
      Bytes damaged = bytes;
      damaged[zip.data_offset(entry) + 2] ^= std::byte{0x40};
      fs.write_file("/source/" + path, damaged);
      const Outcome salvaged = salvage_source(fs);
      ++flips;
      for (const auto& [key, value] : salvaged.content.values)
        if (whole.content.values.contains(key)) CHECK(value == whole.content.values.at(key));
      for (const auto& [key, value] : salvaged.content.tensors)
        if (whole.content.tensors.contains(key)) CHECK(value == whole.content.tensors.at(key));
      const bool all_there = salvaged.content.values == whole.content.values &&
                             salvaged.content.tensors == whole.content.tensors;
      CHECK((all_there || !salvaged.lost.empty()));
    }
  }
  CHECK(flips > 0);
}

TEST_CASE("a rank's file that is refused as unsafe is refused to salvage as well") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/dtensor_rankfiles_w2");
  std::ifstream file(TESSERA_SOURCE_DIR "/sample_checkpoints/hostile/reduce_os_system.pt",
                     std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  REQUIRE_FALSE(bytes.empty());
  fs.write_file("/source/rank1.pt", as_bytes(bytes));
  ConvertOptions options = convert_options("/source", "/out", 1, "torch-dcp");
  options.salvage = true;
  CHECK_THROWS_WITH(convert(fs, options), Catch::Contains("refused as unsafe"));
}

}  // namespace salvage_ranks_test

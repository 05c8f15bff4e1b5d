// Rank files as PyTorch wrote them, against what PyTorch says they hold; folders with ranks
// missing, mixed or named otherwise.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_rank_files.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/torch_rank_files/flat_record.h"
#include "lib/format/torch_rank_files/rank_folder.h"
#include "tests/support/archive_gather.h"
#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_rank_files_read_test {
namespace {

using rank_files::parse_rank_name;
using testing::SampleCase;

std::string sample_text(const std::string& name, const std::string& file) {
  return test::read_whole(TESSERA_SOURCE_DIR "/sample_checkpoints/" + name + "/" + file);
}

/// A folder in memory with a sample's files under other names.
struct Renamed {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;
  Renamed(const std::string& sample,
          const std::vector<std::pair<std::string, std::string>>& files) {
    for (const auto& [from, to] : files)
      fs.write_file("/" + to, as_bytes(sample_text(sample, "checkpoint/" + from)));
    directory = fs.open_directory("/");
  }
  Place place() const { return {directory.get(), "", "renamed"}; }
};

Status failure(const Place& place, const ReadOptions& options = {}) {
  try {
    testing::read_all(torch_rank_files_driver(), place, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

std::map<std::string, std::string> unflattened(const Value& expected) {
  ValueDict entries = expected.as_dict();
  for (auto& [key, value] : entries)
    if (key.as_string() == "tensors") value = *expected.find("unflattened");
  return testing::expected_content(Value::dict(std::move(entries)));
}

const std::string kLocal = "torchsave/fsdp1_local_rankfiles_w3";
const std::string kLocalOrig = "torchsave/fsdp1_local_orig_rankfiles_w2";

}  // namespace

TEST_CASE("names of rank files: the rank, the label, the world size") {
  const auto check = [](const std::string& name, const std::string& label, std::int64_t rank,
                        std::optional<std::int64_t> world = {}) {
    CAPTURE(name);
    const auto parsed = parse_rank_name(name);
    REQUIRE(parsed);
    CHECK(parsed->label == label);
    CHECK(parsed->rank == rank);
    CHECK(parsed->world_size == world);
  };
  check("rank0.pt", "", 0);
  check("rank_12.pth", "", 12);
  check("model-rank-003.bin", "model", 3);
  check("pytorch_model_fsdp_rank7.bin", "pytorch_model_fsdp", 7);
  check("model_world_size_4_rank_0.pt", "model", 0, 4);
  check("extra_state_world_size_16_rank_11.pt", "extra_state", 11, 16);
  check("rank1_of_model.pt", "of_model", 1);
  check("RANK3.ckpt", "", 3);
  check("Model-Rank_03.bin", "Model", 3);
  check("epoch=1-rank=2.ckpt", "epoch=1", 2);
  for (const char* name : {"model.pt", "mp_rank_00_model_states.pt", "rank.pt", ".rank0.pt",
                           "rank0.txt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                           "crank0.pt", "CRANK0.pt", "rank0.safetensors"})
    CHECK_FALSE(parse_rank_name(name));
}

TEST_CASE("rank files of ShardedTensors and DTensors read exactly as PyTorch has them") {
  int read = 0;
  for (const std::string& name : testing::sample_names("torchsave")) {
    if (name.find("rankfiles") == name.npos || name.find("local") != name.npos) continue;
    CAPTURE(name);
    const SampleCase sample(name);
    CHECK(detect_format(sample.place()).driver == &torch_rank_files_driver());
    const Manifest manifest = testing::read_all(torch_rank_files_driver(), sample.place());
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    CHECK(testing::values_of(manifest, *sample.directory) ==
          testing::expected_values(sample.expected));
    CHECK(manifest.world_size == sample.expected.find("world_size")->as_int());
    const bool by_hand = manifest.find("model.rows") != nullptr;  // no model, but made tensors
    const StoredTensor* sharded = manifest.find(by_hand ? "model.rows" : "model.embed.weight");
    const StoredTensor* plain =
        manifest.find(by_hand ? "optim.state.rows.step" : "model.tokens_seen");
    REQUIRE(sharded);
    REQUIRE(plain);
    CHECK(sharded->always_sharded);
    CHECK_FALSE(plain->always_sharded);
    ++read;
  }
  CHECK(read >= 4);
}

TEST_CASE("local state dicts with a flat layout give the parameters and their state") {
  for (const std::string& name : {kLocal, kLocalOrig}) {
    CAPTURE(name);
    const SampleCase sample(name);
    ReadOptions options;
    options.own.set(kFlatLayoutFlag, sample_text(name, "expected.json"));
    const Manifest manifest = testing::read_all(torch_rank_files_driver(), sample.place(), options);
    CHECK(testing::content_of(manifest, *sample.directory) == unflattened(sample.expected));
    const StateEntry* members = manifest.state.find("optim.param_groups.0.params");
    REQUIRE(members);
    REQUIRE(members->value.as_list().size() == 13);
    CHECK(members->value.as_list()[0].as_string() == "embed.weight");
    CHECK(manifest.notes.empty());
  }
}

TEST_CASE("local state dicts without a layout are listed as they are and say what helps") {
  const SampleCase sample(kLocal);
  const Manifest manifest = testing::read_all(torch_rank_files_driver(), sample.place());
  for (const auto& [key, unit] : sample.expected.find("flat_params")->as_dict()) {
    const StoredTensor* flat = manifest.find("model." + key.as_string());
    REQUIRE(flat);
    CHECK(flat->spec.shape == Shape{unit.find("unpadded_numel")->as_int()});
    CHECK(flat->chunk_count == 3);
  }
  // Keyed by id, end to end over the ranks; the first unit has another size than the others.
  CHECK(manifest.find("optim.state.0.exp_avg")->spec.shape == Shape{101});
  CHECK(manifest.find("optim.state.1.exp_avg")->spec.shape == Shape{142});
  REQUIRE(manifest.notes.size() == 1);
  CHECK(manifest.notes[0].message.find("--flat-layout") != std::string::npos);
  testing::content_of(manifest, *sample.directory);  // every byte is covered
}

TEST_CASE("a full state dict beside the rank files names the parameters") {
  Renamed folder(kLocal,
                 {{"rank0.pt", "rank0.pt"}, {"rank1.pt", "rank1.pt"}, {"rank2.pt", "rank2.pt"}});
  folder.fs.write_file("/full.pt",
                       as_bytes(sample_text("torchsave/fsdp1_full", "checkpoint/model.pt")));
  const Manifest manifest = testing::read_all(torch_rank_files_driver(), folder.place());
  CHECK(testing::content_of(manifest, *folder.directory) ==
        unflattened(SampleCase(kLocal).expected));
}

TEST_CASE("a layout of another model is refused when the user named it") {
  const SampleCase sample(kLocal);
  const auto refuse = [&](const std::string& text, const std::string& expected) {
    ReadOptions options;
    options.own.set(kFlatLayoutFlag, text);
    const Status status = failure(sample.place(), options);
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.message.find(expected) != std::string::npos);
  };
  refuse("{}", "names no flat parameter");
  refuse(R"({"flat_params": {"_flat_param": {"fqns": ["w"], "shapes": [[7]]}}})", "101 are stored");
  refuse(R"({"flat_params": {"x._flat_param": {"fqns": ["w"], "shapes": [[7]]}}})",
         "does not list");
  refuse(R"({"flat_params": {"_flat_param": {"fqns": ["w"], "shapes": [[7],[8]]}}})",
         "1 names and 2 shapes");
  refuse(R"({"flat_params": {"_flat_param": {"fqns": ["w"], "shapes": [[-7]]}}})", "");
  refuse("[1", "");
}

TEST_CASE("the record may say what an id means") {
  const SampleCase sample(kLocal);
  Value expected = parse_json(as_bytes(sample_text(kLocal, "expected.json")), {.max_depth = 32});
  const auto with = [&](const std::string& ids) {
    ReadOptions options;
    options.own.set(kFlatLayoutFlag, R"({"flat_params": )" +
                                         dump_json(*expected.find("flat_params")) +
                                         R"(, "optimizers": {"optim": )" + ids + "}}");
    return options;
  };
  // The two layers have one size: their ids could be the other way round.
  const Manifest manifest =
      testing::read_all(torch_rank_files_driver(), sample.place(),
                        with(R"(["_flat_param", "layers.1._flat_param", "layers.0._flat_param"])"));
  const auto content = testing::content_of(manifest, *sample.directory);
  const auto straight = unflattened(sample.expected);
  CHECK(content.at("optim.state.layers.0.up.weight.exp_avg") ==
        straight.at("optim.state.layers.1.up.weight.exp_avg"));
  CHECK(content.at("optim.state.embed.weight.exp_avg") ==
        straight.at("optim.state.embed.weight.exp_avg"));
  CHECK(failure(sample.place(), with(R"(["_flat_param"])")).message.find("id 1") !=
        std::string::npos);
}

TEST_CASE("ranks are counted as numbers") {
  const Renamed folder("torchsave/dtensor_rankfiles_w2",
                       {{"rank0.pt", "rank00.pt"}, {"rank1.pt", "rank01.pt"}});
  const Manifest manifest = testing::read_all(torch_rank_files_driver(), folder.place());
  CHECK(manifest.world_size == 2);
  const auto found =
      rank_files::find_rank_files(*Renamed("torchsave/dtensor_rankfiles_w2",
                                           {{"rank0.pt", "rank9.pt"}, {"rank1.pt", "rank10.pt"}})
                                       .directory);
  REQUIRE(found);
  CHECK(found->world_size == 11);
  CHECK(found->parts[0].files[10] == "rank10.pt");
  CHECK(found->parts[0].name_of(3) == "rank3.pt");
}

TEST_CASE("parts of one state stand under their own keys") {
  const std::string sample = "torchsave/dtensor_rankfiles_w2";
  const Renamed folder(sample, {{"rank0.pt", "model_world_size_2_rank_0.pt"},
                                {"rank1.pt", "model_world_size_2_rank_1.pt"},
                                {"rank0.pt", "optim_world_size_2_rank_0.pt"},
                                {"rank1.pt", "optim_world_size_2_rank_1.pt"}});
  const Manifest manifest = testing::read_all(torch_rank_files_driver(), folder.place());
  CHECK(manifest.find("model.model.embed.weight"));
  CHECK(manifest.find("optim.model.embed.weight"));
  CHECK(manifest.state.entries.front().name.starts_with("model."));
}

TEST_CASE("missing rank files are named and so are the rows they take along") {
  const std::string sample = "torchsave/fsdp1_sharded_rankfiles_w2";
  for (const char* left : {"rank0.pt", "rank1.pt"}) {
    CAPTURE(left);
    const Renamed folder(sample, {{left, left}});
    const Status status = failure(folder.place());
    CHECK(status.code == Code::kCorrupt);
    const std::string gone = left == std::string("rank0.pt") ? "rank1.pt" : "rank0.pt";
    CHECK(status.message.find("1 of 2 rank files is missing: " + gone) != std::string::npos);
    ReadOptions tolerant;
    tolerant.tolerate_damage = true;
    const Manifest manifest = torch_rank_files_driver().manifest(folder.place(), tolerant);
    CHECK(std::ranges::any_of(manifest.notes,
                              [](const Note& note) { return note.severity == Severity::kError; }));
    const StoredTensor* weight = manifest.find("model.embed.weight");
    REQUIRE(weight->chunk_count == 2);
    const Source& lost = manifest.source(*weight, 1);
    CHECK(manifest.files[lost.file].path == gone);
    CHECK(manifest.files[lost.file].size_bytes == 0);
    CHECK(manifest.chunk(*weight, 1).box.shape[0] == (gone == "rank1.pt" ? 5 : 6));
  }
}

TEST_CASE("files of two saves are not taken for one") {
  const std::string sample = "torchsave/fsdp1_sharded_rankfiles_w2";
  const Renamed three(
      sample, {{"rank0.pt", "rank0.pt"}, {"rank1.pt", "rank1.pt"}, {"rank1.pt", "rank2.pt"}});
  CHECK(failure(three.place()).message.find("3 rank files") != std::string::npos);
  const Renamed sizes(sample, {{"rank0.pt", "model_world_size_2_rank_0.pt"},
                               {"rank1.pt", "model_world_size_3_rank_1.pt"}});
  CHECK(failure(sizes.place()).message.find("world sizes 2 and 3") != std::string::npos);
  const Renamed twice(sample, {{"rank0.pt", "rank0.pt"}, {"rank1.pt", "rank00.pt"}});
  CHECK(failure(twice.place()).message.find("both rank 0's") != std::string::npos);
}

TEST_CASE("one rank's file alone stays a torch.save file") {
  const SampleCase sample("torchsave/dtensor_rankfiles_w2");
  CHECK(torch_rank_files_driver().probe({sample.directory.get(), "rank0.pt", ""}).answer ==
        ProbeResult::Answer::kNo);
}

}  // namespace tessera::torch_rank_files_read_test

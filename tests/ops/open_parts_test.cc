// Paths that name a part of a checkpoint, and checkpoints made of parts.
#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/state/optim_state.h>
#include <tessera/storage/memory_file_system.h>

#include <array>
#include <catch2/catch.hpp>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/convert_case.h"
#include "tests/support/megatron_case.h"
#include "tests/support/note_text.h"
#include "tests/support/open_case.h"
#include "tests/support/sample_case.h"

namespace open_parts_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("a file that is part of a folder means the folder") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2");
  for (const char* part : {"/source/.metadata", "/source/__0_0.distcp"}) {
    const OpenedCheckpoint opened = open_checkpoint(fs, part);
    CHECK(opened.path == "/source");
    CHECK(has(opened.notes.at(0).message, "is part of the checkpoint /source"));
  }
  MemoryFileSystem snapshot;
  load_sample(snapshot, "torchsnapshot/model_optim_w2");
  CHECK(open_checkpoint(snapshot, "/source/.snapshot_metadata").path == "/source");
}

TEST_CASE("one rank's file of a set is opened with a word about the others") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/fsdp1_mesh_rankfiles_w2");
  const OpenedCheckpoint one = open_checkpoint(fs, "/source/rank1.pt");
  CHECK(one.driver->id() == "torch-save");
  CHECK(one.notes.at(0).severity == Severity::kWarning);
  CHECK(has(one.notes.at(0).message,
            "rank1.pt is one rank's file and is read alone; the checkpoint of all ranks is the "
            "folder /source"));
  CHECK(open_checkpoint(fs, "/source").notes.empty());
}

TEST_CASE("one rank's file of every format of rank files says that others stand beside it") {
  const std::vector<std::array<std::string, 3>> cases = {
      {"megatron/legacy_tp2", "/iter_0000100/mp_rank_01/model_optim_rng.pt", "/iter_0000100"},
      {"deepspeed/zero2_w2", "/global_step2/mp_rank_00_model_states.pt", "/global_step2"},
      {"deepspeed/zero3_w2", "/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
       "/global_step2"},
      {"fairscale/nested_flat_w2", "/rank_1.pt", ""}};
  for (const auto& [sample, file, folder] : cases) {
    CAPTURE(sample, file);
    MemoryFileSystem fs;
    load_sample(fs, sample);
    const OpenedCheckpoint one = open_checkpoint(fs, "/source" + file);
    CHECK(one.driver->id() == "torch-save");
    REQUIRE_FALSE(one.notes.empty());
    CHECK(one.notes[0].severity == Severity::kWarning);
    CHECK(has(one.notes[0].message, "the checkpoint of all ranks is the folder /source" + folder));
  }
}

TEST_CASE("a file of Megatron or DeepSpeed that has no others beside it opens without a word") {
  MemoryFileSystem fs;
  load_sample(fs, "megatron/legacy_tp2");
  fs.write_file("/alone/mp_rank_00/model_optim_rng.pt",
                fs.read_file("/source/iter_0000100/mp_rank_00/model_optim_rng.pt"));
  CHECK(open_checkpoint(fs, "/alone/mp_rank_00/model_optim_rng.pt").notes.empty());
  load_sample(fs, "deepspeed/zero2_w2");
  fs.write_file("/ds/mp_rank_00_model_states.pt",
                fs.read_file("/source/global_step2/mp_rank_00_model_states.pt"));
  CHECK(open_checkpoint(fs, "/ds/mp_rank_00_model_states.pt").notes.empty());
}

TEST_CASE("a rank's file of Megatron's in another folder says by its arguments that others exist") {
  struct Row {
    ToyOptions options;
    std::string said;  // "": it is whole
  };
  ToyOptions none, tp, pp, no_args;
  tp.tp = 2;
  pp.pp = 2;
  no_args.tp = 2;
  no_args.with_args = false;
  for (const auto& [toy, said] : {Row{none, ""}, Row{tp, "tensor_model_parallel_size 2"},
                                  Row{pp, "pipeline_model_parallel_size 2"}, Row{no_args, ""}}) {
    INFO(said);
    MemoryFileSystem fs;
    for (const auto& [path, bytes] : toy_files(toy)) {
      if (!path.ends_with("model_optim_rng.pt")) continue;
      INFO(path);
      fs.write_file("/alone/saved.pt", bytes);
      for (const char* named : {"/alone/saved.pt", "/alone"}) {
        const OpenedCheckpoint opened = open_checkpoint(fs, named);
        CHECK(opened.driver->id() == "torch-save");
        CHECK(opened.others.empty() == said.empty());
        CHECK(has(opened.others, said));
        const bool warns = std::ranges::any_of(opened.notes, [](const Note& note) {
          return note.severity == Severity::kWarning && has(note.message, "is one rank's file");
        });
        CHECK(warns == !said.empty());
      }
    }
  }
}

TEST_CASE("a rank's file is known as one of a set under a raised limit for pickles, too",
          "[wide]") {
  constexpr std::size_t kMany = 500'000;  // an empty dict is one byte of pickle
  Scene scene = scene_of_experts();
  scene.edit = [](std::int64_t, ValueDict& root, RankArchive&) {
    ValueList many;
    for (std::size_t i = 0; i < kMany; ++i) many.push_back(Value::dict({}));
    root.emplace_back(Value::string("many"), Value::list(std::move(many)));
  };
  SceneCheckpoint written(scene);
  OpenOptions options;
  options.read.pickle_limit_bytes = std::uint64_t{1} << 30;
  const std::string file = "/c/" + written.fs.open_directory("/c")->list().at(0).name;
  CHECK_THROWS_AS(open_checkpoint(written.fs, file), Error);
  CHECK_FALSE(open_checkpoint(written.fs, file, options).others.empty());
}

TEST_CASE("one rank's folder of Megatron means the checkpoint that it is part of") {
  MemoryFileSystem fs;
  load_sample(fs, "megatron/legacy_tp2");
  const std::string whole = "/source/iter_0000100";
  const std::size_t tensors = open_checkpoint(fs, whole).manifest.tensors.size();
  for (const std::string folder : {"/mp_rank_00", "/mp_rank_01", "/mp_rank_01/"}) {
    CAPTURE(folder);
    const OpenedCheckpoint opened = open_checkpoint(fs, whole + folder);
    CHECK(opened.driver->id() == "megatron-torch");
    CHECK(opened.path == whole);
    CHECK(opened.manifest.tensors.size() == tensors);
    CHECK(has(opened.notes.at(0).message, "one rank's folder of the checkpoint " + whole));
    CHECK_FALSE(list_run(fs, whole + folder, {}));
  }
  // Asked for as what it is alone, it is that.
  OpenOptions alone;
  alone.from = "torch-save";
  CHECK(open_checkpoint(fs, whole + "/mp_rank_00", alone).driver->id() == "torch-save");
}

TEST_CASE("two DCP folders of accelerate are one state") {
  OpenedCheckpoint opened = open_path(fixture("accelerate/checkpoint"));
  CHECK(opened.manifest.world_size == 2);
  std::map<std::string, std::string> got, want;
  for (const HashedTensor& t : hash_checkpoint(opened).tensors)
    got[t.name] = t.dtype + " " + Shape(t.shape).to_string() + " " + t.sha256;
  const Value expected = json_file(fixture("accelerate/expected.json"));
  for (const auto& [name, entry] : expected.as_dict()) {
    std::vector<std::int64_t> shape;
    for (const Value& extent : entry.as_list()[1].as_list()) shape.push_back(extent.as_int());
    want[name.as_string()] = entry.as_list()[0].as_string() + " " + Shape(shape).to_string() + " " +
                             entry.as_list()[2].as_string();
  }
  CHECK(got == want);
  CHECK(opened.manifest.state.find("optimizer.param_groups.0.lr"));
  LsOptions options;
  options.chunks = true;
  for (const LsTensor& tensor : list_tensors(opened, options).tensors) {
    INFO(tensor.name.view());
    const bool model = tensor.name.starts_with("model.");
    for (const std::string& file : tensor.files)
      CHECK(file.starts_with(model ? "pytorch_model_fsdp_0/__" : "optimizer_0/__"));
    for (const ChunkRow& row : tensor.table) CHECK(row.rank);
  }
  CHECK_FALSE(list_run(disk(), fixture("accelerate/checkpoint")));
}

TEST_CASE("folders of several models and their optimizers are one state") {
  const auto copy = [](MemoryFileSystem& fs, const std::string& from, const std::string& to) {
    const auto folder = disk().open_directory(fixture(from));
    for (const FileInfo& info : folder->list()) {
      Bytes bytes(static_cast<std::size_t>(info.size_bytes));
      folder->open(info.name)->read_at(0, bytes);
      fs.write_file(to + "/" + info.name, bytes);
    }
  };
  MemoryFileSystem fs;
  const std::string source = "accelerate/checkpoint/";
  for (const char* number : {"0", "1"}) {
    copy(fs, source + "pytorch_model_fsdp_0", std::string("/run/pytorch_model_fsdp_") + number);
    copy(fs, source + "optimizer_0", std::string("/run/optimizer_") + number);
  }
  OpenedCheckpoint one = open_path(fixture("accelerate/checkpoint"));
  one.locate_all({});
  const auto content = content_of(one.manifest, *one.directory);
  OpenedCheckpoint both = open_checkpoint(fs, "/run");
  both.locate_all({});
  const auto got = content_of(both.manifest, *both.directory);
  CHECK(got.size() == 2 * content.size());
  for (const auto& [name, bytes] : content) {
    INFO(name);
    CHECK(got.at(name) == bytes);
    const std::size_t dot = name.find('.');
    CHECK(got.at(name.substr(0, dot) + "_1" + name.substr(dot)) == bytes);
  }
  const std::vector<OptimState> found =
      canonical_optim_states(both.manifest, find_roles(both.manifest.state));
  REQUIRE(found.size() == 2);
  for (const OptimState& optim : found) {
    CHECK(optim.issues.empty());
    const std::string model = optim.root == "optimizer" ? "model." : "model_1.";
    for (const OptimParameter& p : optim.parameters)
      CHECK(both.manifest.tensors.at(p.weight).name == model + p.fqn);
  }
  ConvertOptions options = convert_options("/run", "/whole", 3);
  options.verify = true;
  CHECK(convert(fs, options).balance.left_out().empty());
  OpenedCheckpoint whole = open_checkpoint(fs, "/whole");
  whole.locate_all({});
  CHECK(content_of(whole.manifest, *whole.directory) == got);
}

TEST_CASE("what a trainer keeps beside a checkpoint is no checkpoint of the run") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/plain_zip");
  const Bytes file = fs.read_file("/source/file.pt");
  MemoryFileSystem of_deepspeed;
  load_sample(of_deepspeed, "deepspeed/zero2_w2");
  for (const char* step : {"1", "2"}) {  // accelerate's folders, with DeepSpeed's below
    const std::string folder = std::string("/run/checkpoint_") + step;
    for (const auto& [name, content] : of_deepspeed.contents("/source/global_step2"))
      if (!name.ends_with('/')) fs.write_file(folder + "/pytorch_model/" + name, as_bytes(content));
    for (const char* beside : {"scheduler.bin", "sampler.bin"})
      fs.write_file(folder + "/" + beside, file);
  }
  const auto run = list_run(fs, "/run");
  REQUIRE(run);
  REQUIRE(run->rows.size() == 2);
  for (const RunRow& row : run->rows) CHECK(row.name.ends_with("/pytorch_model"));
  CHECK(open_checkpoint(fs, "/run/checkpoint_1").path == "/run/checkpoint_1/pytorch_model");
  fs.write_file("/alone/scheduler.bin", file);  // all there is
  CHECK(open_checkpoint(fs, "/alone").manifest.tensors.size() > 0);
}

TEST_CASE("the number of a rank is no step of the run") {
  MemoryFileSystem fs;
  load_sample(fs, "torchsave/plain_zip");
  const Bytes file = fs.read_file("/source/file.pt");
  for (const char* name : {"ep1-ba3-rank0.pt", "ep2-ba6-rank0.pt"})  // Composer's
    fs.write_file(std::string("/composer/") + name, file);
  const auto run = list_run(fs, "/composer");
  REQUIRE(run);
  REQUIRE(run->rows.size() == 2);
  CHECK(run->rows[0].step == 3);
  CHECK(run->rows[1].step == 6);
}

TEST_CASE("parts without their other half are what they are") {
  MemoryFileSystem fs;
  load_sample(fs, "dcp/fsdp2_w2_model_only");
  copy_to(fs, "/run/pytorch_model_fsdp_0");
  CHECK(open_checkpoint(fs, "/run").path == "/run/pytorch_model_fsdp_0");
  copy_to(fs, "/run/pytorch_model_fsdp_1");
  copy_to(fs, "/run/optimizer_0");
  CHECK(has(refusal(fs, "/run").message, "3 checkpoints"));
}

TEST_CASE("only the two names make a rank of a file") {
  CHECK(writing_rank("__3_0.distcp") == 3);
  CHECK(writing_rank("folder/__12_1.distcp") == 12);
  CHECK(writing_rank("shard-00002-model-00001-of-00002.safetensors") == 1);
  CHECK_FALSE(writing_rank("model-00001-of-00002.safetensors"));
  CHECK_FALSE(writing_rank("__x.distcp"));
}

TEST_CASE("a folder of weights with a run's checkpoints below is the weights, and says so") {
  MemoryFileSystem fs;
  const std::string weights = load_sample(fs, "safetensors/no_metadata");
  const std::string bytes(as_text(fs.read_file(weights)));
  for (const char* path : {"/out/model.safetensors", "/out/checkpoint-1/model.safetensors",
                           "/out/checkpoint-2/model.safetensors"})
    put(fs, path, bytes);
  const OpenedCheckpoint opened = open_checkpoint(fs, "/out");
  REQUIRE(opened.manifest.files.size() == 1);
  CHECK(opened.manifest.files[0].path == "model.safetensors");
  REQUIRE(opened.notes.size() == 1);
  CHECK(note_code(opened.notes[0]) == "PATH");
  CHECK(opened.notes[0].message ==
        "/out is itself a checkpoint and is used; 2 below it are not: checkpoint-1, checkpoint-2");
  CHECK_FALSE(list_run(fs, "/out"));
  CHECK(open_checkpoint(fs, "/out/checkpoint-2").notes.empty());
}

TEST_CASE("rank files beside accelerate's folder of the optimizer are read alone, and say so") {
  MemoryFileSystem fs;  // LOCAL_STATE_DICT: the model per rank, the optimizer as a DCP
  MemoryFileSystem samples;
  load_sample(samples, "torchsave/dtensor_rankfiles_w2");
  for (const int rank : {0, 1})
    fs.write_file(fmt::format("/ck/pytorch_model_fsdp_rank{}.bin", rank),
                  samples.read_file(fmt::format("/source/rank{}.pt", rank)));
  MemoryFileSystem dcp;
  load_sample(dcp, "dcp/fsdp2_w2");
  for (const auto& [path, bytes] : dcp.contents("/source"))
    if (!path.ends_with('/')) put(fs, "/ck/optimizer_0/" + path, bytes);
  const OpenedCheckpoint opened = open_checkpoint(fs, "/ck");
  CHECK(opened.driver->id() == "torch-rank-files");
  REQUIRE(opened.notes.size() == 1);
  CHECK(opened.notes[0].message ==
        "/ck is itself a checkpoint and is used; 1 below it is not: optimizer_0");
}

namespace {

std::string root_of(const std::string& sample_name) {
  return std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints/" + sample_name;
}

/// FSDP1's own record of the flat parameters, as --flat-layout takes it.
std::string flat_layout_of(const std::string& sample_name) {
  const Value expected = json_file(root_of(sample_name) + "/expected.json");
  ValueDict units;
  for (const auto& [name, unit] : expected.find("flat_params")->as_dict())
    units.emplace_back(name, Value::dict({{Value::string("fqns"), *unit.find("fqns")},
                                          {Value::string("shapes"), *unit.find("shapes")}}));
  return dump_json(Value::dict({{Value::string("flat_params"), Value::dict(std::move(units))}}));
}

std::map<std::string, std::string> unflattened(const std::string& sample_name) {
  std::map<std::string, std::string> out;
  const Value expected = json_file(root_of(sample_name) + "/expected.json");
  for (const Value& tensor : expected.find("unflattened")->as_list())
    out[tensor.find("key")->as_string()] = tensor.find("sha256")->as_string();
  return out;
}

std::map<std::string, std::string> hashes_of(OpenedCheckpoint opened) {
  std::map<std::string, std::string> out;
  for (const HashedTensor& tensor : hash_checkpoint(opened).tensors)
    out[tensor.name] = tensor.sha256;
  return out;
}

const std::array<std::string, 2> kLocalOfAccelerate = {"accelerate/fsdp1_local_orig_w2",
                                                       "accelerate/fsdp1_local_flat_w2"};

}  // namespace

TEST_CASE("accelerate's rank files of a model and folder of its optimizer are one state") {
  for (const std::string& name : kLocalOfAccelerate) {
    INFO(name);
    OpenOptions options;
    options.read.own.set(kFlatLayoutFlag, flat_layout_of(name));
    OpenedCheckpoint opened = open_checkpoint(disk(), root_of(name) + "/checkpoint", options);
    CHECK(opened.driver->id() == "torch-rank-files");
    CHECK(opened.manifest.world_size == 2);
    CHECK(opened.notes.empty());
    CHECK(opened.manifest.state.find("optimizer.param_groups.0.lr"));
    LsOptions with_chunks;
    with_chunks.chunks = true;
    for (const LsTensor& tensor : list_tensors(opened, with_chunks).tensors) {
      INFO(tensor.name.view());
      const bool model = tensor.name.starts_with("model.");
      for (const std::string& file : tensor.files)
        CHECK(file.starts_with(model ? "pytorch_model_fsdp_rank" : "optimizer_0/__"));
    }
    CHECK(hashes_of(std::move(opened)) == unflattened(name));
    CHECK_FALSE(list_run(disk(), root_of(name) + "/checkpoint"));
    CHECK(open_checkpoint(disk(), root_of(name)).path == root_of(name) + "/checkpoint");
  }
}

TEST_CASE("without a layout the halves are one state, too, and the flat parameters keep theirs") {
  OpenedCheckpoint opened = open_path(root_of(kLocalOfAccelerate[1]) + "/checkpoint");
  const auto got = hashes_of(std::move(opened));
  CHECK(got.contains("model.layers.0._flat_param"));
  CHECK(got.contains("optimizer.state.layers.0.up.weight.exp_avg"));
}

TEST_CASE("accelerate's two kinds of parts convert to one DCP and to rank files, proved") {
  for (const std::string& name : kLocalOfAccelerate) {
    MemoryFileSystem fs;
    load_sample(fs, name);
    for (const std::string format : {"torch-dcp", "torch-rank-files", "deepspeed-zero"}) {
      INFO(name << " to " << format);
      ConvertOptions options = convert_options("/source", "/" + format, 3, format);
      options.own.set(kFlatLayoutFlag, flat_layout_of(name));
      options.verify = true;
      CHECK(convert(fs, options).verified);
      CHECK(hashes_of(open_checkpoint(fs, "/" + format)) == unflattened(name));
    }
  }
}

TEST_CASE("a damaged file of either half is named") {
  MemoryFileSystem fs;
  load_sample(fs, kLocalOfAccelerate[0]);
  for (const std::string file : {"pytorch_model_fsdp_rank1.bin", "optimizer_0/__1_0.distcp"}) {
    INFO(file);
    const Bytes whole = fs.read_file("/source/" + file);
    fs.write_file("/source/" + file, Bytes(whole.begin(), whole.begin() + 3000));
    try {
      hashes_of(open_checkpoint(fs, "/source"));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.status().context.file == file);
    }
    fs.write_file("/source/" + file, whole);
  }
}

}  // namespace open_parts_test

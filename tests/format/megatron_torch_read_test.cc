// Rank folders of Megatron-LM become whole tensors. All but the sample are layouts written by a
// script.
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "tests/format/megatron_fixture.h"
#include "tests/support/note_text.h"

namespace tessera::megatron_torch_read_test {
namespace {

using testing::RankArchive;
using testing::RankFolders;
using testing::ToyOptions;
using Kind = ToyOptions::Optimizer;

}  // namespace

TEST_CASE("every legacy Megatron sample reads as its oracle says") {
  int count = 0;
  for (const std::string& name : testing::sample_names("megatron")) {
    if (name.find("legacy") == std::string::npos) continue;
    CAPTURE(name);
    ++count;
    const testing::SampleCase sample(name, "checkpoint/iter_0000100");
    CHECK(detect_format(sample.place()).driver == &megatron_torch_driver());
    const Manifest manifest = testing::read_all(megatron_torch_driver(), sample.place());
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    CHECK(manifest.world_size == sample.expected.find("world_size")->as_int());
    CHECK(testing::values_of(manifest, *sample.directory).at("iteration") == "100");
  }
  CHECK(count >= 1);
}

TEST_CASE("a folder with its tracker file opens through it") {
  const auto fs = make_posix_file_system();
  const OpenedCheckpoint opened =
      open_checkpoint(*fs, TESSERA_SOURCE_DIR "/sample_checkpoints/megatron/legacy_tp2/checkpoint");
  CHECK(opened.driver == &megatron_torch_driver());
}

TEST_CASE("tensor and pipeline ranks are put together to the whole model and optimizer") {
  for (const std::int64_t tp : {1, 2, 4}) {
    for (const std::int64_t pp : {1, 2, 4}) {
      for (const Kind kind : {Kind::kNone, Kind::kAdam, Kind::kSgd, Kind::kDistributed}) {
        for (const bool half : {false, true}) {
          CAPTURE(tp, pp, static_cast<int>(kind), half);
          ToyOptions options;
          options.tp = tp;
          options.pp = pp;
          options.optimizer = kind;
          options.half = half;
          RankFolders toy(options);
          CHECK(toy.content() == testing::toy_content(options));
        }
      }
    }
  }
}

TEST_CASE("chunks of an interleaved pipeline count layers chunk by chunk") {
  ToyOptions options;
  options.pp = 2;
  options.virtual_stages = 2;
  options.layers = 8;
  RankFolders toy(options);
  CHECK(toy.content() == testing::toy_content(options));
}

TEST_CASE("the copy of a tied embedding in the last stage is a replica of it") {
  ToyOptions options;
  options.tp = 2;
  options.pp = 2;
  options.tied = true;
  for (const Kind kind : {Kind::kAdam, Kind::kDistributed}) {
    options.optimizer = kind;
    RankFolders toy(options);
    CHECK(toy.content() == testing::toy_content(options));
    const Manifest manifest = toy.read();
    CHECK(manifest.find("model.embedding.word_embeddings.weight")->chunk_count == 4);
  }
}

TEST_CASE("without args shapes tell gated matrices and one number after the rank is a stage") {
  ToyOptions options;
  options.tp = 2;
  options.pp = 2;
  options.with_args = false;
  RankFolders toy(options);
  CHECK(toy.content() == testing::toy_content(options));
}

TEST_CASE("groups list members by name and keep their options") {
  ToyOptions options;
  options.tp = 2;
  options.pp = 2;
  options.layers = 2;
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  const auto values = testing::values_of(manifest, *toy.directory);
  CHECK(values.at("optimizer.param_groups.0.weight_decay") == "0.1");
  CHECK(values.at("optimizer.param_groups.1.weight_decay") == "0");
  const std::string members = values.at("optimizer.param_groups.1.params");
  CHECK(members.find("decoder.layers.0.self_attention.linear_proj.bias") != std::string::npos);
  CHECK(members.find("decoder.layers.1.self_attention.linear_proj.bias") != std::string::npos);
  CHECK(values.at("optimizer.state.decoder.final_layernorm.weight.step") == "7");
}

TEST_CASE("state that ranks hold alike is one value, other state stays with its rank") {
  ToyOptions options;
  options.pp = 2;
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  const auto values = testing::values_of(manifest, *toy.directory);
  CHECK(values.at("opt_param_scheduler.num_steps") == "100");
  CHECK(values.at("rng_state.rank_0.0.seed") == "5");
  CHECK(values.at("rng_state.rank_1.0.seed") == "6");
}

TEST_CASE("more than ten ranks are in numeric order") {
  RankFolders folders;
  std::vector<float> whole;
  for (int t = 0; t < 12; ++t) {
    RankArchive archive;
    const Value part = archive.tensor(Shape{1, 2}, {static_cast<float>(t), 0.5f});
    whole.insert(whole.end(), {static_cast<float>(t), 0.5f});
    folders.write_rank("mp_rank_" + std::string(t < 10 ? "0" : "") + std::to_string(t), archive,
                       {{"mlp.linear_fc1.weight", part}});
  }
  const Manifest manifest = folders.read();
  CHECK(manifest.find("model.mlp.linear_fc1.weight")->spec.shape == Shape{12, 2});
  const TensorReader reader(manifest, *folders.directory, {});
  Bytes bytes(24 * 4);
  reader.read(0, 0, 24, bytes);
  CHECK(std::memcmp(bytes.data(), whole.data(), bytes.size()) == 0);
}

TEST_CASE("a missing rank is named") {
  ToyOptions options;
  options.tp = 2;
  options.pp = 2;
  auto files = testing::toy_files(options);
  RankFolders folders;
  for (const auto& [path, bytes] : files)
    if (!path.starts_with("mp_rank_01_001")) folders.fs.write_file("/c/" + path, bytes);
  const Place place = folders.place();
  std::string message;
  CHECK(test::code_of([&] { megatron_torch_driver().manifest(place, {}); }, &message) ==
        Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("mp_rank_01_001/model_optim_rng.pt"));
  CHECK_THAT(message, Catch::Contains("tensor-parallel rank 1, stage 1"));

  ReadOptions tolerant;
  tolerant.tolerate_damage = true;
  const Manifest manifest = megatron_torch_driver().manifest(place, tolerant);
  const auto found = std::ranges::find_if(manifest.notes, [](const Note& note) {
    return testing::note_code(note) == "CK010" && note.file == "mp_rank_01_001/model_optim_rng.pt";
  });
  CHECK(found != manifest.notes.end());
  CHECK(manifest.find("model.decoder.layers.3.mlp.linear_fc1.weight")->spec.shape == Shape{16, 4});
}

TEST_CASE("the last rank's folder without its file is a missing rank, too") {
  RankFolders folders;
  for (const char* name : {"mp_rank_00", "mp_rank_01"}) {
    RankArchive archive;
    const Value part = archive.tensor(Shape{1, 2}, {1, 2});
    folders.write_rank(name, archive, {{"mlp.linear_fc1.weight", part}});
  }
  folders.fs.write_file("/c/mp_rank_02/notes.txt", Bytes(3));
  std::string message;
  CHECK(folders.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("mp_rank_02/model_optim_rng.pt"));
}

TEST_CASE("what quantizers measured is each rank's own where ranks differ, and stops nothing") {
  // modelopt's weight_quantizer._amax, of the rank's own part of the weight.
  for (const bool differs : {false, true}) {
    RankFolders folders;
    for (const int t : {0, 1}) {
      RankArchive archive;
      const float amax = differs ? 1.0F + static_cast<float>(t) : 1.0F;
      folders.write_rank(
          "mp_rank_0" + std::to_string(t), archive,
          {{"mlp.linear_fc1.weight", archive.tensor(Shape{2, 2}, std::vector<float>(4, amax))},
           {"mlp.linear_fc1.weight_quantizer._amax",
            archive.tensor(Shape{1}, std::vector<float>{amax})}});
    }
    std::set<std::string> names;
    for (const auto& [name, line] : folders.content()) names.insert(name);
    const std::string own = "model.mlp.linear_fc1.weight_quantizer._amax";
    if (differs)
      CHECK(names == std::set<std::string>{"model.mlp.linear_fc1.weight",
                                           "_extra_state.rank_0." + own,
                                           "_extra_state.rank_1." + own});
    else
      CHECK(names == std::set<std::string>{"model.mlp.linear_fc1.weight", own});
  }
}

TEST_CASE("folders of another depth without a model's file are no ranks of the model") {
  RankFolders folders;
  RankArchive archive;
  const Value part = archive.tensor(Shape{1, 2}, {1, 2});
  folders.write_rank("mp_rank_00", archive, {{"mlp.linear_fc1.weight", part}});
  folders.fs.write_file("/c/mp_rank_00_001/optim.pt", Bytes(3));
  CHECK(folders.read().world_size == 1);
}

TEST_CASE("replicas that differ are named with both files") {
  RankFolders folders;
  for (int t = 0; t < 2; ++t) {
    RankArchive archive;
    const Value norm = archive.tensor(Shape{2}, {1, static_cast<float>(t)});
    folders.write_rank("mp_rank_0" + std::to_string(t), archive,
                       {{"decoder.final_layernorm.weight", norm}});
  }
  std::string message;
  CHECK(folders.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("model.decoder.final_layernorm.weight"));
  CHECK_THAT(message, Catch::Contains("mp_rank_00/model_optim_rng.pt"));
  CHECK_THAT(message, Catch::Contains("mp_rank_01/model_optim_rng.pt"));
}

TEST_CASE("a tensor that one rank lacks is named") {
  RankFolders folders;
  for (int t = 0; t < 2; ++t) {
    RankArchive archive;
    std::vector<std::pair<std::string, Value>> model = {
        {"decoder.final_layernorm.weight", archive.tensor(Shape{1}, {1})}};
    if (t == 0) model.emplace_back("x.linear_fc1.weight", archive.tensor(Shape{1, 1}, {1}));
    folders.write_rank("mp_rank_0" + std::to_string(t), archive, model);
  }
  std::string message;
  CHECK(folders.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("x.linear_fc1.weight") &&
                          Catch::Contains("mp_rank_01/model_optim_rng.pt"));
}

TEST_CASE("a name without a rule is whole where ranks agree and refused where they differ") {
  for (const bool same : {true, false}) {
    RankFolders folders;
    for (int t = 0; t < 2; ++t) {
      RankArchive archive;
      const Value odd = archive.tensor(Shape{2, 1}, {1, same ? 2.0f : static_cast<float>(t)});
      folders.write_rank("mp_rank_0" + std::to_string(t), archive, {{"my.own.matrix", odd}});
    }
    std::string message;
    CHECK(folders.failure(message) == (same ? Code::kOk : Code::kUnsupported));
    if (!same)
      CHECK_THAT(message,
                 Catch::Contains("my.own.matrix") && Catch::Contains("along which dim it is cut"));
  }
}

TEST_CASE("ranks' parts of a name without a rule are plain rows where that is assumed") {
  RankFolders folders;
  for (int t = 0; t < 2; ++t) {
    RankArchive archive;
    const float first = static_cast<float>(2 * t);
    const Value odd = archive.tensor(Shape{2, 1}, {first, first + 1});
    const Value shared = archive.tensor(Shape{2}, {5, 6});
    folders.write_rank("mp_rank_0" + std::to_string(t), archive,
                       {{"my.own.matrix", odd}, {"my.own.offset", shared}});
  }
  ReadOptions plain;
  plain.own.set(kAssumePlainFlag, true);
  const Manifest manifest = folders.read(plain);
  const auto content = testing::content_of(manifest, *folders.directory);
  RankArchive whole;
  const Value expected = whole.tensor(Shape{4, 1}, {0, 1, 2, 3});
  const auto bytes = whole.render(testing::dict({{"m", expected}}));
  CHECK(content.at("model.my.own.matrix") == testing::tensors_in(bytes).at("m"));
  CHECK_THAT(content.at("model.my.own.offset"), Catch::StartsWith("float32 [2]"));
  CHECK(manifest.notes.size() == 1);
  CHECK(testing::note_code(manifest.notes.at(0)) == "CK097");
}

TEST_CASE("parts whose other dims disagree are refused") {
  RankFolders folders;
  for (int t = 0; t < 2; ++t) {
    RankArchive archive;
    const Value part = archive.tensor(Shape{1, t + 1}, std::vector<float>(t + 1, 1.0f));
    folders.write_rank("mp_rank_0" + std::to_string(t), archive, {{"linear_fc1.weight", part}});
  }
  std::string message;
  CHECK(folders.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("tensor-parallel rank 1 holds a [1,2], rank 0 a [1,1]"));
}

TEST_CASE("groups of queries that ranks share are refused") {
  ToyOptions options;
  options.tp = 4;
  options.more_args = {{"group_query_attention", Value::boolean(true)},
                       {"num_query_groups", Value::integer(2)}};
  RankFolders toy(options);
  std::string message;
  CHECK(toy.failure(message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("linear_qkv") && Catch::Contains("2 groups of query"));
}

TEST_CASE("packed experts over expert ranks are refused with the command that numbers them") {
  RankFolders folders;
  const auto args =
      testing::argument_namespace({{"tensor_model_parallel_size", Value::integer(1)},
                                   {"pipeline_model_parallel_size", Value::integer(1)},
                                   {"expert_model_parallel_size", Value::integer(2)}});
  for (int e = 0; e < 2; ++e) {
    RankArchive archive;
    const Value packed = archive.tensor(Shape{2, 4}, std::vector<float>(8, static_cast<float>(e)));
    folders.write_rank("mp_rank_00_00" + std::to_string(e), archive,
                       {{"decoder.layers.0.mlp.experts.weight1", packed}}, {{"args", args}});
  }
  const Status refused = [&folders] {
    try {
      folders.read();
    } catch (const Error& error) {
      return error.status();
    }
    return Status{};
  }();
  CHECK(refused.code == Code::kUnsupported);
  CHECK_THAT(refused.to_string(), Catch::Contains("mlp.experts.weight1") &&
                                      Catch::Contains("experts packed in one tensor"));
  CHECK_THAT(refused.hint, Catch::Contains("--ckpt-convert-format torch_dist"));
}

TEST_CASE("experts of expert-parallel ranks are numbered through") {
  RankFolders folders;
  const auto args =
      testing::argument_namespace({{"tensor_model_parallel_size", Value::integer(1)},
                                   {"pipeline_model_parallel_size", Value::integer(1)},
                                   {"expert_model_parallel_size", Value::integer(2)}});
  for (int e = 0; e < 2; ++e) {
    RankArchive archive;
    const auto one = [&](float x) { return archive.tensor(Shape{1, 1}, {x}); };
    const auto at = static_cast<float>(10 * e);
    folders.write_rank(
        "mp_rank_00_00" + std::to_string(e), archive,
        {{"decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", one(at)},
         {"decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", one(at + 1)},
         {"decoder.layers.0.mlp.experts.linear_fc2.weight0", one(at + 2)},
         {"decoder.layers.0.mlp.router.weight", one(99)},
         {"decoder.final_layernorm.weight", archive.tensor(Shape{1}, {1})}},
        {{"args", args}});
  }
  const Manifest manifest = folders.read();
  const std::string experts = "model.decoder.layers.0.mlp.experts.";
  for (int e = 0; e < 4; ++e)
    CHECK(manifest.find(experts + "local_experts." + std::to_string(e) + ".linear_fc1.weight"));
  CHECK(manifest.find(experts + "linear_fc2.weight1"));
  CHECK(manifest.find("model.decoder.layers.0.mlp.router.weight")->chunk_count == 2);
  CHECK(manifest.tensors.size() == 8);
}

TEST_CASE("without args a whole model in the first folder says that numbers are expert ranks") {
  RankFolders folders;
  for (int e = 0; e < 2; ++e) {
    RankArchive archive;
    folders.write_rank("mp_rank_00_00" + std::to_string(e), archive,
                       {{"decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
                         archive.tensor(Shape{1, 1}, {static_cast<float>(e)})},
                        {"decoder.final_layernorm.weight", archive.tensor(Shape{1}, {1})}});
  }
  const Manifest manifest = folders.read();
  CHECK(manifest.find("model.decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight"));
}

TEST_CASE("checkpoints before version 2 with fused queries are refused") {
  RankFolders folders;
  RankArchive archive;
  const Value part = archive.tensor(Shape{1, 1}, {1});
  folders.fs.write_file(
      "/c/mp_rank_00/model_optim_rng.pt",
      archive.render(testing::dict({{"model", testing::dict({{"x.query_key_value.weight", part}})},
                                    {"checkpoint_version", Value::real(1.0)}})));
  std::string message;
  CHECK(folders.failure(message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("checkpoint_version 1"));
}

TEST_CASE("ids that fit several parameters are left as stored with a warning") {
  RankFolders folders;
  RankArchive archive;
  const Value model = testing::dict({{"a.linear_proj.bias", archive.tensor(Shape{2}, {1, 2})},
                                     {"b.linear_proj.bias", archive.tensor(Shape{2}, {3, 4})}});
  const Value state = Value::dict(
      {{Value::integer(0), testing::dict({{"exp_avg", archive.tensor(Shape{2}, {5, 6})}})}});
  const Value groups = Value::list({testing::dict({{"params", Value::list({Value::integer(0)})}})});
  folders.fs.write_file(
      "/c/mp_rank_00/model_optim_rng.pt",
      archive.render(testing::dict(
          {{"model", model},
           {"checkpoint_version", Value::real(3.0)},
           {"optimizer", testing::dict({{"state", state}, {"param_groups", groups}})}})));
  const Manifest manifest = folders.read();
  CHECK(manifest.find("optimizer.state.0.exp_avg"));
  CHECK(std::ranges::any_of(manifest.notes,
                            [](const Note& n) { return testing::note_code(n) == "CK094"; }));
}

TEST_CASE("buffers that no layout of the parameters explains are left as stored with a warning") {
  ToyOptions options;
  options.optimizer = Kind::kDistributed;
  auto files = testing::toy_files(options);
  RankArchive archive;
  const Value flat = archive.tensor(Shape{3}, {1, 2, 3});
  const Value buffers = testing::dict({{"param", flat},
                                       {"exp_avg", flat},
                                       {"exp_avg_sq", flat},
                                       {"numel_unpadded", Value::integer(3)}});
  const Value root =
      Value::dict({{Value::string("buckets_coalesced"), Value::boolean(true)},
                   {Value::integer(0), Value::dict({{Value::dtype(DType::kFloat32), buffers}})}});
  files["mp_rank_00/distrib_optim.pt"] = archive.render(root);
  RankFolders folders;
  for (const auto& [path, bytes] : files) folders.fs.write_file("/c/" + path, bytes);
  const Manifest manifest = folders.read();
  CHECK(std::ranges::any_of(manifest.notes,
                            [](const Note& n) { return testing::note_code(n) == "CK095"; }));
  CHECK(std::ranges::any_of(manifest.tensors, [](const StoredTensor& t) {
    return t.name.starts_with("distrib_optim.0.") && t.name.ends_with(".exp_avg");
  }));
}

}  // namespace tessera::megatron_torch_read_test

// Rank folders written for another size: there and back is the identity, and what is written is
// what the ranks of that size hold. Layouts written by a script.
#include <tessera/format/megatron_torch.h>

#include <catch2/catch.hpp>

#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_torch_write_test {
namespace {

using testing::RankFolders;
using testing::ToyOptions;
using testing::WrittenCheckpoint;
using Kind = ToyOptions::Optimizer;

}  // namespace

TEST_CASE("tensor-parallel 1 to 2 to 4 to 1 and pipeline 1 to 2 to 1 is the identity") {
  for (const Kind kind : {Kind::kNone, Kind::kAdam, Kind::kSgd, Kind::kDistributed}) {
    for (const bool half : {false, true}) {
      for (const bool tied : {false, true}) {
        CAPTURE(static_cast<int>(kind), half, tied);
        ToyOptions options;
        options.optimizer = kind;
        options.half = half;
        options.tied = tied;
        RankFolders toy(options);
        const auto contents =
            testing::through_meshes(*toy.fs.open_directory("/c"),
                                    {"tp=2", "tp=4", "tp=1", "pp=2", "tp=2,pp=4", "dp=2,tp=1"});
        CHECK(contents[0].tensors == testing::toy_content(options));
        for (const testing::WholeContent& content : contents) {
          CHECK(content.tensors == contents[0].tensors);
          CHECK(content.values == contents[0].values);
        }
      }
    }
  }
}

TEST_CASE("rank files written for a size hold what that size's ranks hold") {
  for (const Kind kind : {Kind::kAdam, Kind::kDistributed}) {
    ToyOptions options;
    options.half = true;
    options.tied = true;
    options.optimizer = kind;
    RankFolders toy(options);
    const Manifest manifest = toy.read();
    const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                    testing::mesh_request("tp=2,pp=2"));
    options.tp = options.pp = 2;
    const auto expected = testing::toy_files(options);
    REQUIRE(written.files.size() == expected.size());
    for (const auto& [path, bytes] : expected) {
      CAPTURE(path);
      REQUIRE(written.files.contains(path));
      CHECK(testing::tensors_in(written.files.at(path)) == testing::tensors_in(bytes));
    }
  }
}

TEST_CASE("the legacy sample reshards to other sizes and back") {
  const testing::SampleCase sample("megatron/legacy_tp2", "checkpoint/iter_0000100");
  const auto contents =
      testing::through_meshes(*sample.directory, {"tp=1", "tp=3", "tp=6,pp=3", "pp=3", "tp=2"});
  for (const testing::WholeContent& content : contents) {
    CHECK(content.tensors == testing::expected_content(sample.expected));
    CHECK(content.values == contents[0].values);
  }
}

TEST_CASE("the vocabulary is padded for the target and its true rows are read back") {
  ToyOptions options;
  options.vocabulary = 6;
  options.more_args = {{"make_vocab_size_divisible_by", Value::integer(4)},
                       {"padded_vocab_size", Value::integer(8)}};
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                  testing::mesh_request("tp=4"));
  const auto rank = testing::tensors_in(written.files.at("mp_rank_03/model_optim_rng.pt"));
  CHECK_THAT(rank.at("model.output_layer.weight"), Catch::StartsWith("float32 [4,4]"));
  const auto contents = testing::through_meshes(*toy.directory, {"tp=4", "tp=2", "tp=1"});
  for (const testing::WholeContent& content : contents)
    CHECK(content.tensors == contents[0].tensors);
}

TEST_CASE("what cannot be shared evenly is refused with the tensor's name") {
  ToyOptions options;
  CHECK_THAT(testing::write_failure(options, testing::mesh_request("tp=3"), Code::kInvalidArgument),
             Catch::Contains("decoder.layers.0.self_attention.linear_proj.weight"));
  CHECK_THAT(testing::write_failure(options, testing::mesh_request("pp=3"), Code::kInvalidArgument),
             Catch::Contains("4 layers cannot be shared evenly by 3 pipeline stages"));
  options.vocabulary = 5;
  CHECK_THAT(testing::write_failure(options, testing::mesh_request("tp=2"), Code::kInvalidArgument),
             Catch::Contains("word_embeddings"));
}

TEST_CASE("groups of query, key and value stay whole") {
  ToyOptions options;
  options.more_args = {{"group_query_attention", Value::boolean(true)},
                       {"num_query_groups", Value::integer(2)}};
  CHECK_THAT(testing::write_failure(options, testing::mesh_request("tp=4"), Code::kInvalidArgument),
             Catch::Contains("2 groups of query, key and value") && Catch::Contains("linear_qkv"));
}

TEST_CASE("a number of query groups counts only where arguments say that queries are grouped") {
  // Megatron's default, 1, stands in the arguments of models that group nothing.
  ToyOptions options;
  options.more_args = {{"group_query_attention", Value::boolean(false)},
                       {"num_query_groups", Value::integer(1)}};
  RankFolders toy(options);
  const auto contents = testing::through_meshes(*toy.fs.open_directory("/c"), {"tp=4", "tp=2"});
  for (const auto& content : contents) CHECK(content.tensors == contents[0].tensors);
  CHECK(testing::toy_content(options) == contents[0].tensors);
  options.more_args = {
      {"num_query_groups", Value::integer(1)}};  // older: nothing is said of groups
  RankFolders older(options);
  CHECK(testing::through_meshes(*older.fs.open_directory("/c"), {"tp=4"})[1].tensors ==
        contents[0].tensors);
}

TEST_CASE("a mesh is asked for where a world size is given") {
  TargetRequest request;
  request.world_size = 2;
  CHECK_THAT(testing::write_failure({}, request, Code::kInvalidArgument),
             Catch::Contains("--world-size does not say"));
  CHECK_THAT(testing::write_failure({}, testing::mesh_request("fsdp=2"), Code::kInvalidArgument),
             Catch::Contains("mesh dim \"fsdp\""));
}

TEST_CASE("a name without a rule is written whole at one rank only unless placements say its cut") {
  MemoryFileSystem fs;
  testing::RankArchive archive;
  const Value odd = archive.tensor(Shape{2, 2}, {1, 2, 3, 4});
  fs.write_file("/c/mp_rank_00/model_optim_rng.pt",
                archive.render(testing::dict({{"model", testing::dict({{"my.own.matrix", odd}})},
                                              {"checkpoint_version", Value::real(3.0)}})));
  const auto directory = fs.open_directory("/c");
  const Manifest manifest = testing::read_all(megatron_torch_driver(), {directory.get(), "", "c"});
  std::string message;
  const auto plan = [&](const TargetRequest& request) {
    return megatron_torch_driver().output_plan(manifest, request);
  };
  CHECK(test::code_of([&] { plan(testing::mesh_request("tp=2")); }, &message) ==
        Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("my.own.matrix"));
  CHECK_NOTHROW(plan(testing::mesh_request("tp=1")));
  TargetRequest placed = testing::mesh_request("tp=2");
  placed.placements = {{"*matrix", {Placement::shard(1)}}};
  const WrittenCheckpoint written(megatron_torch_driver(), manifest, *directory, placed);
  const auto rank = testing::tensors_in(written.files.at("mp_rank_01/model_optim_rng.pt"));
  CHECK_THAT(rank.at("model.my.own.matrix"), Catch::StartsWith("float32 [2,1]"));

  // Ranks of other dims hold whole copies: what asks for more is refused, not ignored.
  TargetRequest over_data = testing::mesh_request("dp=2");
  over_data.placements = {{"*matrix", {Placement::shard(0)}}};
  CHECK(test::code_of([&] { plan(over_data); }, &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("--placements") && Catch::Contains("over tp alone"));
}

TEST_CASE("assumed plain rows go from 2 ranks to 4 to 1 to 2 and are the same, state alike") {
  ReadOptions plain;
  plain.own.set(kAssumePlainFlag, true);
  testing::RankFolders folders;
  for (int t = 0; t < 2; ++t) {
    testing::RankArchive archive;
    const float first = static_cast<float>(8 * t);
    const Value odd = archive.tensor(
        Shape{4, 2}, {first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, 7});
    // Fresh moments are alike on all ranks, and are cut as their parameter all the same.
    const Value moment = archive.tensor(Shape{4, 2}, {0, 0, 0, 0, 0, 0, 0, 0});
    const Value shared = archive.tensor(Shape{2}, {5, 6});
    const Value state = testing::dict({{"exp_avg", moment}, {"exp_avg_sq", moment}});
    const Value other = archive.tensor(Shape{2}, {1, 2});
    const Value rest = testing::dict({{"exp_avg", other}, {"exp_avg_sq", other}});
    const Value group =
        testing::dict({{"lr", Value::real(0.1)},
                       {"params", Value::list({Value::integer(0), Value::integer(1)})}});
    const Value optimizer = testing::dict(
        {{"state", Value::dict({{Value::integer(0), state}, {Value::integer(1), rest}})},
         {"param_groups", Value::list({group})}});
    folders.write_rank("mp_rank_0" + std::to_string(t), archive,
                       {{"my.own.matrix", odd}, {"my.own.offset", shared}},
                       {{"optimizer", optimizer}});
  }
  const Manifest first = folders.read(plain);
  const auto before = testing::content_of(first, *folders.directory);
  CHECK(std::ranges::count_if(before, [](const auto& tensor) {
          return tensor.second.starts_with("float32 [8,2]");
        }) == 3);
  std::string message;
  CHECK(test::code_of(
            [&] { megatron_torch_driver().output_plan(first, testing::mesh_request("tp=4")); },
            &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("my.own.matrix"));

  MemoryFileSystem fs;
  const Manifest* source = &first;
  const Directory* directory = folders.directory.get();
  Manifest last;
  std::unique_ptr<Directory> held;
  for (const std::string mesh : {"tp=4", "tp=1", "tp=2"}) {
    CAPTURE(mesh);
    TargetRequest request = testing::mesh_request(mesh);
    request.own.set(kAssumePlainFlag, true);
    const WrittenCheckpoint written(megatron_torch_driver(), *source, *directory, request);
    if (mesh == "tp=4") {
      const auto rank = testing::tensors_in(written.files.at("mp_rank_03/model_optim_rng.pt"));
      CHECK_THAT(rank.at("model.my.own.matrix"), Catch::StartsWith("float32 [2,2]"));
      CHECK_THAT(rank.at("model.my.own.offset"), Catch::StartsWith("float32 [2]"));
    }
    const std::string folder = "/" + mesh;
    for (const auto& [path, bytes] : written.files) fs.write_file(folder + "/" + path, bytes);
    auto next = fs.open_directory(folder);
    Manifest read = testing::read_all(megatron_torch_driver(), {next.get(), "", mesh}, plain);
    CHECK(testing::content_of(read, *next) == before);
    last = std::move(read);
    held = std::move(next);
    source = &last;
    directory = held.get();
    // From one rank on the parameter is whole, and stays so.
  }
}

TEST_CASE("args state the new sizes") {
  RankFolders toy(ToyOptions{});
  const Manifest manifest = toy.read();
  const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                  testing::mesh_request("tp=2,pp=2"));
  const Manifest back = megatron_torch_driver().manifest(written.place(), {});
  const Value& args = back.state.find("args")->value;
  REQUIRE(args.kind() == Value::Kind::kOpaque);
  CHECK(*args.as_opaque().state.find("tensor_model_parallel_size") == Value::integer(2));
  CHECK(*args.as_opaque().state.find("pipeline_model_parallel_size") == Value::integer(2));
  CHECK(*args.as_opaque().state.find("num_attention_heads") == Value::integer(4));
}

}  // namespace tessera::megatron_torch_write_test

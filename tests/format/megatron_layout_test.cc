// The rules of Megatron's layouts by themselves: names, ranks, stages, buckets.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <limits>

#include "lib/format/megatron_torch/bucket_layout.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/megatron_torch/stage_plan.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "tests/support/archive_gather.h"

namespace tessera::megatron_layout_test {
namespace {

using namespace megatron_torch;

int cut(const std::string& name, int rank) { return tp_rule(name).dim(rank); }

std::vector<std::int64_t> begins(std::vector<std::int64_t> sizes,
                                 std::optional<std::int64_t> bucket = std::nullopt) {
  std::vector<BucketParam> params;
  for (const std::int64_t size : sizes) params.push_back({size, false});
  return bucket_layout(params, bucket, true).begin;
}

}  // namespace

TEST_CASE("names say which dim tensor parallelism cuts") {
  CHECK(cut("decoder.layers.0.self_attention.linear_qkv.weight", 2) == 0);
  CHECK(cut("decoder.layers.0.self_attention.linear_qkv.bias", 1) == 0);
  CHECK(cut("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", 1) == -1);
  CHECK(cut("decoder.layers.0.self_attention.linear_proj.weight", 2) == 1);
  CHECK(cut("decoder.layers.0.self_attention.linear_proj.bias", 1) == -1);
  CHECK(cut("decoder.layers.0.self_attention.q_layernorm.weight", 1) == -1);
  CHECK(cut("decoder.layers.0.mlp.linear_fc1.weight", 2) == 0);
  CHECK(cut("decoder.layers.mlp.linear_fc1.weight", 3) == 1);
  CHECK(cut("decoder.layers.mlp.linear_fc2.weight", 3) == 2);
  CHECK(cut("decoder.layers.0.mlp.experts.linear_fc1.weight3", 2) == 0);
  CHECK(cut("decoder.layers.0.mlp.router.weight", 2) == -1);
  CHECK(cut("embedding.word_embeddings.weight", 2) == 0);
  CHECK(cut("embedding.position_embeddings.weight", 2) == -1);
  CHECK(cut("output_layer.weight", 2) == 0);
  CHECK(cut("language_model.encoder.layers.3.attention.query_key_value.weight", 2) == 0);
  CHECK(cut("language_model.encoder.layers.3.self_attention.dense.weight", 2) == 1);
  CHECK(cut("language_model.encoder.layers.3.self_attention.dense.bias", 1) == -1);
  CHECK(cut("language_model.encoder.layers.3.mlp.dense_h_to_4h.bias", 1) == 0);
  CHECK(cut("language_model.encoder.layers.3.mlp.dense_4h_to_h.weight", 2) == 1);
  CHECK(cut("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight", 3) == 2);
  // GPT-OSS's sinks: one for each attention head, of which ranks have their own.
  CHECK(cut("decoder.layers.0.self_attention.core_attention.softmax_offset", 1) == 0);
  CHECK(cut("decoder.layers.self_attention.core_attention.softmax_offset", 2) == 1);
  CHECK(tp_rule("a.matrix").cut == TpCut::kUnknown);
  CHECK(tp_rule("lm_head.dense.weight").cut == TpCut::kReplicated);
  CHECK(tp_rule("decoder.layers.0.mlp.linear_fc1.weight").gated);
  CHECK_FALSE(tp_rule("decoder.layers.0.mlp.linear_fc2.weight").gated);
}

TEST_CASE(
    "a first MLP matrix with twice the rows of the second's columns is a pair of gate and up") {
  CHECK(gated_by_shapes({{"l.0.linear_fc1.weight", {16, 4}}, {"l.0.linear_fc2.weight", {4, 8}}}));
  CHECK(gated_by_shapes({{"a.linear_fc1.weight7", {16, 4}}, {"a.linear_fc2.weight7", {4, 8}}}));
  CHECK(gated_by_shapes({{"a.linear_fc1.weight", {3, 16, 4}}, {"a.linear_fc2.weight", {3, 4, 8}}}));
  CHECK_FALSE(
      gated_by_shapes({{"l.dense_h_to_4h.weight", {16, 4}}, {"l.dense_4h_to_h.weight", {4, 16}}}));
  CHECK_FALSE(gated_by_shapes({{"l.linear_fc1.weight", {16, 4}}}));
  CHECK_FALSE(gated_by_shapes({}));
}

TEST_CASE("layers and experts are found in names") {
  CHECK(layer_name("decoder.layers.12.mlp.x")->layer == 12);
  CHECK(layer_name("layers.3")->with(5) == "layers.5");
  CHECK_FALSE(layer_name("decoder.layers.mlp.x"));
  CHECK_FALSE(layer_name("decoder.mylayers.3.x"));
  CHECK(is_layer_stack("decoder.layers.mlp.x"));
  CHECK_FALSE(is_layer_stack("decoder.layers.0.mlp.x"));
  CHECK(expert_name("a.experts.local_experts.2.linear_fc1.weight")->expert == 2);
  CHECK(expert_name("a.experts.linear_fc1.weight7")->with(9) == "a.experts.linear_fc1.weight9");
  CHECK_FALSE(expert_name("a.experts.weight1"));
  CHECK_FALSE(expert_name("a.shared_experts.linear_fc1.weight"));
}

TEST_CASE("folders of ranks are parsed and sorted by number") {
  CHECK(parse_rank_folder("mp_rank_07")->tp == 7);
  CHECK(parse_rank_folder("mp_rank_07_012_003")->rest == std::vector<std::int64_t>{12, 3});
  CHECK_FALSE(parse_rank_folder("mp_rank_"));
  CHECK_FALSE(parse_rank_folder("mp_rank_00_a"));
  CHECK_FALSE(parse_rank_folder("mp_rank_00_000_000_000"));
  CHECK_FALSE(parse_rank_folder("xmp_rank_00"));
  CHECK(rank_folder_name(3, std::nullopt) == "mp_rank_03");
  CHECK(rank_folder_name(112, 7) == "mp_rank_112_007");
}

TEST_CASE("a grid names every rank that has no folder") {
  const std::vector<RankFolder> folders = {{"mp_rank_00_000", 0, {0}}, {"mp_rank_01_001", 1, {1}}};
  const RankGrid grid = make_grid(folders, {}, false);
  CHECK(grid.tp == 2);
  CHECK(grid.pp == 2);
  REQUIRE(grid.missing.size() == 2);
  CHECK(grid.missing[0].folder == "mp_rank_01_000");
  CHECK(grid.missing[1].folder == "mp_rank_00_001");
  const RankGrid experts = make_grid(folders, {}, true);
  CHECK(experts.pp == 1);
  CHECK(experts.ep == 2);
  const RankGrid stated = make_grid({{"mp_rank_00", 0, {}}}, {3, 5, std::nullopt}, false);
  CHECK(stated.tp == 3);
  CHECK(stated.pp == 1);  // a stage would stand in the name
  CHECK(stated.missing.size() == 2);
}

TEST_CASE("folders that contradict each other or args are refused") {
  CHECK(test::code_of([] {
          make_grid({{"mp_rank_00", 0, {}}, {"mp_rank_00_000", 0, {0}}}, {}, false);
        }) == Code::kCorrupt);
  CHECK(test::code_of([] {
          make_grid({{"mp_rank_0", 0, {}}, {"mp_rank_00", 0, {}}}, {}, false);
        }) == Code::kCorrupt);
  CHECK(test::code_of([] {
          make_grid({{"mp_rank_02", 2, {}}}, {2, 1, 1}, false);
        }) == Code::kCorrupt);
  CHECK(test::code_of([] {
          make_grid({{"mp_rank_999999999", 999999999, {}}}, {}, false);
        }) == Code::kCorrupt);
}

TEST_CASE("stages share layers evenly and the ends hold the rest") {
  const std::vector<std::string> names = {"embedding.word_embeddings.weight",
                                          "decoder.layers.0.x",
                                          "decoder.layers.1.x",
                                          "decoder.layers.2.x",
                                          "decoder.layers.3.x",
                                          "decoder.final_layernorm.weight",
                                          "output_layer.weight",
                                          "mtp.layers.0.x"};
  const StagePlan plan(names, {.pp = 2});
  CHECK(plan.place(names[0]).stage == 0);
  CHECK(plan.place(names[2]).stage == 0);
  CHECK(plan.place(names[3]).stage == 1);
  CHECK(plan.place(names[3]).layer_offset == -2);
  CHECK(plan.place(names[5]).stage == 1);
  CHECK(plan.place(names[6]).stage == 1);
  CHECK(plan.place(names[7]).stage == 1);
  CHECK(plan.place(names[7]).layer_offset == 0);
  CHECK(test::code_of([&] { StagePlan(names, {.pp = 3}); }) == Code::kInvalidArgument);
  CHECK(test::code_of([&] { StagePlan({"a.weight"}, {.pp = 2}); }) == Code::kUnsupported);
  CHECK(test::code_of([&] {
          StagePlan({"encoder.layers.0.x", "decoder.layers.0.x"}, {.pp = 2});
        }) == Code::kUnsupported);
}

TEST_CASE("what experts keep beside tensors goes where these are") {
  std::vector<std::string> names = {"decoder.layers.0.mlp.router.weight"};
  for (int i = 0; i < 4; ++i)
    names.push_back("decoder.layers.0.mlp.experts.local_experts." + std::to_string(i) +
                    ".linear_fc1.weight");
  const StagePlan plan(names, {.ep = 2});
  const StagePlace place =
      plan.place("decoder.layers.0.mlp.experts.local_experts.3.linear_fc1._extra_state");
  CHECK(place.expert_rank == 1);
  CHECK(place.expert_offset == -2);
  const std::string elsewhere =
      "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1._extra_state";
  CHECK_FALSE(plan.place(elsewhere).expert_rank);
}

TEST_CASE("a bucket of 7 5 and 3 elements is laid out in reverse from multiples of 64") {
  const BucketLayout layout = bucket_layout({{7, false}, {5, false}, {3, false}}, {}, true);
  CHECK(layout.begin == std::vector<std::int64_t>{128, 64, 0});
  CHECK(layout.numel_unpadded == 135);
}

// The numbers are those of Megatron-core 0.16.1's own buffers for these sizes.
TEST_CASE("buckets end at their size and around shared embeddings") {
  CHECK(begins({10, 10, 10}) == std::vector<std::int64_t>{128, 64, 0});
  CHECK(begins({10, 10, 10}, 1) == std::vector<std::int64_t>{20, 10, 0});
  CHECK(begins({10, 10, 10}, 70) == std::vector<std::int64_t>{74, 64, 0});
  const BucketLayout shared = bucket_layout({{10, true}, {10, false}, {10, false}}, {}, true);
  CHECK(shared.begin == std::vector<std::int64_t>{128, 64, 0});
  CHECK(shared.numel_unpadded == 138);
  const BucketLayout first = bucket_layout({{10, false}, {10, true}}, {}, true);
  CHECK(first.begin == std::vector<std::int64_t>{10, 0});
  const std::vector<BucketParam> mixed = {
      {100, false}, {33, false}, {64, false}, {7, false}, {200, false}};
  CHECK(bucket_layout(mixed, 130, true) == BucketLayout{{361, 328, 264, 200, 0}, 461});
  std::vector<BucketParam> split = mixed;
  split[2].shared_embedding = true;
  CHECK(bucket_layout(split, 130, true) == BucketLayout{{392, 328, 264, 200, 0}, 492});
  CHECK(bucket_layout(split, 130, false) == bucket_layout(mixed, 130, true));
  CHECK(bucket_layout({}, {}, true).numel_unpadded == 0);
  const auto huge = std::numeric_limits<std::int64_t>::max() - 10;
  CHECK(test::code_of([&] { begins({huge, huge}); }) == Code::kCorrupt);
}

}  // namespace tessera::megatron_layout_test

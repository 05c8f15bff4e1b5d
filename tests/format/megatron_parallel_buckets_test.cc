// Buckets of the distributed optimizer over tensor-, pipeline- and data-parallel ranks: real
// torch_dist folders of Megatron-core models, against what Megatron's own gather of them says.
#include <tessera/base/error.h>
#include <tessera/format/megatron_dist.h>
#include <tessera/format/megatron_torch.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/megatron_dist/module_order.h"
#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_parallel_buckets_test {
namespace {

using megatron_dist::module_place;
using megatron_dist::ModuleOrder;
using testing::SampleCase;

SampleCase bucket_case(const std::string& name) {
  return SampleCase("../tests/format/data/megatron_ranks/" + name, "iter_0000007");
}

TEST_CASE("buckets of several model-parallel ranks become the state that Megatron gathers") {
  for (const std::string name : {"buckets_tp2_small", "buckets_pp2_dp2_tied"}) {
    CAPTURE(name);
    const SampleCase sample = bucket_case(name);
    const Manifest manifest = testing::read_all(megatron_dist_driver(), sample.place());
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
  }
}

TEST_CASE("buckets of several ranks go to other sizes as state of parameters") {
  const std::string name = GENERATE(as<std::string>{}, "buckets_tp2_small", "buckets_pp2_dp2_tied");
  const SampleCase sample = bucket_case(name);
  const Manifest manifest = testing::read_all(megatron_dist_driver(), sample.place());
  for (const std::string mesh : {"tp=1", "tp=4", "tp=2,pp=2"}) {
    CAPTURE(name, mesh);
    const testing::WrittenCheckpoint written(megatron_dist_driver(), manifest, *sample.directory,
                                             testing::mesh_request(mesh));
    const Manifest after = testing::read_all(megatron_dist_driver(), written.place());
    CHECK(testing::content_of(after, *written.directory) ==
          testing::expected_content(sample.expected));
  }
}

TEST_CASE("state gathered by data-parallel group is refused for other sizes by name") {
  const SampleCase sample = bucket_case("gathered_tp2_pp2");
  const Manifest manifest = testing::read_all(megatron_dist_driver(), sample.place());
  const auto refusal = [&](const FormatDriver& driver, const std::string& mesh) {
    std::string message;
    const Code code =
        test::code_of([&] { driver.output_plan(manifest, testing::mesh_request(mesh)); }, &message);
    return std::pair(code, message);
  };
  for (const FormatDriver* driver : {&megatron_dist_driver(), &megatron_torch_driver()}) {
    const auto [code, message] = refusal(*driver, "tp=1,pp=2");
    CHECK(code == Code::kUnsupported);
    CHECK_THAT(message, Catch::Contains("dp_group_idx_0.param_state") &&
                            Catch::Contains("dp_zero_gather_scatter"));
  }
  // As many ranks, but others: their buffers hold other parameters.
  CHECK(refusal(megatron_dist_driver(), "tp=4").first == Code::kUnsupported);
  CHECK_NOTHROW(
      megatron_dist_driver().output_plan(manifest, testing::mesh_request("tp=2,pp=2,dp=2")));
}

TEST_CASE("modules register a layer's parameters in one of two orders") {
  const auto before = [](const char* a, const char* b, ModuleOrder order) {
    return *module_place(a, 0, order) < *module_place(b, 0, order);
  };
  const char* norm = "decoder.layers.self_attention.linear_qkv.layer_norm_weight";
  const char* proj = "decoder.layers.self_attention.linear_proj.weight";
  const char* qkv = "decoder.layers.self_attention.linear_qkv.weight";
  CHECK(before(norm, proj, ModuleOrder::kSeparate));
  CHECK(before(proj, norm, ModuleOrder::kFused));
  for (const ModuleOrder order : {ModuleOrder::kFused, ModuleOrder::kSeparate}) {
    CHECK(before(proj, qkv, order));
    CHECK(*module_place("embedding.word_embeddings.weight", -1, order) <
          *module_place(norm, 0, order));
    CHECK(*module_place("decoder.layers.9.mlp.linear_fc2.bias", -1, order) <
          *module_place("decoder.final_layernorm.weight", -1, order));
    CHECK(*module_place("decoder.layers.2.mlp.linear_fc2.bias", -1, order) <
          *module_place("decoder.layers.10.mlp.linear_fc1.weight", -1, order));
    CHECK_FALSE(module_place("decoder.layers.mixer.in_proj.weight", 0, order));
    CHECK_FALSE(module_place("decoder.layers.mlp.linear_fc2.layer_norm_weight", 0, order));
  }
}

}  // namespace
}  // namespace tessera::megatron_parallel_buckets_test

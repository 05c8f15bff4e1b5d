// The DeepSpeed samples against what zero_to_fp32 and ds_to_universal gave.
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/registry.h>
#include <tessera/ops/open.h>
#include <tessera/state/optim_state.h>

#include <catch2/catch.hpp>

#include "tests/support/sample_case.h"

namespace tessera::deepspeed_read_test {
namespace {

OpenedCheckpoint open(const std::string& name) {
  const auto fs = make_posix_file_system();
  OpenedCheckpoint opened = open_checkpoint(
      *fs, std::string(TESSERA_SOURCE_DIR "/sample_checkpoints/") + name + "/checkpoint", {});
  opened.locate_all({});
  return opened;
}

}  // namespace

TEST_CASE("every DeepSpeed sample reads exactly as DeepSpeed's own converters read it") {
  const std::vector<std::string> names = testing::sample_names("deepspeed");
  CHECK(names.size() >= 7);
  for (const std::string& name : names) {
    CAPTURE(name);
    const testing::SampleCase sample(name);
    const OpenedCheckpoint opened = open(name);
    CHECK(opened.driver == &deepspeed_zero_driver());
    CHECK(testing::content_of(opened.manifest, *opened.directory) ==
          testing::expected_content(sample.expected));
    CHECK(opened.manifest.world_size == sample.expected.find("world_size")->as_int());
  }
}

// tests/format/data/deepspeed_python_3_11_2: the sample zero2_w2, loaded and saved again by Python
// 3.11.2, which pickles ZeroStageEnum.gradients as a call of getattr.
TEST_CASE("a DeepSpeed checkpoint reads the same whichever way its Python pickles enums") {
  const auto fs = make_posix_file_system();
  OpenedCheckpoint opened =
      open_checkpoint(*fs, TESSERA_SOURCE_DIR "/tests/format/data/deepspeed_python_3_11_2", {});
  opened.locate_all({});
  CHECK(opened.manifest.dialect == "ZeRO stage 2, 2 ranks, DeepSpeed 0.19.8");
  const OpenedCheckpoint sample = open("deepspeed/zero2_w2");
  CHECK(testing::content_of(opened.manifest, *opened.directory) ==
        testing::content_of(sample.manifest, *sample.directory));
  CHECK(testing::values_of(opened.manifest, *opened.directory) ==
        testing::values_of(sample.manifest, *sample.directory));
}

TEST_CASE("a DeepSpeed checkpoint tells weights and buffers and masters and moments apart") {
  const OpenedCheckpoint opened = open("deepspeed/zero2_bf16_w2");
  const auto kind = [&](const char* name) { return opened.manifest.find(name)->kind; };
  CHECK(kind("model.embed.weight") == TensorKind::kParam);
  CHECK(kind("model.tokens_seen") == TensorKind::kBuffer);
  CHECK(kind("model.scale_history") == TensorKind::kBuffer);
  CHECK(kind("optim.state.embed.weight.fp32") == TensorKind::kMaster);
  CHECK(kind("optim.state.embed.weight.exp_avg") == TensorKind::kOptim);
  CHECK(opened.manifest.dialect == "ZeRO stage 2, 2 ranks, DeepSpeed 0.19.8");
}

TEST_CASE("groups of a DeepSpeed checkpoint list names, and every parameter has its step") {
  for (const char* name : {"deepspeed/zero2_w4", "deepspeed/zero3_w4"}) {
    CAPTURE(name);
    const OpenedCheckpoint opened = open(name);
    const auto states = canonical_optim_states(opened.manifest, find_roles(opened.manifest.state));
    REQUIRE(states.size() == 1);
    const OptimState& optim = states[0];
    CHECK(optim.kind == "AdamW");
    CHECK(optim.groups.size() == (std::string_view(name).ends_with("zero3_w4") ? 1 : 2));
    std::size_t members = 0;
    for (const OptimGroup& group : optim.groups) members += group.members.size();
    CHECK(members == 13);
    for (const OptimParameter& parameter : optim.parameters) {
      if (parameter.group < 0) continue;
      CHECK(parameter.own_step.known());
      CHECK(parameter.weight != kNoTensor);
    }
    CHECK(optim.issues.empty());
  }
}

TEST_CASE("the step of stage 3 is a value, as are the fields of the engine") {
  const OpenedCheckpoint opened = open("deepspeed/zero3_w2");
  const StateDict& state = opened.manifest.state;
  CHECK(state.find("optim.state.head.bias.step")->value == Value::real(2.0));
  CHECK(state.find("optim.param_groups.0.lr")->value == Value::real(0.01));
  CHECK(state.find("global_steps")->value == Value::integer(2));
  CHECK(state.find("note")->value == Value::string("client state"));
  CHECK(state.find("ds_version")->value == Value::string("0.19.8"));
  CHECK(opened.manifest.provenance.at("deepspeed.zero_stage") == "3");
  CHECK(state.find("deepspeed.loss_scaler.class")->value == Value::string("LossScaler"));
  CHECK(state.find("deepspeed.loss_scaler.cur_scale")->value == Value::real(1.0));
  CHECK_FALSE(state.find("module.embed.weight"));
}

TEST_CASE("the bf16 copies in the module are no tensors of the listing") {
  const OpenedCheckpoint opened = open("deepspeed/zero2_bf16_w2");
  for (const std::uint32_t i : leaf_tensors(opened.manifest))
    CHECK(opened.manifest.tensors[i].spec.dtype != DType::kBFloat16);
}

}  // namespace tessera::deepspeed_read_test

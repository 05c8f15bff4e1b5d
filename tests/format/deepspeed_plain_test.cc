// Engines without ZeRO under bf16 and fp16: DeepSpeed wraps torch's optimizer and keeps its fp32
// masters beside it (tests/format/data/deepspeed_plain).
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/ops/open.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/deepspeed_zero/plain_optim.h"
#include "lib/format/deepspeed_zero/values.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::deepspeed_plain_test {
namespace {

using testing::WrittenCheckpoint;

const std::string kData = TESSERA_SOURCE_DIR "/tests/format/data/deepspeed_plain/";

struct Sample {
  std::unique_ptr<FileSystem> fs = make_posix_file_system();
  Value expected;
  OpenedCheckpoint checkpoint;
  explicit Sample(const std::string& name) {
    const auto file = fs->open_directory(kData + name)->open("expected.json");
    Bytes bytes(static_cast<std::size_t>(file->size_bytes()));
    file->read_at(0, bytes);
    JsonLimits limits;
    limits.max_depth = 64;
    expected = parse_json(bytes, limits);
    checkpoint = open_checkpoint(*fs, kData + name + "/checkpoint", {});
    checkpoint.locate_all({});
  }
  OptimState optimizer() const {
    const Manifest& manifest = checkpoint.manifest;
    return canonical_optim_states(manifest, find_roles(manifest.state)).at(0);
  }
};

TargetRequest ranks(const Manifest& source, std::int64_t world_size, int stage) {
  TargetRequest request;
  request.world_size = world_size;
  request.own.set(kZeroStageFlag, stage);
  for (const StateEntry& entry : source.state.entries)  // as a conversion reads them
    if (entry.value.is_tensor() && entry.name.ends_with(".step"))
      request.steps.emplace_back(entry.value.tensor_index(), 3.0);
  std::ranges::sort(request.steps);
  return request;
}

}  // namespace

TEST_CASE("an optimizer without ZeRO has the masters that DeepSpeed keeps beside it") {
  for (const char* name : {"bf16_w2", "fp16_w2"}) {
    CAPTURE(name);
    const Sample sample(name);
    const Manifest& manifest = sample.checkpoint.manifest;
    CHECK(testing::content_of(manifest, *sample.checkpoint.directory) ==
          testing::expected_content(sample.expected));
    CHECK(manifest.find("optim.state.0.fp32")->kind == TensorKind::kMaster);
    const OptimState optim = sample.optimizer();
    CHECK(optim.root == "optim");
    CHECK(optim.issues.empty());
    const auto& names = sample.expected.find("names")->as_list();
    REQUIRE(optim.parameters.size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i)
      CHECK(optim.parameters[i].fqn == names[i].as_string());
  }
}

TEST_CASE("an optimizer without ZeRO becomes ZeRO's with its masters, moments and loss scale") {
  for (const char* name : {"bf16_w2", "fp16_w2"})
    for (const int stage : {1, 2})
      for (const std::int64_t world_size : {1, 2, 3, 16}) {
        CAPTURE(name, stage, world_size);
        const Sample sample(name);
        const Manifest& source = sample.checkpoint.manifest;
        WrittenCheckpoint written(deepspeed_zero_driver(), source, *sample.checkpoint.directory,
                                  ranks(source, world_size, stage));
        OpenedCheckpoint back = open_checkpoint(written.fs, "/out", {});
        back.locate_all({});
        const auto had = testing::content_of(source, *sample.checkpoint.directory);
        const auto has = testing::content_of(back.manifest, *back.directory);
        for (const OptimParameter& p : sample.optimizer().parameters) {
          CHECK(has.at("model." + p.fqn) == had.at("model." + p.fqn));
          for (const char* leaf : {".fp32", ".exp_avg", ".exp_avg_sq", ".step"})
            CHECK(has.at("optim.state." + p.fqn + leaf) ==
                  had.at("optim.state." + p.stored_key + leaf));
        }
        CHECK(back.manifest.provenance.at("deepspeed.bf16") ==
              (std::string_view(name) == "bf16_w2" ? "true" : "false"));
      }
}

TEST_CASE("a loss scale that was moving goes on from where it stood") {
  const auto text = deepspeed::text;
  const Value globals = Value::dict({{text("dynamic_loss_scale"), Value::boolean(true)},
                                     {text("cur_scale"), Value::integer(16)},
                                     {text("cur_iter"), Value::integer(2)},
                                     {text("last_overflow_iter"), Value::integer(-1)}});
  const Value config =
      Value::dict({{text("fp16"), Value::dict({{text("hysteresis"), Value::integer(5)}})}});
  const Value scaler = deepspeed::default_scaler(globals, &config);
  CHECK(*scaler.find("class") == text("DynamicLossScaler"));
  CHECK(*scaler.find("cur_scale") == Value::integer(16));
  CHECK(*scaler.find("cur_iter") == Value::integer(2));
  CHECK(*scaler.find("delayed_shift") == Value::integer(5));
  CHECK(*scaler.find("dtype") == Value::dtype(DType::kFloat16));
  CHECK(*deepspeed::default_scaler(Value::dict({}), nullptr).find("class") == text("LossScaler"));
}

// Layers 0 and 1 have the same shapes, and layer 0 does not train: nothing in the file says which
// of the two the moments belong to.
TEST_CASE("state whose ids may be other parameters is not written under names") {
  const Sample sample("frozen_w2");
  const Manifest& source = sample.checkpoint.manifest;
  for (const FormatDriver* driver : {&deepspeed_zero_driver(), &fairscale_fsdp_driver()}) {
    CAPTURE(driver->id());
    try {
      driver->output_plan(source, ranks(source, 2, 0));
      FAIL_CHECK("it was planned");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK_THAT(error.status().message,
                 Catch::Contains("its ids could mean other parameters too"));
    }
  }
}

TEST_CASE("masters that are not those of the optimizer's groups are refused") {
  const auto text = deepspeed::text;
  const auto stored = [&](ValueList masters) {
    const Value group =
        Value::dict({{text("params"), Value::list({Value::integer(0), Value::integer(1)})}});
    return Value::dict({{text("optimizer_state_dict"),
                         Value::dict({{text("state"), Value::dict({})},
                                      {text("param_groups"), Value::list({group})}})},
                        {text("fp32_groups"), Value::list(std::move(masters))}});
  };
  const auto two = Value::list({Value::tensor(4), Value::tensor(5)});
  const auto plain = deepspeed::unwrap_optimizer(stored({two}));
  REQUIRE(plain);
  CHECK(*plain->optimizer.find("state")->as_dict().at(1).second.find("fp32") == Value::tensor(5));
  CHECK_THROWS_AS(deepspeed::unwrap_optimizer(stored({two, two})), Error);
  CHECK_THROWS_AS(deepspeed::unwrap_optimizer(stored({Value::list({Value::tensor(4)})})), Error);
  CHECK_FALSE(deepspeed::unwrap_optimizer(Value::dict({{text("state"), Value::dict({})}})));
}

}  // namespace tessera::deepspeed_plain_test

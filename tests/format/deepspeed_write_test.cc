// Writing ZeRO and Universal checkpoints: there and back, padding, what cannot be held.
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::deepspeed_write_test {
namespace {

using testing::WrittenCheckpoint;

constexpr std::array<std::int64_t, 7> kWorldSizes = {1, 2, 3, 4, 7, 8, 16};

struct Opened {
  std::unique_ptr<FileSystem> fs = make_posix_file_system();
  OpenedCheckpoint checkpoint;
  explicit Opened(const std::string& name) {
    checkpoint = open_checkpoint(
        *fs, std::string(TESSERA_SOURCE_DIR "/sample_checkpoints/") + name + "/checkpoint", {});
    checkpoint.locate_all({});
  }
};

/// What a writer made, opened as a user would: pointer, roles and kinds included.
struct Rewritten {
  WrittenCheckpoint written;
  OpenedCheckpoint checkpoint;
  Rewritten(const FormatDriver& driver, const OpenedCheckpoint& source,
            const TargetRequest& request)
      : written(driver, source.manifest, *source.directory, request) {
    checkpoint = open_checkpoint(written.fs, "/out", {});
    checkpoint.locate_all({});
  }
};

TargetRequest ranks(std::int64_t world_size, int stage = 0) {
  TargetRequest request;
  request.world_size = world_size;
  request.own.set(kZeroStageFlag, stage);
  return request;
}

/// As a conversion does, which reads them: here all are equal.
TargetRequest with_steps(TargetRequest request, const Manifest& manifest) {
  for (const StateEntry& entry : manifest.state.entries)
    if (entry.value.is_tensor() && entry.name.ends_with(".step"))
      request.steps.emplace_back(entry.value.tensor_index(), 2.0);
  std::ranges::sort(request.steps);
  return request;
}

void check_same(const OpenedCheckpoint& a, const OpenedCheckpoint& b) {
  CHECK(testing::content_of(a.manifest, *a.directory) ==
        testing::content_of(b.manifest, *b.directory));
  CHECK(testing::values_of(a.manifest, *a.directory) ==
        testing::values_of(b.manifest, *b.directory));
}

const char* const kSources[] = {"deepspeed/zero1_w4", "deepspeed/zero2_bf16_w2",
                                "deepspeed/zero2_w2", "deepspeed/zero3_w4"};

std::string refusal(const FormatDriver& driver, const Manifest& source,
                    const TargetRequest& request) {
  try {
    driver.output_plan(source, request);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    return error.status().to_string();
  }
  return "";
}

}  // namespace

TEST_CASE("a ZeRO checkpoint goes to every world size and back without a change") {
  for (const char* name : kSources) {
    const Opened source(name);
    for (const std::int64_t world_size : kWorldSizes) {
      CAPTURE(name, world_size);
      const Rewritten there(deepspeed_zero_driver(), source.checkpoint, ranks(world_size));
      CHECK(there.checkpoint.manifest.world_size == world_size);
      check_same(source.checkpoint, there.checkpoint);
      const std::int64_t back_to = *source.checkpoint.manifest.world_size;
      const Rewritten back(deepspeed_zero_driver(), there.checkpoint, ranks(back_to));
      check_same(source.checkpoint, back.checkpoint);
    }
  }
}

TEST_CASE("a ZeRO checkpoint goes to every stage and back without a change") {
  for (const char* name : kSources) {
    const Opened source(name);
    for (const int stage : {1, 2, 3}) {
      CAPTURE(name, stage);
      const Rewritten there(deepspeed_zero_driver(), source.checkpoint, ranks(3, stage));
      CHECK(there.checkpoint.manifest.provenance.at("deepspeed.zero_stage") ==
            std::to_string(stage));
      if (stage != 3 && std::string_view(name).find("zero3") == std::string_view::npos)
        check_same(source.checkpoint, there.checkpoint);
      const int own = source.checkpoint.manifest.provenance.at("deepspeed.zero_stage")[0] - '0';
      const Rewritten back(deepspeed_zero_driver(), there.checkpoint, ranks(2, own));
      for (const auto& [tensor, content] :
           testing::content_of(source.checkpoint.manifest, *source.checkpoint.directory)) {
        if (tensor.ends_with(".step")) continue;  // a value in stage 3
        const auto found =
            testing::content_of(back.checkpoint.manifest, *back.checkpoint.directory);
        REQUIRE(found.contains(tensor));
        CHECK(found.at(tensor) == content);
      }
    }
  }
}

TEST_CASE("a Universal folder holds all of a ZeRO checkpoint") {
  for (const char* name : kSources) {
    CAPTURE(name);
    const Opened source(name);
    const Rewritten there(deepspeed_universal_driver(), source.checkpoint, {});
    CHECK(there.checkpoint.driver == &deepspeed_universal_driver());
    check_same(source.checkpoint, there.checkpoint);
    const Rewritten back(deepspeed_zero_driver(), there.checkpoint,
                         with_steps(ranks(3), there.checkpoint.manifest));
    check_same(source.checkpoint, back.checkpoint);
  }
}

TEST_CASE(
    "a DCP becomes a ZeRO checkpoint and a Universal folder and comes back by its own names") {
  for (const char* name : {"dcp/fsdp2_w4", "dcp/fsdp2_w3"}) {
    CAPTURE(name);
    const auto source = std::make_unique<Opened>(name);
    for (const int stage : {1, 2, 3}) {
      CAPTURE(stage);
      const TargetRequest request = with_steps(ranks(3, stage), source->checkpoint.manifest);
      const Rewritten there(deepspeed_zero_driver(), source->checkpoint, request);
      const auto found =
          testing::content_of(there.checkpoint.manifest, *there.checkpoint.directory);
      for (const auto& [tensor, content] :
           testing::content_of(source->checkpoint.manifest, *source->checkpoint.directory)) {
        if (stage == 3 && tensor.ends_with(".step")) continue;
        CAPTURE(tensor);
        REQUIRE(found.contains(tensor));
        CHECK(found.at(tensor) == content);
      }
    }
  }
}

TEST_CASE("ranks of a ZeRO checkpoint are ordered by number") {
  const Opened source("deepspeed/zero2_w2");
  const WrittenCheckpoint written(deepspeed_zero_driver(), source.checkpoint.manifest,
                                  *source.checkpoint.directory, ranks(12));
  CHECK(written.files.contains("global_step2/zero_pp_rank_10_mp_rank_00_optim_states.pt"));
  CHECK(written.files.contains("global_step2/mp_rank_00_model_states.pt"));
  CHECK(written.files.size() == 14);  // and latest
  CHECK(as_text(written.files.at("latest")) == "global_step2");
}

TEST_CASE("bf16 copies of the module come along bit for bit, and so does the prefix") {
  const Opened source("deepspeed/zero2_bf16_w2");
  const Rewritten there(deepspeed_zero_driver(), source.checkpoint, ranks(3));
  CHECK(
      there.written.files.contains("global_step2/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"));
  std::size_t copies = 0;
  for (const StoredTensor& tensor : there.checkpoint.manifest.tensors)
    copies += tensor.embedded && tensor.spec.dtype == DType::kBFloat16;
  CHECK(copies == 13);
}

TEST_CASE("what a Universal folder or ZeRO files cannot hold is refused by name") {
  const Opened source("deepspeed/zero2_w2");
  TargetRequest two = ranks(2);
  CHECK_THAT(refusal(deepspeed_universal_driver(), source.checkpoint.manifest, two),
             Catch::Contains("holds one rank"));

  Manifest several = source.checkpoint.manifest;
  for (StateEntry& entry : several.state.entries)
    if (entry.name == "optim.state.head.bias.exp_avg")
      several.tensors[entry.value.tensor_index()].spec.shape = Shape{5, 1};
  CHECK_THAT(refusal(deepspeed_zero_driver(), several, ranks(2)),
             Catch::Contains("head.bias") && Catch::Contains("[5,1]"));

  Manifest keyed = source.checkpoint.manifest;
  keyed.state.entries.push_back(
      {"module.x",
       {{PathItem::Kind::kKey, 0, "module"}, {PathItem::Kind::kKey, 0, "x"}},
       Value::integer(1)});
  CHECK_THAT(refusal(deepspeed_zero_driver(), keyed, ranks(2)),
             Catch::Contains("keeps the key \"module\" for itself"));
}

TEST_CASE("steps that differ inside a group are refused, and said to fit a Universal folder") {
  const Opened source("deepspeed/zero2_w2");
  Manifest other = source.checkpoint.manifest;
  for (StateEntry& entry : other.state.entries)
    if (entry.name == "optim.state.head.bias.step") entry.value = Value::real(7.0);
  CHECK_THAT(refusal(deepspeed_zero_driver(), other, ranks(2)),
             Catch::Contains("head.bias") && Catch::Contains("step"));
  const WrittenCheckpoint written(deepspeed_universal_driver(), other, *source.checkpoint.directory,
                                  {});
  CHECK(written.files.contains("global_step2_universal/zero/head.bias/step.pt"));
}

TEST_CASE("floats of an optimizer stay floats, and nothing frozen is None to DeepSpeed") {
  for (const bool frozen : {false, true}) {
    INFO(frozen);
    testing::RankArchive archive;
    std::vector<std::pair<std::string, Value>> weights = {{"w", archive.tensor({4}, {1, 2, 3, 4})}};
    if (frozen) weights.emplace_back("still", archive.tensor({2}, {5, 6}));
    const Value state = testing::dict({{"exp_avg", archive.tensor({4}, {1, 1, 1, 1})},
                                       {"exp_avg_sq", archive.tensor({4}, {2, 2, 2, 2})},
                                       {"rate", Value::real(0.1)},
                                       {"step", archive.tensor({}, {3})}});
    const Value group =
        testing::dict({{"lr", Value::real(0.01)}, {"params", Value::list({testing::text("w")})}});
    MemoryFileSystem fs;
    fs.write_file("/in.pt",
                  archive.render(testing::dict(
                      {{"model", testing::dict(std::move(weights))},
                       {"optimizer", testing::dict({{"state", testing::dict({{"w", state}})},
                                                    {"param_groups", Value::list({group})}})}})));
    ConvertOptions options = testing::convert_options("/in.pt", "/zero", 2, "deepspeed-zero");
    options.verify = true;
    convert(fs, options);
    OpenedCheckpoint opened = open_checkpoint(fs, "/zero", {});
    int rates = 0;
    for (const StateEntry& entry : opened.manifest.state.entries) {
      if (!entry.name.ends_with(".rate")) continue;
      CHECK(entry.value == Value::real(0.1));
      ++rates;
    }
    CHECK(rates == 1);
    const auto model = std::ranges::find_if(opened.manifest.files, [](const StoredFile& stored) {
      return stored.path.ends_with("mp_rank_00_model_states.pt");
    });
    REQUIRE(model != opened.manifest.files.end());
    const auto file = opened.directory->open(model->path);
    const TorchArchive states = open_torch_archive(ByteWindow::whole(*file));
    for (const char* field : {"frozen_param_shapes", "frozen_param_fragments"}) {
      const Value* found = states.root.find(field);
      REQUIRE(found);
      CHECK(found->is_none() != frozen);
      CHECK((found->find("still") != nullptr) == frozen);
    }
  }
}

}  // namespace tessera::deepspeed_write_test

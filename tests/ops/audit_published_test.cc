// Failures that people published, made again in small, and what audit says of them. Each names its
// source; docs/audit-codes.md lists them.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/support/dcp_builder.h"
#include "tests/support/rank_archive.h"
#include "tests/support/training_run.h"

namespace audit_published_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

/// Codes of what is worse than info, each once, in order.
std::string codes(const AuditReport& report) {
  std::string text;
  for (const Note& note : report.findings) {
    const std::string code(code_text(note.code));
    if (note.severity != Severity::kInfo && text.find(code) == std::string::npos)
      text += (text.empty() ? "" : " ") + code;
  }
  return text;
}

}  // namespace

// github.com/NVIDIA-NeMo/RL/issues/3312: with a cached structure every asynchronous save after the
// first wrote the first one's tensors, while the iteration went on; step_90, step_110 and step_120
// were bit-identical.
TEST_CASE("an asynchronous save that writes the first save's tensors again is AU010") {
  MemoryFileSystem fs;
  TrainingRun run;
  run.train(90);
  run.save(fs);
  TrainingRun stale = run;
  for (const int step : {110, 120}) {
    stale.step = step;
    stale.stored_step = step;
    stale.save(fs);
  }
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  CHECK(codes(report) == "AU010");
  CHECK_FALSE(report.ok());
  REQUIRE(found(report, "AU010", "step_110.pt"));
  CHECK_THAT(found(report, "AU010", "step_120.pt")->message,
             Contains("step_110.pt bit for bit") && Contains("step 110 to step 120"));
  CHECK(report.newest_whole == "step_120.pt");
  CHECK(report.newest_sound == "step_90.pt");
  CHECK(report.checkpoints[2].same_as == "step_110.pt");
  // By its bytes, where nothing has checksums.
  MemoryFileSystem plain;
  run.save_model(plain);
  stale.save_model(plain);
  const AuditReport unknown = audited(plain, false);
  CHECK(codes(unknown).empty());
  REQUIRE(unknown.notes.size() == 1);
  CHECK_THAT(unknown.notes[0].message, Contains("--deep"));
  CHECK(codes(audited(plain, true)) == "AU010");
}

// github.com/pytorch/torchtitan/issues/571: after a second resume the saved train_state.step was
// still that of the first one.
TEST_CASE("a counter that a second resume left behind is AU012, and AU011 where it goes back") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 4; ++i) {
    run.train(10);
    run.save(fs);
  }
  run.train(5);
  run.stored_step = 26;
  run.save(fs);
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  CHECK(found(report, "AU012", "step_45.pt"));
  CHECK_THAT(found(report, "AU012")->message, Contains("iteration is 26, its name says 45"));
  CHECK(found(report, "AU011", "step_45.pt"));
  CHECK(report.newest_sound == "step_40.pt");
}

// github.com/KempnerInstitute/KempnerForge/pull/115: a freshly built optimizer has no moments to
// load into, so that they began at zero on each resume, while everything else went on.
TEST_CASE("an optimizer that begins again on a resume is AU022, with its step kept AU023") {
  for (const bool keeps_step : {false, true}) {
    MemoryFileSystem fs;
    TrainingRun run;
    for (int i = 0; i < 3; ++i) {
      run.train(50);
      run.save(fs);
    }
    for (TrainedTensor& t : run.tensors()) {
      std::ranges::fill(t.m, 0.0F);
      std::ranges::fill(t.v, 0.0F);
      if (!keeps_step) t.step = 0;
    }
    run.train(20);
    run.save(fs);
    INFO(trouble(audited(fs, true)));
    CHECK(codes(audited(fs, false)) == (keeps_step ? "" : "AU022"));
    const AuditReport deep = audited(fs, true);
    CHECK(codes(deep) == (keeps_step ? "AU023" : "AU022"));
    CHECK(found(deep, keeps_step ? "AU023" : "AU022", "step_170.pt"));
  }
}

// github.com/EvolvingLMMs-Lab/OneVision-Encoder/pull/65: checkpoints without the optimizer's state.
TEST_CASE("a checkpoint without optimizer state among others that have it is AU020") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    run.stores_optimizer = i != 1;
    run.save(fs);
  }
  const AuditReport report = audited(fs, false);
  CHECK(codes(report) == "AU020");
  CHECK(found(report, "AU020", "step_20.pt"));
  CHECK(report.ok());
}

// github.com/NVIDIA/nvidia-resiliency-ext/pull/376: a save in the background serialized tensors that
// the next optimizer step had changed: a checkpoint of step 1 whose state says 2.
TEST_CASE("a torn save, of which some state is a step ahead, is AU013") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 4; ++i) {
    run.train(10);
    TrainingRun saved = run;
    if (i == 2) {
      TrainingRun ahead = run;
      ahead.train(1);
      saved["layers.1.mlp.weight"] = ahead["layers.1.mlp.weight"];
      saved["layers.3.norm.weight"] = ahead["layers.3.norm.weight"];
    }
    saved.save(fs);
  }
  CHECK(codes(audited(fs, false)).empty());
  const AuditReport deep = audited(fs, true);
  INFO(trouble(deep));
  CHECK(codes(deep) == "AU013");
  REQUIRE(found(deep, "AU013", "step_30.pt"));
  CHECK_THAT(found(deep, "AU013")->message, Contains("2 parameters") && Contains("is at 31"));
}

TEST_CASE("an optimizer that is ahead of the run in one checkpoint is AU013 by metadata") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 5; ++i) {
    run.train(10);
    TrainingRun saved = run;
    if (i == 2)
      for (TrainedTensor& t : saved.tensors()) t.step += 1;
    saved.save(fs);
  }
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  CHECK(codes(report) == "AU013");
  CHECK(found(report, "AU013", "step_30.pt"));
}

// github.com/Rikorose/DeepFilterNet/issues/30: if the last checkpoint holds NaN, resuming from it is
// no use; which one is the last without?
TEST_CASE("NaN is AU040 with the first checkpoint, the tensor and the element") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 4; ++i) {
    run.train(10);
    if (i >= 2) run["layers.2.mlp.weight"].w[17] = NAN;
    if (i >= 3) run["lm_head.weight"].w[5] = INFINITY;
    run.save(fs);
  }
  CHECK(codes(audited(fs, false)).empty());
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU040");
  REQUIRE(found(report, "AU040", "step_30.pt", "model.layers.2.mlp.weight"));
  CHECK_THAT(found(report, "AU040", "step_30.pt")->message,
             Contains("1 NaN and 0 Inf") && Contains("element 17") && Contains("none in step_20"));
  CHECK(found(report, "AU040", "step_40.pt", "model.lm_head.weight"));
  CHECK(report.newest_sound == "step_20.pt");
}

// github.com/NVIDIA-NeMo/Automodel/issues/2571: the configuration says that lm_head is tied, yet the
// model was materialized after tying, and the two trained apart.
TEST_CASE("embeddings that config.json ties and that train apart are AU061") {
  MemoryFileSystem fs;
  TrainingRun run;
  run.train(5);
  run.save(fs);
  run.train(5);
  run.save(fs);
  CHECK(codes(audited(fs, false)).empty());
  fs.write_file("/run/config.json", as_bytes(R"({"tie_word_embeddings": true})"));
  const AuditReport report = audited(fs, false);
  CHECK(codes(report) == "AU061");
  REQUIRE(found(report, "AU061", "step_5.pt", "model.lm_head.weight"));
  CHECK_THAT(found(report, "AU061")->message, Contains("optimizer state of its own"));
}

// github.com/verl-project/verl/issues/7834: to_empty() gives each parameter a storage of its own, so
// that a tied lm_head stops being the embedding. Nothing fails.
TEST_CASE("weights of one storage that differ after a resume are AU060") {
  MemoryFileSystem fs;
  TrainingRun run;
  run.tied = {"embed_tokens.weight", "lm_head.weight"};
  run["lm_head.weight"].frozen = true;
  for (int i = 0; i < 2; ++i) {
    run.train(10);
    run.save(fs);
  }
  run["lm_head.weight"].w = run["embed_tokens.weight"].w;
  run["lm_head.weight"].frozen = false;
  run.tied.reset();
  run.train(10);
  run["lm_head.weight"].step = 30;
  run.save(fs);
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  CHECK(codes(report) == "AU060");
  REQUIRE(found(report, "AU060", "step_30.pt", "model.lm_head.weight"));
  CHECK_THAT(found(report, "AU060")->message, Contains("one tensor in step_10.pt"));
}

// The same in a format that stores both: equal while they trained, then not.
TEST_CASE("weights that were equal while they trained and differ later are AU060") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 4; ++i) {
    run.train(10);
    TrainingRun saved = run;
    if (i < 3) saved["lm_head.weight"].w = saved["embed_tokens.weight"].w;
    saved.save_model(fs);
  }
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(found(report, "AU060", "step_40", "lm_head.weight"));
}

// github.com/huggingface/peft/issues/1402: lora_B stayed zero through a whole training, whose losses
// looked fine.
TEST_CASE("a tensor that never moved though it has optimizer state is AU030") {
  MemoryFileSystem fs;
  TrainingRun run;
  TrainedTensor& dead = run["layers.1.mlp.weight"];
  dead.gradient = 0;
  std::ranges::fill(dead.w, 0.0F);
  for (int i = 0; i < 3; ++i) {
    run.train(10);
    run.save(fs);
  }
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU030");
  REQUIRE(found(report, "AU030", "", "model.layers.1.mlp.weight"));
  CHECK_THAT(found(report, "AU030")->message,
             Contains("step 10 to step 30") && Contains("no gradient reaches it"));
}

// github.com/huggingface/transformers/issues/46620: an initializer ran after the weights were loaded,
// without a word.
TEST_CASE("a matrix that a resume initialized again is AU031") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 2; ++i) {
    run.train(40);
    run.save(fs);
  }
  std::mt19937_64 random(99);
  TrainedTensor& lost = run["layers.2.mlp.weight"];
  lost.w = initialized(lost.shape, random);
  run.train(1);
  run.save(fs);
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU031");
  CHECK(found(report, "AU031", "step_81.pt", "model.layers.2.mlp.weight"));
}

// github.com/deepspeedai/DeepSpeed/issues/3090: frozen weights were not in the checkpoint and stayed
// random after a resume; subtle where only a few are frozen.
TEST_CASE("a matrix that looks initialized where its kind in other layers is trained is AU032") {
  MemoryFileSystem fs;
  TrainingRun run(5, 6);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 0.05F);
  for (int layer = 0; layer < 6; ++layer) {  // of a model that was trained long ago
    TrainedTensor& t = run[fmt::format("layers.{}.mlp.weight", layer)];
    t.frozen = layer == 3;
    if (layer != 3)
      for (float& x : t.w) x = x * 1.5F + normal(random) * normal(random) * 20;
  }
  run.train(10);
  run.save(fs);
  run.train(10);
  run.save(fs);
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU032");
  CHECK(found(report, "AU032", "step_20.pt", "model.layers.3.mlp.weight"));
}

// github.com/huggingface/nanotron/issues/242: weights diverged along the data-parallel axis.
TEST_CASE("replicas that drift are AU050 with the first checkpoint") {
  MemoryFileSystem fs;
  for (int step = 1; step <= 3; ++step)
    for (int rank = 0; rank < 2; ++rank) {
      const std::string folder = fmt::format("/run/step_{}/", step);
      const std::string file = fmt::format("__{}_0.distcp", rank);
      const float first = static_cast<float>(step) + (step >= 2 && rank == 1 ? 0.25F : 0.0F);
      const Bytes item = tensor_item({2, 2}, first);
      BuiltMetadata metadata;
      metadata.tensors = {{"norm.weight", "float32", {2, 2}, {{{0, 0}, {2, 2}}}}};
      metadata.items = {
          {"norm.weight", Numbers{0, 0}, file, 0, static_cast<std::int64_t>(item.size()), {}}};
      fs.write_file(folder + file, item);
      fs.write_file(folder + fmt::format("__{}.metadata", rank), build_metadata(metadata));
    }
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU050");
  REQUIRE(found(report, "AU050", "step_2", "norm.weight"));
  CHECK_FALSE(found(report, "AU050", "step_3"));
}

// github.com/marin-community/marin/issues/1368: spikes of updates and second moments, larger in lower
// layers, that go before the loss.
TEST_CASE("a spike of the gradients is AU041 with the tensor that led it") {
  MemoryFileSystem fs;
  TrainingRun run(7);
  run.beta2 = 0.95;
  for (int i = 0; i < 5; ++i) {
    for (TrainedTensor& t : run.tensors()) t.gradient = i == 3 ? 2e-2 : 1e-3;
    if (i == 3) run["layers.0.mlp.weight"].gradient = 2e-1;
    run.train(10);
    run.save(fs);
  }
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  CHECK(codes(report) == "AU041");
  REQUIRE(found(report, "AU041", "step_40.pt"));
  CHECK_THAT(found(report, "AU041")->tensor,
             Contains("layers.0.mlp.weight.exp_avg_sq") || Contains(".1.exp_avg_sq"));
  CHECK(report.ok());
}

// github.com/KempnerInstitute/KempnerForge/issues/102: `latest` moved before the files of an
// asynchronous save were there.
TEST_CASE("a pointer to a save that never finished is AU004") {
  MemoryFileSystem fs;
  for (const int step : {1, 2}) {
    const std::string folder = fmt::format("/run/step_{}/", step);
    const Bytes item = tensor_item({2, 2}, static_cast<float>(step));
    BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {2, 2}, {{{0, 0}, {2, 2}}}}};
    metadata.items = {
        {"w", Numbers{0, 0}, "__0_0.distcp", 0, static_cast<std::int64_t>(item.size()), {}}};
    fs.write_file(folder + "__0_0.distcp", item);
    if (step == 1) fs.write_file(folder + ".metadata", build_metadata(metadata));
  }
  fs.write_file("/run/latest", as_bytes(std::string("step_2")));
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  CHECK(codes(report) == "AU003 AU004");
  CHECK(report.newest_sound == "step_1");
  fs.write_file("/run/latest", as_bytes(std::string("step_7")));
  CHECK(found(audited(fs, false), "AU004", "latest"));
}

}  // namespace audit_published_test

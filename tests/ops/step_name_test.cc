// Steps that names tell: the same for summary of one checkpoint and for the rows of a run.
#include "lib/ops/open/step_name.h"

#include <catch2/catch.hpp>

namespace step_name_test {

using namespace tessera;

TEST_CASE("a number behind a word that means steps is the step") {
  CHECK(step_of_path("/data/run7/step_1000") == 1000);
  CHECK(step_of_path("out/checkpoint-500/model.safetensors") == 500);
  CHECK(step_of_path("iter_0000020") == 20);
  CHECK(step_of_path("global_step30/zero") == 30);
  CHECK(step_of_path("epoch=3-step=400.ckpt") == 400);
  CHECK(step_of_path("step100/step200") == 200);
  CHECK(step_of_path("iteration12") == 12);
}

TEST_CASE("other numbers of a path are no step") {
  for (const char* path : {"/data/run7/model.pt", "footstep7", "steps/7", "step_", "step_x7", "",
                           "checkpoint-99999999999999999999", "model-00001-of-00002.safetensors"}) {
    INFO(path);
    CHECK_FALSE(step_of_path(path));
  }
}

TEST_CASE("in a run any number may be the step") {
  CHECK(step_of_run_name("step_1000/model") == 1000);
  CHECK(step_of_run_name("0001000") == 1000);
  CHECK(step_of_run_name("ckpt5/model") == 5);
  CHECK(step_of_run_name("v2/checkpoint-7") == 7);
  CHECK(step_of_run_name("ep2-ba6-rank") == 6);
  CHECK(step_of_run_name("ep2-ba6-rank0.pt") == 6);
  CHECK(step_of_run_name("epoch3_fp16.pt") == 3);
  for (const char* name :
       {"final", "pytorch_model.fp16.bin", "version_0/checkpoints/last.ckpt",
        "model-int8.safetensors", "v2/model", "latest-rank0.pt", "checkpoint_last-shard1.pt",
        "model_tp1.pt", "reshard-model_part-1.pt"}) {
    INFO(name);
    CHECK_FALSE(step_of_run_name(name));
  }
  CHECK_FALSE(step_of_run_name("99999999999999999999"));
}

}  // namespace step_name_test

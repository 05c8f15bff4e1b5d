#pragma once
// Tessera: sharded training checkpoints. Everything a training job or a tool needs of the toolkit;
// the runtime beside it is <tessera/fsdp.h>.
//
// Opening any checkpoint (examples/inspect.cc):
//
//   auto files = tessera::make_posix_file_system();
//   tessera::OpenedCheckpoint checkpoint = tessera::open_checkpoint(*files, "run/step_100");
//   for (const tessera::StoredTensor& tensor : checkpoint.manifest.tensors)
//     std::puts((tensor.name + " " + tensor.spec.to_string()).c_str());
//
// Saving and loading the state of a job, on any number of ranks (examples/live_state.cc):
//
//   auto ranks = tessera::single_rank();                    // or the group of the job
//   tessera::LiveState state;
//   state.add("model.weight", {tessera::DType::kFloat32, {8, 3}, {}, weight.data()});
//   state.add_value("step", tessera::Value::integer(100));
//   tessera::save("run/step_100", state, *ranks);
//   tessera::LoadResult result = tessera::load("run/step_100", state, *ranks);
#include <tessera/base/error.h>
#include <tessera/base/progress.h>
#include <tessera/base/rank_group.h>
#include <tessera/format/registry.h>
#include <tessera/layout/layout.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/open.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/scan.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/live_state.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>
#include <tessera/tensor/chunk.h>

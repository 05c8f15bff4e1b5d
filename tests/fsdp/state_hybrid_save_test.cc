// Saves with replicas: what ranks of several shard groups hold alike is written once, and the
// replicas share the writing.
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>
#include <tessera/storage/memory_file_system.h>

#include <numeric>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_hybrid_save_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

constexpr const char* kPath = "/run/step_1";

struct Saved {
  std::uint64_t state = 0;             // bytes of all tensors, each once
  std::vector<std::uint64_t> written;  // by rank
  std::string root;                    // of the content
};

/// One step on `replicas` x `shards` ranks, and a save.
Saved save(int replicas, int shards, MemoryLayout layout) {
  const int world = replicas * shards;
  tessera::MemoryFileSystem fs;
  Saved out;
  out.written.resize(static_cast<std::size_t>(world));
  fsdp::run_threads(world, [&](fsdp::World& w) {
    fsdp::Options options;
    options.mesh = fsdp::DeviceMesh(w, {replicas, shards}, {"replicate", "shard"});
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
    options.layout = layout;
    Net net = make_net(3, 128, 256, 8);
    shard(net, options);
    optim::AdamW optimizer(net->parameters(), optim::AdamWOptions(1e-2));
    const Data data = make_data(24, 128, 8);  // the same on every rank: so is the content
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer.step();
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    const tessera::SaveReport report =
        tessera::save(kPath, fsdp::state_dict(net, optimizer), w.ranks(), saving);
    out.written[static_cast<std::size_t>(w.rank())] = report.bytes_written;
  });
  tessera::OpenedCheckpoint opened = tessera::open_checkpoint(fs, kPath);
  opened.locate_all({});
  const tessera::HashReport content = tessera::hash_checkpoint(opened);
  out.state = content.bytes;
  out.root = content.root;
  return out;
}

}  // namespace

TEST_CASE("shards with replicas are written once, and replicas write equal parts") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto [replicas, shards] = GENERATE(table<int, int>({{2, 2}, {4, 1}, {4, 2}, {1, 4}}));
  CAPTURE(layout == MemoryLayout::kFlat, replicas, shards);
  const Saved saved = save(replicas, shards, layout);
  CHECK(saved.root == save(1, 1, layout).root);
  CHECK(saved.state > (std::uint64_t{2} << 20));
  CAPTURE(saved.state, saved.written);
  // Files have headers, and one holds the metadata.
  const std::uint64_t all =
      std::accumulate(saved.written.begin(), saved.written.end(), std::uint64_t{0});
  CHECK(all >= saved.state);
  CHECK(all < saved.state + saved.state / 4);
  const std::uint64_t even = saved.state / saved.written.size();
  for (const std::uint64_t bytes : saved.written) {
    CHECK(bytes > even * 3 / 4);
    CHECK(bytes < even * 3 / 2);
  }
}

}  // namespace state_hybrid_save_test

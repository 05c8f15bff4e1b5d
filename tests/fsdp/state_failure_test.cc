// A rank that fails in the middle of taking or loading a state dict: its peers wait in the next
// collective, and are told.
#include <fmt/format.h>
#include <tessera/fsdp/training.h>

#include <chrono>
#include <new>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_failure_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("a rank whose memory runs out while a state is gathered makes every rank raise",
          "[state][failure]") {
  const char* const form = GENERATE("full", "full on the first rank", "even chunks", "load");
  const char* const backend = GENERATE("threads", "gloo");
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(form, backend, layout);
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.timeout = std::chrono::seconds(20);
  run_threads(
      3,
      [&](World& world) {
        Options options;
        options.mesh = world.mesh();
        options.layout = layout;
        Odd model = make_odd(false);
        shard_odd(model, options);
        torch::optim::AdamW optimizer(model->parameters());
        odd_loss(model, 0, world.rank(), world.size()).backward();
        optimizer.step();

        StateDictOptions asked;
        const bool loads = std::string(form) == "load", rows = std::string(form) == "even chunks";
        if (!rows) asked.type = StateDictType::kFull;
        asked.rank0_only = std::string(form) == "full on the first rank";
        asked.even_chunks = rows;
        tessera::LiveState full;
        if (loads) full = state_dict(model, optimizer, asked);
        int seen = 0;
        const int fails_at = loads ? 20 : 2;  // of a load, the first carry names and steps
        if (world.rank() == 1)
          world.communicator()->observe([&](const CommRecord& record) {
            if (record.phase == CommPhase::kSummon && ++seen == fails_at) throw std::bad_alloc();
          });
        const auto start = std::chrono::steady_clock::now();
        const std::string message = message_of([&] {
          if (loads) asked.rank0_only = true;
          if (loads)
            load_full_state(model, optimizer, full, /*rank0_only=*/true);
          else
            state_dict(model, optimizer, asked);
        });
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        world.communicator()->observe({});
        if (rows && layout == MemoryLayout::kPerParameter) {  // its shards are these rows
          RANK_CHECK(message.empty() && seen == 0, message);
          return;
        }
        RANK_CHECK(seconds < 10, fmt::format("{} s", seconds));
        RANK_CHECK(has(message, world.rank() != 1 ? "rank 1 failed"
                                : loads           ? "out of memory"
                                                  : "bad_alloc"),
                   message);
        RANK_CHECK(has(message, "model and optimizer are partly filled") == loads, message);
        RANK_CHECK(
            has(message_of([&] { odd_loss(model, 1, world.rank(), world.size()); }), "reset"));
        World(world).reset();
        reset(model);
        RANK_CHECK(!state_dict(model, optimizer, asked).dict().entries.empty());
      },
      world_options);
}

}  // namespace state_failure_test

// Loads into states that are copies (FULL, even chunks): what came is scattered aside, compared,
// and only then takes the shards' place.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <chrono>
#include <new>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_gathered_load_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

const std::string kFull = "full", kFirst = "full on the first rank", kRows = "even chunks";

fsdp::StateDictOptions form_of(const std::string& form) {
  fsdp::StateDictOptions options;
  options.even_chunks = form == kRows;
  if (form != kRows) options.type = StateDictType::kFull;
  options.rank0_only = form == kFirst;
  return options;
}

struct Job {
  Job(fsdp::World& world, MemoryLayout layout) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard_odd(model, options);
    optimizer = std::make_unique<optim::AdamW>(model->parameters(), optim::AdamWOptions(0.25));
    train_odd(model, *optimizer, 0, 1, world.rank(), world.size());
  }
  /// The tensors that a load changes.
  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> out;
    for (const torch::Tensor& parameter : model->parameters()) {
      out.push_back(parameter.detach());
      const auto found = optimizer->state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer->state().end()) continue;
      auto& adam = static_cast<optim::AdamWParamState&>(*found->second);
      out.push_back(adam.exp_avg());
      out.push_back(adam.exp_avg_sq());
    }
    return out;
  }
  std::vector<torch::Tensor> copies() const {
    std::vector<torch::Tensor> out;
    for (const torch::Tensor& tensor : tensors()) out.push_back(tensor.clone());
    return out;
  }
  bool is(const std::vector<torch::Tensor>& before) const {
    const std::vector<torch::Tensor> now = tensors();
    for (std::size_t t = 0; t < now.size(); ++t)
      if (!same_bits(now[t], before[t])) return false;
    return now.size() == before.size();
  }
  Odd model = make_odd(false);
  std::unique_ptr<optim::AdamW> optimizer;
};

tessera::LoadPolicy policy_for(tessera::FileSystem& fs) {
  tessera::LoadPolicy policy;
  policy.file_system = &fs;
  return policy;
}

/// A checkpoint of a model without fully_shard, after `steps`, edited.
void save_plain(tessera::FileSystem& fs, int steps,
                const std::function<void(tessera::LiveState&)>& edit = {},
                const std::string& path = "/run/a") {
  Odd model = make_odd(false);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.25));
  train_odd(model, optimizer, 0, steps, 0, 1);
  tessera::LiveState state = fsdp::state_dict(model, optimizer);
  if (edit) edit(state);
  tessera::SaveOptions options;
  options.file_system = &fs;
  const auto alone = tessera::single_rank();
  tessera::save(path, state, *alone, options);
}

/// The second name of the tied weight gets values of its own.
std::function<void(tessera::LiveState&)> with_other_tie(std::vector<float>& memory) {
  return [&memory](tessera::LiveState& state) {
    state.edit([&memory](tessera::LiveContents& contents) {
      const tessera::StateEntry* second = contents.dict.find("model.head.weight2");
      tessera::LivePiece& piece = contents.tensors[second->value.tensor_index()].pieces.at(0);
      memory.assign(static_cast<std::size_t>(piece.chunk.numel()), 1.5F);
      piece.data = memory.data();
      piece.strides.clear();
    });
  };
}

}  // namespace

TEST_CASE("names of one parameter with different values are refused in every form", "[state]") {
  const std::string form = GENERATE(kFull, kFirst, kRows, std::string("sharded"));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(form, layout);
  tessera::MemoryFileSystem fs;
  std::vector<float> memory;
  save_plain(fs, 2, with_other_tie(memory));
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Job job(world, layout);
    const auto before = job.copies();
    const fsdp::StateDictOptions asked =
        form == "sharded" ? fsdp::StateDictOptions() : form_of(form);
    const std::string message = message_of([&] {
      tessera::load("/run/a", fsdp::state_dict(job.model, *job.optimizer, asked), world.ranks(),
                    policy_for(fs));
    });
    RANK_CHECK(has(message, "corrupt") && has(message, "are one parameter here and differ"),
               message);
    RANK_CHECK(has(message, "element 0 is ") && has(message, " and 1.5"), message);
    RANK_CHECK(job.is(before));
  });
}

TEST_CASE("a state that was loaded once compares the tied names of the next checkpoint alone") {
  const std::string form = GENERATE(kFull, kRows, std::string("sharded"));
  CAPTURE(form);
  tessera::MemoryFileSystem fs;
  save_plain(fs, 1, {}, "/run/one");
  save_plain(fs, 3, {}, "/run/three");
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Job job(world, MemoryLayout::kFlat);
    const tessera::LiveState state = fsdp::state_dict(
        job.model, *job.optimizer, form == "sharded" ? fsdp::StateDictOptions() : form_of(form));
    for (const char* path : {"/run/one", "/run/three", "/run/one"})
      tessera::load(path, state, world.ranks(), policy_for(fs));
    Odd plain = make_odd(false);
    optim::AdamW of_plain(plain->parameters(), optim::AdamWOptions(0.25));
    train_odd(plain, of_plain, 0, 1, 0, 1);
    const fsdp::SummonFullParams summoned(job.model);
    for (std::size_t p = 0; p < plain->parameters().size(); ++p)
      RANK_CHECK(same_bits(job.model->parameters()[p], plain->parameters()[p]));
  });
}

TEST_CASE("a rank that fails while what was loaded is scattered leaves every rank as it was",
          "[state][failure]") {
  const std::string form = GENERATE(kFirst, kRows);
  const int at = GENERATE(1, 3, 9);
  CAPTURE(form, at);
  tessera::MemoryFileSystem fs;
  save_plain(fs, 2);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Job job(world, MemoryLayout::kFlat);
    const tessera::LiveState state = fsdp::state_dict(job.model, *job.optimizer, form_of(form));
    const auto before = job.copies();
    int seen = 0;
    if (world.rank() == 1)
      world.communicator()->observe([&](const fsdp::CommRecord& record) {
        if (record.phase == fsdp::CommPhase::kSummon && ++seen == at) throw std::bad_alloc();
      });
    const auto start = std::chrono::steady_clock::now();
    const std::string message =
        message_of([&] { tessera::load("/run/a", state, world.ranks(), policy_for(fs)); });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    world.communicator()->observe({});
    RANK_CHECK(!message.empty() && !has(message, "partly"), message);
    RANK_CHECK(seconds < 10, fmt::format("{} s", seconds));
    RANK_CHECK(job.is(before), message);
  });
}

TEST_CASE("a checkpoint that one rank cannot open is told, whatever state the optimizer has",
          "[state][failure]") {
  const std::string form = GENERATE(kFull, kFirst, kRows);
  CAPTURE(form);
  tessera::MemoryFileSystem fs;
  save_plain(fs, 2, [](tessera::LiveState& state) {  // a parameter that had none yet
    state.remove_if([](const tessera::StateEntry& entry) {
      return entry.name.starts_with("optim.state.inner.a.weight.");
    });
  });
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Job job(world, MemoryLayout::kFlat);
    const auto before = job.copies();
    tessera::FaultyFileSystem faulty(fs, {.at = world.rank() == 1 ? 1U : 0U});
    const auto start = std::chrono::steady_clock::now();
    const std::string message = message_of([&] {
      tessera::load("/run/a", fsdp::state_dict(job.model, *job.optimizer, form_of(form)),
                    world.ranks(), policy_for(faulty));
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    RANK_CHECK(has(message, "rank 1"), message);
    RANK_CHECK(seconds < 10, fmt::format("{} s", seconds));
    RANK_CHECK(job.is(before), message);
    // The same without the fault: the state that the checkpoint lacks is dropped.
    tessera::load("/run/a", fsdp::state_dict(job.model, *job.optimizer, form_of(form)),
                  world.ranks(), policy_for(fs));
    const torch::Tensor weight = job.model->named_parameters()["inner.a.weight"];
    RANK_CHECK(job.optimizer->state().count(weight.unsafeGetTensorImpl()) == 0);
  });
}

}  // namespace state_gathered_load_test

// Loads into sharded models: any mesh, offloaded or not; proved element by element; and errors of
// one rank that leave the model and the optimizer of every rank as they were.
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <array>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_load_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;

namespace {

struct Setup {
  int world = 4;
  int dims = 1;  // of the mesh; 0: a process group
  bool offload = false;
  MemoryLayout layout = MemoryLayout::kFlat;
};

fsdp::Options options_of(const Setup& setup, fsdp::World& world) {
  fsdp::Options options;
  options.layout = setup.layout;
  options.cpu_offload.offload_params = setup.offload;
  if (setup.dims == 0) options.process_group = world.communicator();
  if (setup.dims == 1) options.mesh = world.mesh();
  if (setup.dims == 2) {
    options.mesh = fsdp::DeviceMesh(world, {2, setup.world / 2}, {"replicate", "shard"});
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
  }
  return options;
}

/// One rank's training job.
struct Job {
  Job(const Setup& setup, fsdp::World& world_, double rate) : world(world_) {
    shard_odd(model, options_of(setup, world));
    optimizer =
        std::make_unique<optim::AdamW>(model->parameters(), optim::AdamWOptions(rate).eps(rate));
  }
  void train(int from, int to) {
    train_odd(model, *optimizer, from, to, world.rank(), world.size());
  }
  void spoil() {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(-7);
    for (auto& buffer : model->buffers()) buffer.fill_(3);
  }
  fsdp::World& world;
  Odd model = make_odd(false);
  std::unique_ptr<optim::AdamW> optimizer;
};

using Body = std::function<void(Job&)>;

/// `body` on every rank of a job, then its whole state by brute force.
Checkpoint run(const Setup& setup, const Body& body) {
  std::vector<std::unique_ptr<Job>> jobs(static_cast<std::size_t>(setup.world));
  std::vector<tessera::LiveState> states(jobs.size());
  Checkpoint out;
  fsdp::run_threads(setup.world, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    jobs[r] = std::make_unique<Job>(setup, world, 0.25);
    body(*jobs[r]);
    states[r] = fsdp::state_dict(jobs[r]->model, *jobs[r]->optimizer);
    states[r].before_save();
    world.ranks().barrier();
    if (world.rank() == 0) out = Checkpoint::of(states);
    world.ranks().barrier();
  });
  return out;
}

/// The first tensor that differs; "": none.
std::string difference(const Checkpoint& a, const Checkpoint& b) {
  if (a.tensors.size() != b.tensors.size()) return "other names";
  for (const auto& [name, tensor] : a.tensors)
    if (!b.tensors.contains(name) || !same_bits(b.tensors.at(name), tensor)) return name;
  return "";
}

tessera::LoadPolicy policy_for(tessera::FileSystem& fs,
                               tessera::LoadSafety safety = tessera::LoadSafety::kAside) {
  tessera::LoadPolicy policy;
  policy.file_system = &fs;
  policy.safety = safety;
  return policy;
}
bool says_partly_filled(const std::string& message) {
  return message.find("partly filled") != std::string::npos;
}
constexpr std::array kSafeties = {tessera::LoadSafety::kAside, tessera::LoadSafety::kReadTwice,
                                  tessera::LoadSafety::kInPlace};
tessera::SaveOptions options_for(tessera::FileSystem& fs) {
  tessera::SaveOptions options;
  options.file_system = &fs;
  return options;
}

constexpr const char* kPath = "/run/step_2";

/// Two steps on three ranks.
Checkpoint save_two_steps(tessera::FileSystem& fs) {
  return run({3}, [&](Job& job) {
    job.train(0, 2);
    tessera::save(kPath, fsdp::state_dict(job.model, *job.optimizer), job.world.ranks(),
                  options_for(fs));
  });
}

}  // namespace

TEST_CASE("a state goes from and into any mesh with offload on and off") {
  const std::string form = GENERATE("shards", "even chunks", "full");
  const int dims = GENERATE(0, 1, 2);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(form, dims, layout == MemoryLayout::kFlat);
  fsdp::StateDictOptions wanted;
  if (form == "full") wanted.type = StateDictType::kFull;
  wanted.even_chunks = form == "even chunks";
  tessera::MemoryFileSystem fs;
  const Checkpoint saved = save_two_steps(fs);
  std::vector<Checkpoint> later;
  for (const bool offload : {false, true}) {
    const Setup setup{4, dims, offload, layout};
    const std::string again = offload ? "/run/offloaded" : "/run/kept";
    const Body load = [&](Job& job) {
      job.spoil();
      const tessera::LoadResult result =
          tessera::load(kPath, fsdp::state_dict(job.model, *job.optimizer, wanted),
                        job.world.ranks(), policy_for(fs));
      RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.cast.empty());
      tessera::save(again, fsdp::state_dict(job.model, *job.optimizer, wanted), job.world.ranks(),
                    options_for(fs));
    };
    CHECK(difference(run(setup, load), saved) == "");
    const auto back = [&](Job& job) {
      tessera::load(again, fsdp::state_dict(job.model, *job.optimizer), job.world.ranks(),
                    policy_for(fs));
    };
    CHECK(difference(run({2}, back), saved) == "");
    later.push_back(run(setup, [&](Job& job) {
      tessera::load(again, fsdp::state_dict(job.model, *job.optimizer), job.world.ranks(),
                    policy_for(fs));
      job.train(2, 4);
    }));
  }
  CHECK(difference(later[0], later[1]) == "");
  CHECK(difference(later[0], saved) != "");
}

TEST_CASE("a load that is verified writes every element of a sharded state") {
  tessera::MemoryFileSystem fs;
  const Checkpoint saved = save_two_steps(fs);
  for (const auto layout : {MemoryLayout::kFlat, MemoryLayout::kPerParameter})
    CHECK(difference(run({2, 1, false, layout},
                         [&](Job& job) {
                           tessera::LoadPolicy policy = policy_for(fs);
                           policy.verify = true;
                           tessera::load(kPath, fsdp::state_dict(job.model, *job.optimizer),
                                         job.world.ranks(), policy);
                         }),
                     saved) == "");
}

namespace {

/// Everything that a load may change on one rank, as it is now.
struct Before {
  explicit Before(Job& job) {
    for (const auto& item : job.model->named_parameters()) keep(item.key(), item.value());
    for (const auto& item : job.model->named_buffers()) keep(item.key(), item.value());
    for (const auto& [parameter, state] : job.optimizer->state()) {
      const auto& adam = static_cast<const optim::AdamWParamState&>(*state);
      keep("exp_avg", adam.exp_avg());
      keep("exp_avg_sq", adam.exp_avg_sq());
      steps.emplace_back(parameter, adam.step());
    }
    std::ranges::sort(steps);
    rate = static_cast<optim::AdamWOptions&>(job.optimizer->param_groups()[0].options()).lr();
  }
  void keep(const std::string& name, const torch::Tensor& tensor) {
    tensors.emplace_back(name, tensor.detach(), tensor.detach().clone());
  }
  /// What differs from then; "": nothing.
  std::string changed(Job& job) const {
    for (const auto& [name, tensor, copy] : tensors)
      if (!same_bits(tensor, copy)) return name;
    const Before now(job);
    if (now.steps != steps) return "steps";
    return now.rate == rate ? "" : "lr";
  }
  std::vector<std::tuple<std::string, torch::Tensor, torch::Tensor>> tensors;
  std::vector<std::pair<void*, std::int64_t>> steps;
  double rate = 0;
};

/// The file and the byte of it in which an element of a tensor lies.
std::pair<std::string, std::size_t> place_of(tessera::FileSystem& fs, const std::string& tensor) {
  tessera::OpenedCheckpoint opened = tessera::open_checkpoint(fs, kPath);
  opened.locate_all({});
  const tessera::Source& source = opened.manifest.source(*opened.manifest.find(tensor), 0);
  return {std::string(kPath) + "/" + opened.manifest.files[source.file].path, source.offset};
}

/// True on every rank when it is on any.
bool any(fsdp::World& world, bool mine) {
  const std::byte byte{mine};
  for (const auto& theirs : world.ranks().all_gather({&byte, 1}))
    if (theirs[0] != std::byte{0}) return true;
  return false;
}

}  // namespace

TEST_CASE("an error of any rank at any step of a load leaves every rank as it was") {
  const bool trained = GENERATE(false, true);  // or without optimizer state so far
  const int victim = GENERATE(0, 2);
  const tessera::LoadSafety safety = GENERATE(from_range(kSafeties));
  CAPTURE(trained, victim, static_cast<int>(safety));
  tessera::MemoryFileSystem fs;
  save_two_steps(fs);
  std::atomic<int> failures = 0, told = 0;
  fsdp::run_threads(3, [&](fsdp::World& world) {
    for (std::uint64_t n = 1;; ++n) {
      Job job({3, 1, false, MemoryLayout::kPerParameter}, world, 0.5);
      job.spoil();
      if (trained) job.train(5, 6);
      const Before before(job);
      tessera::FaultyFileSystem faulty(fs, {.at = world.rank() == victim ? n : 0});
      const std::string message = message_of([&] {
        tessera::load(kPath, fsdp::state_dict(job.model, *job.optimizer), world.ranks(),
                      policy_for(faulty, safety));
      });
      RANK_CHECK(any(world, message.empty()) == message.empty(), message);
      RANK_CHECK(any(world, says_partly_filled(message)) == says_partly_filled(message), message);
      if (!any(world, faulty.faults() > 0)) break;
      if (message.empty()) continue;  // an operation that the load does not need
      RANK_CHECK(message.find("rank " + std::to_string(victim)) != std::string::npos, message);
      failures += world.rank() == 0;
      if (says_partly_filled(message))
        told += world.rank() == 0;
      else
        RANK_CHECK(before.changed(job).empty(), before.changed(job) + " after " + message);
    }
  });
  CHECK(failures - told > 10);
  CHECK((told > 0) == (safety != tessera::LoadSafety::kAside));
}

TEST_CASE("one state with tensors of its user's own is loaded again and again") {
  tessera::MemoryFileSystem fs;
  run({3}, [&](Job& job) {
    std::vector<float> own = {1, 2, 3, 4, 5};
    const std::vector<float> own_saved = own;
    job.train(0, 2);
    tessera::LiveState state = fsdp::state_dict(job.model, *job.optimizer);
    state.add("own", {tessera::DType::kFloat32, {5}, {}, own.data()});
    const auto moment = std::ranges::find_if(
        state.dict().entries, [](const auto& entry) { return entry.name.ends_with(".exp_avg"); });
    RANK_CHECK(moment != state.dict().entries.end(), "there is no exp_avg");
    const tessera::Value second = moment->value;  // the user's own name of it
    state.append_value({tessera::key_item("second")}, second);
    const Before saved(job);
    tessera::save(kPath, state, job.world.ranks(), options_for(fs));
    tessera::LoadPolicy policy = policy_for(fs);
    policy.verify = true;
    for (int round = 0; round < 3; ++round) {
      job.train(2, 4);
      std::ranges::fill(own, -1.0f);
      RANK_CHECK(!saved.changed(job).empty(), "training changed nothing");
      tessera::load(kPath, state, job.world.ranks(), policy);
      RANK_CHECK(saved.changed(job).empty(), saved.changed(job));
      RANK_CHECK(own == own_saved, "own");
    }
  });
}

TEST_CASE("what one rank refuses, or finds damaged, leaves every rank as it was") {
  const tessera::LoadSafety safety = GENERATE(from_range(kSafeties));
  CAPTURE(static_cast<int>(safety));
  tessera::MemoryFileSystem fs;
  save_two_steps(fs);
  run({3}, [&](Job& job) {
    job.spoil();
    job.train(5, 6);
    const Before before(job);
    const auto refused = [&](const char* what, const std::function<void(tessera::LiveState&)>& f) {
      tessera::LiveState state = fsdp::state_dict(job.model, *job.optimizer);
      if (job.world.rank() == 2) f(state);
      const std::string message = message_of(
          [&] { tessera::load(kPath, state, job.world.ranks(), policy_for(fs, safety)); });
      RANK_CHECK(message.find(what) != std::string::npos, message);
      RANK_CHECK(!says_partly_filled(message), message);
      RANK_CHECK(message.find("rank 2") != std::string::npos, message);
      RANK_CHECK(before.changed(job).empty(), before.changed(job) + " after " + message);
    };
    refused("not stored, of the model: \"model.more\"", [](tessera::LiveState& state) {
      static float number = 0;
      state.add({tessera::key_item("model"), tessera::key_item("more")},
                {tessera::DType::kFloat32, {}, {}, &number});
    });
    refused("expected float32 [6,6], found float32 [7,6]", [](tessera::LiveState& state) {
      state.edit([](tessera::LiveContents& contents) {
        const auto* weight = contents.dict.find("model.inner.a.weight");
        tessera::LiveTensor& tensor = contents.tensors[weight->value.tensor_index()];
        tensor.spec.shape = tessera::Shape({6, 6});
        tensor.pieces.clear();
      });
    });
    refused("no such step", [](tessera::LiveState& state) {
      state.check_value = [](const tessera::StateEntry&) {
        tessera::fail(tessera::Code::kInvalidArgument, "no such step");
      };
    });
    refused("cannot make state", [](tessera::LiveState& state) {
      state.materialise = [](tessera::LiveState&, const tessera::Manifest&) {
        tessera::fail(tessera::Code::kResourceExhausted, "cannot make state");
      };
    });
  });
  // One byte: of what stands around the tensors, which shows before any is read, and of a tensor.
  // The seal would show it at once in files this small.
  fs.remove_file(std::string(kPath) + "/tessera.manifest.json");
  const std::string first = std::string(kPath) + "/__0_0.distcp";
  const auto of_tensor = place_of(fs, "model.inner.a.weight");
  for (const auto& [file, at] : {std::pair(first, fs.read_file(first).size() / 2), of_tensor}) {
    const bool reading = at == of_tensor.second && safety == tessera::LoadSafety::kInPlace;
    const tessera::Bytes whole = fs.read_file(file);
    tessera::Bytes bytes = whole;
    bytes[at] ^= std::byte{16};
    fs.write_file(file, bytes);
    fsdp::run_threads(3, [&](fsdp::World& world) {
      Job job({3}, world, 0.25);
      job.spoil();
      const Before before(job);
      const std::string message = message_of([&] {
        tessera::load(kPath, fsdp::state_dict(job.model, *job.optimizer), world.ranks(),
                      policy_for(fs, safety));
      });
      RANK_CHECK(message.starts_with("corrupt"), message);
      RANK_CHECK(says_partly_filled(message) == reading, message);
      RANK_CHECK(reading || before.changed(job).empty(), before.changed(job) + " after " + message);
    });
    fs.write_file(file, whole);
  }
}

TEST_CASE("tied names that differ and steps that are no counts are refused before anything lands") {
  for (const std::string suffix : {"head.weight2", ".step"}) {
    CAPTURE(suffix);
    const auto alone = tessera::single_rank();
    tessera::MemoryFileSystem fs;
    Odd model = make_odd(true);
    optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.25));
    odd_loss(model, 1, 0, 1).backward();
    optimizer.step();
    tessera::LiveState state = fsdp::state_dict(model, optimizer);
    const auto entry = std::ranges::find_if(
        state.dict().entries, [&](const auto& each) { return each.name.ends_with(suffix); });
    REQUIRE(entry != state.dict().entries.end());
    const std::uint32_t index = entry->value.tensor_index();
    std::vector<float> other(
        static_cast<std::size_t>(state.tensors()[index].pieces.at(0).chunk.numel()), 1.5f);
    state.edit([&](tessera::LiveContents& contents) {
      contents.tensors[index].pieces[0].data = other.data();
      contents.tensors[index].pieces[0].strides.clear();
    });
    tessera::save(kPath, state, *alone, options_for(fs));
    optimizer.step();
    std::vector<torch::Tensor> held, before;
    for (const torch::Tensor& parameter : model->parameters()) {
      held.push_back(parameter.detach());
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      held.push_back(static_cast<optim::AdamWParamState&>(*found->second).exp_avg());
    }
    for (const torch::Tensor& tensor : held) before.push_back(tensor.clone());
    for (const tessera::LoadSafety safety : kSafeties) {
      CHECK_THROWS_WITH(
          tessera::load(kPath, fsdp::state_dict(model, optimizer), *alone, policy_for(fs, safety)),
          Catch::Contains(suffix) && !Catch::Contains("partly filled"));
      for (std::size_t t = 0; t < held.size(); ++t) CHECK(same_bits(held[t], before[t]));
    }
  }
}

}  // namespace state_load_test

// A step is all or nothing: whatever throws, wherever, on whichever rank, every rank raises soon,
// and after reset everything is as before the step.
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <mutex>
#include <new>

#include "fsdp_core/params/recycler.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_exceptions_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

enum class Place {
  kForwardBegin,
  kForwardEnd,
  kInputHook,
  kOutputHook,
  kInsideBackward,
  kReduction,
};
constexpr int kPlaces = 6;
constexpr int kUnits = 6;  // five blocks and the root

/// What this rank throws next; the rank is the thread.
struct Fault {
  bool armed = false;
  Place place = Place::kForwardBegin;
  int unit = 0;
  bool out_of_memory = false;

  void raise() const {
    if (out_of_memory) throw std::bad_alloc();
    throw std::runtime_error("thrown on purpose");
  }
  bool is(Place at, int which) const { return armed && place == at && unit == which; }
};
thread_local Fault fault;

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    fault.raise();
    return grads;
  }
};

/// One unit's forward with a place for each fault.
template <class F>
torch::Tensor faulty(int unit, torch::Tensor x, F&& body) {
  const Fault now = fault;
  if (now.is(Place::kForwardBegin, unit)) now.raise();
  if (now.is(Place::kInputHook, unit)) {
    if (!x.requires_grad()) x = x.clone().set_requires_grad(true) * 1.0;
    x.register_hook([now](const torch::Tensor&) { now.raise(); });
  }
  torch::Tensor y = body(x);
  if (now.is(Place::kInsideBackward, unit)) y = ThrowInBackward::apply(y);
  if (now.is(Place::kOutputHook, unit))
    y.register_hook([now](const torch::Tensor&) { now.raise(); });
  if (now.is(Place::kForwardEnd, unit)) now.raise();
  return y;
}

struct FaultyBlockImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  int unit;
  FaultyBlockImpl(int unit_, std::int64_t width) : unit(unit_) {
    linear = register_module("linear", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    return faulty(unit, x, [&](torch::Tensor in) { return torch::tanh(linear->forward(in)); });
  }
};
FSDP_MODULE(FaultyBlock);

struct FaultyNetImpl : torch::nn::Module {
  std::vector<FaultyBlock> blocks;
  torch::nn::Linear head{nullptr};
  FaultyNetImpl() {
    for (int i = 0; i + 1 < kUnits; ++i)
      blocks.push_back(register_module(fmt::format("blocks{}", i), FaultyBlock(i, 7)));
    head = register_module("head", torch::nn::Linear(7, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return faulty(kUnits - 1, x, [&](torch::Tensor in) {
      for (FaultyBlock& block : blocks) in = block->forward(in);
      return head->forward(in);
    });
  }
};
FSDP_MODULE(FaultyNet);

FaultyNet make_faulty(const Options& options) {
  FaultyNet net = [] {
    std::lock_guard lock(generator_mutex());
    torch::manual_seed(17);
    return FaultyNet();
  }();
  for (FaultyBlock& block : net->blocks) fully_shard(block, options);
  fully_shard(net, options);
  // Before the root is known a unit has no name: by the place in the tree.
  register_comm_hook(net, [reduce = average_hook().function](GradientBucket& bucket) {
    const std::string name(bucket.tag.unit);
    const int unit = name.empty() ? kUnits - 1 : name.back() - '0';
    if (fault.is(Place::kReduction, unit)) fault.raise();
    reduce(bucket);
  });
  return net;
}

torch::Tensor input_of(int rank) {
  return torch::arange(28, torch::kFloat).view({4, 7}).sin() * (rank + 1);
}

std::vector<torch::Tensor> shards_of(FaultyNet& net, bool gradients) {
  std::vector<torch::Tensor> out;
  for (const auto& param : net->parameters())
    out.push_back(gradients ? param.grad().clone() : param.detach().clone());
  return out;
}

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i], b[i])) return false;
  return true;
}

/// What each rank's step threw, by case: the same on all but the thrower.
class Messages {
 public:
  void add(int index, int rank, const std::string& text) {
    std::lock_guard lock(mutex_);
    all_[index][rank] = text;
  }
  const std::map<int, std::map<int, std::string>>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::map<int, std::map<int, std::string>> all_;
};

}  // namespace

TEST_CASE("whatever throws - every rank raises and a reset leaves the parameters of before",
          "[runtime][exceptions]") {
  const int thrower = GENERATE(0, 1, 2, 3);
  CAPTURE(thrower);
  Messages messages;
  constexpr int kCases = kPlaces * kUnits * 2;
  run_threads(4, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    FaultyNet net = make_faulty(options);
    const torch::Tensor x = input_of(world.rank());
    auto step = [&] { net->forward(x).square().mean().backward(); };
    auto clear = [&] {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
    };
    step();
    const auto clean = shards_of(net, true);
    clear();
    const auto before = shards_of(net, false);
    const auto table = unit_states(net);
    auto memory = [&] {
      world.communicator()->barrier({});
      const auto bytes = recycler_counts().in_use;
      world.communicator()->barrier({});
      return static_cast<double>(bytes);
    };
    const double held = memory();
    for (int index = 0; index < kCases; ++index) {
      fault = {};
      if (world.rank() == thrower)
        fault = {true, static_cast<Place>(index % kPlaces), index / kPlaces % kUnits,
                 index >= kPlaces * kUnits};
      const std::string where = fmt::format("(case {}, rank {})", index, world.rank());
      const auto start = std::chrono::steady_clock::now();
      const std::string message = message_of([&] {
        step();
        step();  // where the failure came after this rank's last collective
      });
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      RANK_CHECK(!message.empty(), where);
      RANK_CHECK(seconds < 10, where + fmt::format("{} s", seconds));
      messages.add(index, world.rank(), message);

      fault = {};
      World(world).reset();
      RANK_CHECK(reset(net).stepped_units.empty(), where);
      RANK_CHECK(equal(shards_of(net, false), before), where);
      RANK_CHECK(unit_states(net) == table, where);
      for (const auto& param : net->parameters()) RANK_CHECK(!param.grad().defined(), where);
      const double now = memory();
      RANK_CHECK(std::abs(now - held) <= 0.01 * held + 1, where + fmt::format("{} {}", now, held));
      step();
      RANK_CHECK(equal(shards_of(net, true), clean), where);
      clear();
    }
  });
  // "same text": what the thrower's peers see names it and the phase.
  REQUIRE(messages.all().size() == kCases);
  for (const auto& [index, by_rank] : messages.all()) {
    CAPTURE(index);
    std::string peers;
    for (const auto& [rank, text] : by_rank) {
      if (rank == thrower) continue;
      CAPTURE(rank, text);
      CHECK(has(text, fmt::format("rank {} failed", thrower)));
      const bool in_forward = index % kPlaces < 2;
      CHECK(has(text, in_forward ? "forward of" : "backward"));
      const std::string reason = text.substr(0, text.find(" ["));
      if (peers.empty()) peers = reason;
      CHECK(reason == peers);
    }
  }
  WARN(fmt::format("{} faults injected on rank {} of 4", kCases, thrower));
}

TEST_CASE("flags are as before after an exception under them", "[runtime][exceptions]") {
  run_threads(2, [](World& world) {
    Options options;
    options.mesh = world.mesh();
    FaultyNet net = make_faulty(options);
    torch::Tensor x = input_of(world.rank());
    auto step = [&] { net->forward(x).square().mean().backward(); };
    auto trace = [&] {
      step();  // after a reset the first step compares every call
      std::string text;
      world.communicator()->observe([&](const CommRecord& record) {
        text += fmt::format("{} {} {}\n", comm_op_name(record.op), record.unit,
                            comm_phase_name(record.phase));
      });
      step();
      world.communicator()->observe({});
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      return text;
    };
    const std::string clean = trace();
    const auto table = unit_states(net);
    const std::vector<std::pair<const char*, std::function<void()>>> scopes = {
        {"no_sync",
         [&] {
           NoSync no_sync(net);
           step();
           fault = {true, Place::kForwardBegin, 3, false};
           step();
         }},
        {"no_sync in backward",
         [&] {
           NoSync no_sync(net);
           fault = {true, Place::kInsideBackward, 2, false};
           step();
         }},
        {"evaluation",
         [&] {
           net->eval();
           torch::NoGradGuard no_grad;
           fault = {true, Place::kForwardEnd, 4, false};
           net->forward(x);
         }},
        {"summon",
         [&] {
           SummonFullParams full(net);
           throw std::runtime_error("thrown on purpose");
         }},
        {"gathered ahead",
         [&] {
           unshard(net->blocks[4]);
           fault = {true, Place::kForwardBegin, 0, false};
           step();
         }},
        {"between forward and backward",
         [&] {
           auto y = net->forward(x);
           throw std::runtime_error("thrown on purpose");
         }},
    };
    for (const auto& [name, body] : scopes) {
      RANK_CHECK(!message_of(body).empty(), name);
      fault = {};
      net->train();
      World(world).reset();
      reset(net);
      RANK_CHECK(unit_states(net) == table, name);
      RANK_CHECK(trace() == clean, name);
    }
  });
}

TEST_CASE("ten runs of fifty steps give the same bits", "[runtime][deterministic]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(static_cast<int>(layout));
  std::vector<torch::Tensor> first;
  for (int run = 0; run < 10; ++run) {
    std::vector<torch::Tensor> last;
    WorldOptions gloo;
    gloo.backend = run % 2 ? "gloo" : "threads";
    run_threads(
        4,
        [&](World& world) {
          Net net = make_net(2, 9, 11, 3);
          Options options;
          options.mesh = world.mesh();
          options.layout = layout;
          shard(net, options);
          torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
          const Data data = part_of(make_data(12, 9, 3), world.rank(), world.size());
          for (int step = 0; step < 50; ++step) {
            optimizer.zero_grad();
            torch::mse_loss(net->forward(data.x), data.y).backward();
            optimizer.step();
          }
          SummonFullParams full(net);
          if (world.rank() == 0)
            for (const auto& param : net->parameters()) last.push_back(param.detach().clone());
        },
        gloo);
    if (first.empty()) first = last;
    REQUIRE(first.size() == last.size());
    for (std::size_t p = 0; p < first.size(); ++p) CHECK(torch::equal(first[p], last[p]));
  }
}

TEST_CASE("a value that is not finite is named wherever it is planted", "[runtime][nan]") {
  run_threads(2, [](World& world) {
    Net net = make_net(2, 5, 6, 3);
    Options options;
    options.mesh = world.mesh();
    options.check_nan = true;
    shard(net, options);
    const Data data = make_data(4, 5, 3);
    auto step = [&] { torch::mse_loss(net->forward(data.x), data.y).backward(); };
    step();
    std::vector<std::pair<std::string, torch::Tensor>> handles = {
        {"stem.weight", net->stem->weight},
        {"stem.bias", net->stem->bias},
        {"head.weight", net->head->weight},
        {"head.bias", net->head->bias}};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string block = fmt::format("blocks{}.", i);
      handles.emplace_back(block + "a.weight", net->blocks[i]->a->weight);
      handles.emplace_back(block + "a.bias", net->blocks[i]->a->bias);
      handles.emplace_back(block + "b.weight", net->blocks[i]->b->weight);
      handles.emplace_back(block + "b.bias", net->blocks[i]->b->bias);
    }
    int planted = 0;
    for (auto& [fqn, handle] : handles) {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      const bool infinite = planted % 2 == 1;
      const int at = planted++ % 3, rank = planted % 2;
      const unsigned hook = handle.register_hook([&](const torch::Tensor& grad) {
        torch::Tensor changed = grad.clone();
        if (world.rank() == rank)
          changed.view({-1})[at] = infinite ? std::numeric_limits<float>::infinity()
                                            : std::numeric_limits<float>::quiet_NaN();
        return changed;
      });
      const std::string message = message_of([&] {
        step();
        step();
      });
      handle.remove_hook(hook);
      const std::string want = fmt::format("the gradient of \"{}\" on rank {}", fqn, rank);
      if (world.rank() == rank) {
        RANK_CHECK(has(message, want), message);
        RANK_CHECK(has(message, fmt::format("element {} ({})", at, infinite ? "inf" : "nan")),
                   message);
      }
      RANK_CHECK(!message.empty(), fqn);
      World(world).reset();
      reset(net);
      step();
    }
    RANK_CHECK(planted == 12);
  });
}

}  // namespace runtime_exceptions_test

// Ranks that wrap the model differently, or run its units in another order, are told so, by name,
// in time.
#include <fmt/format.h>

#include <chrono>
#include <mutex>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_order_check_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// How one rank builds and wraps the net.
struct Setup {
  int depth = 3;
  std::int64_t hidden = 33, out = 5;
  std::vector<Options> block = std::vector<Options>(4);
  std::vector<bool> wrapped = std::vector<bool>(4, true);
  Options root;
  std::function<void(Net&)> built = [](Net&) {};
  std::function<void(Net&)> sharded = [](Net&) {};

  void all(const std::function<void(Options&)>& edit) {
    for (Options& options : block) edit(options);
    edit(root);
  }
};

Net build(const Setup& setup) {
  Net net = make_net(setup.depth, 19, setup.hidden, setup.out);
  setup.built(net);
  for (int i = 0; i < setup.depth; ++i)
    if (setup.wrapped[static_cast<std::size_t>(i)])
      fully_shard(net->blocks[static_cast<std::size_t>(i)],
                  setup.block[static_cast<std::size_t>(i)]);
  fully_shard(net, setup.root);
  setup.sharded(net);
  return net;
}

struct Mutation {
  const char* name;
  const char* says;  // in every rank's message
  std::function<void(Setup&, World&)> edit;
  int world = 2;
};

void hybrid(Setup& setup, World& world, std::vector<std::int64_t> sizes,
            ShardingStrategy strategy) {
  const DeviceMesh mesh(world, sizes, {"replicate", "shard"});
  setup.all([&](Options& o) {
    o.mesh = mesh;
    o.strategy = strategy;
  });
}

const std::vector<Mutation>& mutations() {
  using Strategy = ShardingStrategy;
  static const char* const kOne = "unit \"blocks1\"";
  static const std::vector<Mutation> all = {
      {"one unit's strategy", kOne,
       [](Setup& s, World&) { s.block[1].strategy = Strategy::kShardGradOp; }},
      {"all units' strategy", "unit \"blocks0\"",
       [](Setup& s, World&) { s.all([](Options& o) { o.strategy = Strategy::kNoShard; }); }},
      {"one unit replicated", kOne,
       [](Setup& s, World&) { s.block[1].strategy = Strategy::kNoShard; }},
      {"the root's strategy", "the root unit",
       [](Setup& s, World&) { s.root.strategy = Strategy::kShardGradOp; }},
      {"hybrid instead of full", "HYBRID_SHARD",
       [](Setup& s, World& w) {
         hybrid(s, w, {2, 2}, Strategy::kHybridShard);
       },
       4},
      {"layout", kOne, [](Setup& s, World&) { s.block[1].layout = MemoryLayout::kPerParameter; }},
      {"param_dtype", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.param_dtype = torch::kBFloat16; }},
      {"reduce_dtype", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.reduce_dtype = torch::kBFloat16; }},
      {"buffer_dtype", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.buffer_dtype = torch::kHalf; }},
      {"output_dtype", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.output_dtype = torch::kFloat; }},
      {"kept low-precision gradients", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.keep_low_precision_grads = true; }},
      {"kept full precision", kOne,
       [](Setup& s, World&) { s.block[1].mixed_precision.keep_full_precision = true; }},
      {"shapes of all units", "blocks0.a.weight", [](Setup& s, World&) { s.hidden = 34; }},
      {"equal elements in another shape", "blocks1.a.bias",
       [](Setup& s, World&) {
         s.built = [](Net& net) {
           auto& bias = net->blocks[1]->a->bias;
           bias.set_data(bias.detach().view({3, 11}));
         };
       }},
      {"the head's size", "head.weight", [](Setup& s, World&) { s.out = 6; }},
      {"dtype", "blocks1.b.weight",
       [](Setup& s, World&) { s.built = [](Net& net) { net->blocks[1]->b->to(torch::kDouble); }; }},
      {"a frozen parameter", "blocks1.b.bias",
       [](Setup& s, World&) {
         s.built = [](Net& net) { net->blocks[1]->b->bias.set_requires_grad(false); };
       }},
      {"a unit less", kOne, [](Setup& s, World&) { s.wrapped[1] = false; }},
      {"no inner units", "unit \"blocks0\"", [](Setup& s, World&) { s.wrapped.assign(4, false); }},
      {"a block more", "unit \"blocks3\"", [](Setup& s, World&) { s.depth = 4; }},
      {"a block less", "unit \"blocks2\"", [](Setup& s, World&) { s.depth = 2; }},
      {"a name", "unit \"another\"", [](Setup& s, World&) { s.block[1].name = "another"; }},
      {"two names in another order", "unit \"blocks2\"",
       [](Setup& s, World&) {
         s.block[1].name = "blocks2";
         s.block[2].name = "blocks1";
       }},
      {"when memory is freed", kOne,
       [](Setup& s, World&) { s.block[1].reshard_after_forward = false; }},
      {"the same by a call", "unit \"blocks0\"",
       [](Setup& s, World&) {
         s.sharded = [](Net& net) { set_reshard_after_forward(net, false); };
       }},
      {"backward prefetch", "unit \"blocks0\"",
       [](Setup& s, World&) {
         s.all([](Options& o) { o.backward_prefetch = BackwardPrefetch::kNone; });
       }},
      {"forward prefetch", "unit \"blocks2\"",
       [](Setup& s, World&) { s.block[2].forward_prefetch = true; }},
      {"how far it gathers ahead", kOne,
       [](Setup& s, World&) { s.block[1].max_prefetch_count = 2; }},
      {"unused parameters", kOne,
       [](Setup& s, World&) { s.block[1].find_unused_parameters = true; }},
      {"the divisor", kOne, [](Setup& s, World&) { s.block[1].gradient_divide_factor = 3; }},
      {"a communication hook", "fp16_compress_hook",
       [](Setup& s, World&) {
         s.sharded = [](Net& net) { register_comm_hook(net, fp16_compress_hook()); };
       }},
      {"another world", "HYBRID_SHARD_ZERO2",
       [](Setup& s, World& w) {
         hybrid(s, w, {2, 2}, Strategy::kHybridShardZero2);
       },
       4},
  };
  return all;
}

/// Rank 1 is the odd one; every rank is told so at its first forward.
void check_mutation(const Mutation& mutation, const WorldOptions& backend) {
  // Over sockets, making a group that the others do not make fails by itself, at the timeout.
  const bool joins_alone = backend.backend == "gloo" && mutation.world == 4;
  run_threads(
      mutation.world,
      [&](World& world) {
        const auto start = std::chrono::steady_clock::now();
        const std::string message = message_of([&] {
          Setup setup;
          const DeviceMesh mesh = world.mesh();
          setup.all([&](Options& o) { o.mesh = mesh; });
          if (world.rank() == 1) mutation.edit(setup, world);
          Net net = build(setup);
          net->forward(make_data().x);
        });
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const std::string where = fmt::format("{}: {} ({} s)", mutation.name, message, seconds);
        RANK_CHECK(!message.empty(), where);
        if (joins_alone) {
          RANK_CHECK(seconds < 10, where);
          return;
        }
        RANK_CHECK(has(message, mutation.says), where);
        RANK_CHECK(has(message, "ranks 0 and 1"), where);
        RANK_CHECK(seconds < 10, where);
      },
      backend);
}

/// Two blocks of one size whose order of use the caller chooses.
struct PairImpl : torch::nn::Module {
  Block first{nullptr}, second{nullptr};
  bool swapped = false;
  PairImpl() {
    first = register_module("first", Block(8, 16));
    second = register_module("second", Block(8, 16));
  }
  torch::Tensor forward(torch::Tensor x) {
    Block &one = swapped ? second : first, &other = swapped ? first : second;
    torch::Tensor sum = one->forward(x);
    return sum + other->forward(x);
  }
};
FSDP_MODULE(Pair);

Pair make_pair_net() {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(11);
  return Pair();
}

void shard_pair(Pair& net, const Options& options) {
  fully_shard(net->first, options);
  fully_shard(net->second, options);
  fully_shard(net, options);
}

torch::Tensor pair_input() {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(12);
  return torch::randn({4, 8});
}

/// Moves data like any other and compares nothing: what a library on GPUs does.
class Blind final : public Communicator {
 public:
  Blind(Identity identity, std::shared_ptr<Communicator> inner)
      : Communicator(std::move(identity)), inner_(std::move(inner)) {}
  static std::shared_ptr<Communicator> around(const std::shared_ptr<Communicator>& inner) {
    return std::make_shared<Blind>(
        Identity{inner->name(), inner->rank(), inner->global_ranks(), {}}, inner);
  }
  std::string_view backend() const override { return "blind"; }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  std::shared_ptr<Communicator> rebuild(std::uint64_t generation) const override {
    return around(inner_->rebuild(generation));
  }

 private:
  void do_all_gather_into(at::Tensor& out, at::Tensor& in) override {
    inner_->all_gather_into(out, in, {});
  }
  void do_reduce_scatter_into(at::Tensor& out, at::Tensor& in, Reduce op) override {
    inner_->reduce_scatter_into(out, in, op, {});
  }
  void do_all_reduce(at::Tensor& tensor, Reduce op) override { inner_->all_reduce(tensor, op, {}); }
  void do_broadcast(at::Tensor& tensor, int root) override { inner_->broadcast(tensor, root, {}); }
  std::vector<std::vector<std::byte>> do_all_gather_bytes(
      std::span<const std::byte> bytes) override {
    return inner_->all_gather_bytes(bytes, {});
  }
  void do_barrier() override { inner_->barrier({}); }
  std::shared_ptr<Communicator> inner_;
};

/// Collects what is warned of in this thread.
class Warnings final : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace

TEST_CASE("a rank that wraps the model differently is named at the first forward",
          "[runtime][check]") {
  const bool over_sockets = GENERATE(false, true);
  int tried = 0;
  for (const Mutation& mutation : mutations()) {
    INFO(mutation.name);
    WorldOptions backend;
    backend.timeout = std::chrono::seconds(5);
    if (over_sockets) backend.backend = "gloo";
    CHECK_NOTHROW(check_mutation(mutation, backend));
    ++tried;
  }
  INFO(fmt::format("{} mutations", tried));
  CHECK(tried >= 30);
}

TEST_CASE("units of one size in swapped order are caught before anything is used",
          "[runtime][check]") {
  const int iteration = GENERATE(1, 4);
  const auto backend = GENERATE("threads", "gloo", "blind");
  const auto check = GENERATE(Check::kFull, Check::kCheap);
  CAPTURE(iteration, backend, static_cast<int>(check));
  const bool blind = std::string(backend) == "blind";
  WorldOptions world_options;
  world_options.backend = blind ? "threads" : backend;
  world_options.timeout = std::chrono::seconds(2);
  run_threads(
      2,
      [&](World& world) {
        Pair net = make_pair_net();
        Options options;
        if (blind)
          options.process_group = Blind::around(world.communicator());
        else
          options.mesh = world.mesh();
        options.check = check;
        shard_pair(net, options);
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        std::vector<torch::Tensor> before;
        int step = 1;
        bool forward_returned = false;
        const std::string message = message_of([&] {
          for (; step <= iteration; ++step) {
            net->swapped = world.rank() == 1 && step == iteration;
            before.clear();
            for (const auto& param : net->parameters()) before.push_back(param.clone());
            forward_returned = false;
            auto loss = net->forward(pair_input()).square().mean();
            forward_returned = true;
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
          }
        });
        RANK_CHECK(step == iteration, message);
        RANK_CHECK(has(message, "\"first\"") && has(message, "\"second\""), message);
        // Only the cheap check of a library that compares nothing lets the forward end.
        const bool late = blind && check == Check::kCheap && iteration > 1;
        RANK_CHECK(forward_returned == late, message);
        const auto after = net->parameters();
        for (std::size_t p = 0; p < before.size(); ++p)
          RANK_CHECK(torch::equal(before[p], after[p]));
      },
      world_options);
}

TEST_CASE("evaluations are exempt - and a changed order is warned of once", "[runtime][check]") {
  run_threads(2, [](World& world) {
    Pair net = make_pair_net();
    Options options;
    options.mesh = world.mesh();
    shard_pair(net, options);
    Warnings warnings;
    auto train = [&] { net->forward(pair_input()).square().mean().backward(); };
    auto evaluate = [&] {
      torch::NoGradGuard no_grad;
      net->forward(pair_input());
    };
    evaluate();
    train();
    net->swapped = true;
    evaluate();
    net->swapped = false;
    train();
    RANK_CHECK(warnings.text.empty(), warnings.text);
    net->swapped = true;  // on every rank
    train();
    RANK_CHECK(has(warnings.text, "unit \"second\" runs as number 2"), warnings.text);
    warnings.text.clear();
    train();
    net->swapped = false;
    train();
    RANK_CHECK(warnings.text.empty(), warnings.text);
  });
}

TEST_CASE("a replicated model may be evaluated on one rank alone", "[runtime][check]") {
  WorldOptions options;
  options.timeout = std::chrono::seconds(5);
  run_threads(
      2,
      [](World& world) {
        Net net = make_net();
        Options o;
        o.mesh = world.mesh();
        o.strategy = ShardingStrategy::kNoShard;
        shard(net, o);
        const Data data = make_data();
        for (int step = 0; step < 2; ++step) {
          if (world.rank() == 0) {
            torch::NoGradGuard no_grad;
            net->forward(data.x);
          }
          torch::mse_loss(net->forward(data.x), data.y).backward();
        }
      },
      options);
}

TEST_CASE("checks are counted apart - and few after the first step", "[runtime][check]") {
  const auto check = GENERATE(Check::kOff, Check::kCheap, Check::kFull);
  CAPTURE(static_cast<int>(check));
  run_threads(2, [&](World& world) {
    Net net = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.check = check;
    shard(net, options);
    const Data data = make_data();
    for (int step = 0; step < 3; ++step) {
      world.communicator()->reset_counts();
      torch::mse_loss(net->forward(data.x), data.y).backward();
      const CommCounts counts = world.communicator()->counts();
      RANK_CHECK(counts.all_gathers == 5 && counts.reduce_scatters == 3 && counts.all_reduces == 0);
      // 5 gathers, 3 reductions, the end; at first the wrapping too.
      const int full = 9 + (step == 0);
      const int want = check == Check::kOff ? 0 : check == Check::kFull || step == 0 ? full : 1;
      RANK_CHECK(counts.check_calls == want,
                 fmt::format("{} at step {}", counts.check_calls, step));
    }
    world.communicator()->reset_counts();
    torch::NoGradGuard no_grad;
    net->forward(data.x);
    RANK_CHECK(world.communicator()->counts().check_calls == 0);
  });
}

}  // namespace runtime_order_check_test

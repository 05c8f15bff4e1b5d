// Parity over all options at once: whatever the strategy, layout, precision, offload, prefetching,
// way of accumulating and number of ranks, training gives what one process gives. Each test here
// covers every pair of option values; the soak run covers every combination.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>

#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_matrix_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kSteps = 6;
constexpr int kBatch = 24;  // rows of a microbatch, over all ranks

enum Axis { kStrategy, kLayout, kPrecision, kOffload, kBackward, kForward, kAccumulate, kWorld };
constexpr std::array<int, 8> kValues = {5, 2, 4, 2, 3, 2, 4, 5};
constexpr std::array<int, 5> kWorlds = {1, 2, 3, 4, 8};
using Choice = std::array<int, 8>;

std::string text_of(const Choice& choice) {
  static const char* precisions[] = {"fp32", "bf16", "bf16 + fp32 reduce", "fp32 + bf16 reduce"};
  static const char* accumulations[] = {"one backward", "no_sync", "synced", "interleaved"};
  return fmt::format(
      "{}; {}; {}; offload {}; backward prefetch {}; forward prefetch {}; {}; {} ranks",
      strategy_name(static_cast<ShardingStrategy>(choice[kStrategy])),
      choice[kLayout] ? "per parameter" : "flat", precisions[choice[kPrecision]], choice[kOffload],
      choice[kBackward], choice[kForward], accumulations[choice[kAccumulate]],
      kWorlds[static_cast<std::size_t>(choice[kWorld])]);
}

/// Which microbatches of a step are reduced; the others accumulate on their rank.
const std::vector<bool>& microbatches(const Choice& choice) {
  static const std::vector<bool> forms[] = {
      {true}, {false, true}, {true, true}, {false, true, false, true}};
  return forms[choice[kAccumulate]];
}

struct Dtypes {
  torch::Dtype compute, reduce;
};
Dtypes dtypes_of(const Choice& choice) {
  const bool low = choice[kPrecision] == 1 || choice[kPrecision] == 2;
  const bool low_reduce = choice[kPrecision] == 1 || choice[kPrecision] == 3;
  return {low ? torch::kBFloat16 : torch::kFloat, low_reduce ? torch::kBFloat16 : torch::kFloat};
}

Data microbatch(const Data& data, std::size_t which) {
  const auto begin = static_cast<std::int64_t>(which) * kBatch;
  return {data.x.narrow(0, begin, kBatch), data.y.narrow(0, begin, kBatch)};
}

torch::Tensor loss_of(Net& net, const Data& data) {
  return torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
}

/// One process: masters in fp32, a module in the compute dtype, gradients passed through the reduce
/// dtype.
std::vector<double> train_alone(const Choice& choice, const Data& data) {
  const Dtypes dtypes = dtypes_of(choice);
  Net masters = make_net(), net = make_net();
  net->to(dtypes.compute);
  torch::optim::Adam optimizer(masters->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const std::vector<bool>& parts = microbatches(choice);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      auto full = masters->parameters(), low = net->parameters();
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t p = 0; p < full.size(); ++p) low[p].copy_(full[p]);
      }
      net->zero_grad();
      Data batch = microbatch(data, part);
      batch.x = batch.x.to(dtypes.compute);
      const torch::Tensor loss = loss_of(net, batch);
      loss.backward();
      for (std::size_t p = 0; p < full.size(); ++p) {
        const torch::Tensor grad = low[p].grad().to(dtypes.reduce).to(torch::kFloat);
        full[p].mutable_grad() = full[p].grad().defined() ? full[p].grad() + grad : grad;
      }
      if (part + 1 == parts.size()) losses.push_back(loss.item<double>());
    }
    optimizer.step();
  }
  return losses;
}

std::vector<double> train_rank(World& world, const Choice& choice, const Data& data) {
  Options options;
  options.strategy = static_cast<ShardingStrategy>(choice[kStrategy]);
  const bool hybrid = strategy_of(options.strategy).hybrid();
  const int replicas = world.size() % 2 == 0 ? 2 : 1;
  options.mesh =
      hybrid ? DeviceMesh(world, {replicas, world.size() / replicas}, {"replicate", "shard"})
             : world.mesh();
  options.layout = choice[kLayout] ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;
  const Dtypes dtypes = dtypes_of(choice);
  if (dtypes.compute != torch::kFloat) options.mixed_precision.param_dtype = dtypes.compute;
  options.mixed_precision.reduce_dtype = dtypes.reduce;
  options.cpu_offload.offload_params = choice[kOffload] != 0;
  options.backward_prefetch = static_cast<BackwardPrefetch>(choice[kBackward]);
  options.forward_prefetch = choice[kForward] != 0;

  Net net = make_net();
  shard(net, options);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const auto comm = world.communicator();
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const std::vector<bool>& parts = microbatches(choice);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Data mine = part_of(microbatch(data, part), world.rank(), world.size());
      std::optional<NoSync> no_sync;
      if (!parts[part]) no_sync.emplace(net);
      const torch::Tensor loss = loss_of(net, mine);
      loss.backward();
      if (part + 1 == parts.size()) losses.push_back(mean_loss(loss, comm.get()));
    }
    optimizer.step();
  }
  return losses;
}

const Data& all_data() {
  static const Data data = make_data(4 * kBatch);
  return data;
}

/// Made once for each precision and way of accumulating.
const std::vector<double>& oracle_of(const Choice& choice) {
  static std::map<std::pair<int, int>, std::vector<double>> oracles;
  std::vector<double>& oracle = oracles[{choice[kPrecision], choice[kAccumulate]}];
  if (oracle.empty()) oracle = train_alone(choice, all_data());
  return oracle;
}

void compare(const Choice& choice, const std::vector<std::vector<double>>& ranks) {
  INFO(text_of(choice));
  const std::vector<double>& oracle = oracle_of(choice);
  // bf16 keeps 8 bits: ranks round other partial sums than one process does, and Adam amplifies it.
  const double tolerance = choice[kPrecision] == 0 ? 1e-6 : 3e-2;
  for (const std::vector<double>& losses : ranks) {
    REQUIRE(losses.size() == oracle.size());
    for (std::size_t step = 0; step < losses.size(); ++step)
      CHECK(losses[step] == Approx(oracle[step]).epsilon(tolerance));
    CHECK(losses == ranks.front());
  }
}

/// Trains the combinations on threads, those of one number of ranks one after the other in one
/// world, and compares with the oracle.
void check(const std::vector<Choice>& choices) {
  for (std::size_t w = 0; w < kWorlds.size(); ++w) {
    std::vector<Choice> mine;
    std::ranges::copy_if(choices, std::back_inserter(mine),
                         [&](const Choice& c) { return c[kWorld] == static_cast<int>(w); });
    if (mine.empty()) continue;
    const auto ranks = static_cast<std::size_t>(kWorlds[w]);
    std::vector<std::vector<std::vector<double>>> losses(mine.size(),
                                                         std::vector<std::vector<double>>(ranks));
    run_threads(kWorlds[w], [&](World& world) {
      for (std::size_t i = 0; i < mine.size(); ++i) {
        try {
          losses[i][static_cast<std::size_t>(world.rank())] =
              train_rank(world, mine[i], all_data());
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}: {}", text_of(mine[i]), error.what()));
        }
      }
    });
    for (std::size_t i = 0; i < mine.size(); ++i) compare(mine[i], losses[i]);
  }
}

/// Combinations that hold every pair of values of every two axes, found greedily: always the one
/// that holds most pairs not yet held among some drawn at random.
std::vector<Choice> covering_choices() {
  std::set<std::array<int, 4>> missing;
  const int axes = static_cast<int>(kValues.size());
  for (int a = 0; a < axes; ++a)
    for (int b = a + 1; b < axes; ++b)
      for (int i = 0; i < kValues[static_cast<std::size_t>(a)]; ++i)
        for (int j = 0; j < kValues[static_cast<std::size_t>(b)]; ++j) missing.insert({a, b, i, j});
  const auto pairs_of = [axes](const Choice& choice) {
    std::vector<std::array<int, 4>> pairs;
    for (int a = 0; a < axes; ++a)
      for (int b = a + 1; b < axes; ++b)
        pairs.push_back(
            {a, b, choice[static_cast<std::size_t>(a)], choice[static_cast<std::size_t>(b)]});
    return pairs;
  };
  std::uint64_t seed = 20;
  const auto draw = [&seed](int below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((seed >> 33) % static_cast<std::uint64_t>(below));
  };
  std::vector<Choice> out;
  while (!missing.empty()) {
    Choice best{};
    std::size_t most = 0;
    for (int attempt = 0; attempt < 60; ++attempt) {
      Choice choice;
      for (std::size_t axis = 0; axis < choice.size(); ++axis) choice[axis] = draw(kValues[axis]);
      const std::array<int, 4>& wanted = *missing.begin();
      choice[static_cast<std::size_t>(wanted[0])] = wanted[2];
      choice[static_cast<std::size_t>(wanted[1])] = wanted[3];
      std::size_t held = 0;
      for (const auto& pair : pairs_of(choice)) held += missing.count(pair);
      if (held > most) most = held, best = choice;
    }
    for (const auto& pair : pairs_of(best)) missing.erase(pair);
    out.push_back(best);
  }
  return out;
}

}  // namespace

TEST_CASE("training equals one process over every pair of options", "[runtime][matrix]") {
  const std::vector<Choice> choices = covering_choices();
  CHECK(choices.size() >= 25);  // two axes of five values
  check(choices);
}

/// TESSERA_SOAK_PART=I/N: every N-th combination, from number I on.
TEST_CASE("training equals one process over every combination of options", "[.soak]") {
  int first = 0, stride = 1;
  if (const char* part = std::getenv("TESSERA_SOAK_PART"))
    REQUIRE((std::sscanf(part, "%d/%d", &first, &stride) == 2 && stride > 0));
  std::vector<Choice> choices;
  Choice choice{};
  int number = 0;
  for (;;) {
    if (number++ % stride == first) choices.push_back(choice);
    std::size_t axis = 0;
    while (axis < choice.size() && ++choice[axis] == kValues[axis]) choice[axis++] = 0;
    if (axis == choice.size()) break;
  }
  CHECK(number == 5 * 2 * 4 * 2 * 3 * 2 * 4 * 5);
  check(choices);
  WARN(fmt::format("{} of {} combinations", choices.size(), number));
}

TEST_CASE("gradients of whole numbers are bit-equal at powers of two", "[runtime][matrix]") {
  const auto strategy = static_cast<ShardingStrategy>(GENERATE(0, 1, 2, 3, 4));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int world = GENERATE(1, 2, 4, 8);
  const auto whole = [](const torch::Tensor& like, std::int64_t step) {
    return ((torch::arange(like.numel()) * step) % 7 - 3).to(torch::kFloat).view(like.sizes());
  };
  const auto make = [&] {
    torch::nn::Sequential net(Holder<torch::nn::LinearImpl>(6, 8),
                              Holder<torch::nn::LinearImpl>(8, 3));
    const torch::NoGradGuard no_grad;
    std::int64_t step = 3;
    for (torch::Tensor& parameter : net->parameters()) parameter.copy_(whole(parameter, step += 2));
    return net;
  };
  const torch::Tensor x = whole(torch::empty({16, 6}), 5);
  torch::nn::Sequential plain = make();
  plain->forward(x).sum().backward();

  run_threads(world, [&](World& w) {
    torch::nn::Sequential net;
    {
      const std::lock_guard lock(generator_mutex());
      net = make();
    }
    Options options;
    options.strategy = strategy;
    options.layout = layout;
    const bool hybrid = strategy_of(strategy).hybrid();
    options.mesh = hybrid && world > 1 ? DeviceMesh(w, {2, world / 2}, {"replicate", "shard"})
                   : hybrid            ? DeviceMesh(w, {1, 1}, {"replicate", "shard"})
                                       : w.mesh();
    const std::int64_t rows = 16 / world;
    const torch::Tensor mine = x.narrow(0, w.rank() * rows, rows);
    for (const auto& child : net->children()) fully_shard(child, options);
    (net->forward(mine).sum() * world).backward();  // the ranks' average is the sum
    std::size_t at = 0;
    const auto expected = plain->parameters();
    for (const auto& child : net->children()) {
      SummonOptions with_grads;
      with_grads.with_grads = true;
      const SummonFullParams full(child, with_grads);
      for (const torch::Tensor& parameter : child->parameters()) {
        RANK_CHECK(torch::equal(parameter.grad(), expected[at].grad()),
                   "parameter " + std::to_string(at));
        ++at;
      }
    }
    RANK_CHECK(at == 4);
  });
}

}  // namespace runtime_matrix_test

// Parameters of one unit over a mesh of their own, as FSDP2's shard_placement_fn gives experts one: bit for
// bit what units of their own over that mesh are, and what plain modules compute.
#include <fmt/format.h>

#include <functional>
#include <map>

#include "tests/fsdp/models.h"
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_own_mesh_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kWidth = 8, kHidden = 12, kOut = 5;

/// Over which ranks the unit is, and over which its experts (the blocks) are.
enum class Over { kPairs, kTwins, kAllOfHybrid };

struct Case {
  Over over = Over::kPairs;
  MemoryLayout layout = MemoryLayout::kFlat;
  bool kept = false;  // SHARD_GRAD_OP, or its hybrid
  std::optional<torch::ScalarType> low, reduce;
  std::string text() const {
    static const char* overs[] = {"over pairs", "in two replicas", "over all, of a hybrid unit"};
    return fmt::format("{}{}{}{}{}", overs[static_cast<int>(over)],
                       layout == MemoryLayout::kFlat ? "" : ", per parameter", kept ? ", kept" : "",
                       low ? fmt::format(", {}", c10::toString(*low)) : "",
                       reduce ? fmt::format(", reduced in {}", c10::toString(*reduce)) : "");
  }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Over over : {Over::kPairs, Over::kTwins, Over::kAllOfHybrid})
    for (int flags = 0; flags < 4; ++flags)
      out.push_back({over, static_cast<MemoryLayout>(flags & 1), (flags & 2) != 0, {}, {}});
  out.push_back({.over = Over::kTwins, .low = torch::kBFloat16, .reduce = torch::kFloat});
  // Divided before and after the sum.
  for (const Over over : {Over::kPairs, Over::kTwins, Over::kAllOfHybrid})
    out.push_back({.over = over, .low = torch::kHalf, .reduce = torch::kHalf});
  return out;
}

DeviceMesh halves(World& world) { return DeviceMesh(world, {2, 2}, {"replicate", "shard"}); }

DeviceMesh experts_mesh(World& world, Over over) {
  return over == Over::kPairs   ? halves(world).sub(1)
         : over == Over::kTwins ? halves(world)
                                : world.mesh();
}

Options options_of(World& world, const Case& of) {
  Options options;
  const bool hybrid = of.over == Over::kAllOfHybrid;
  options.mesh = hybrid ? halves(world) : world.mesh();
  options.strategy =
      hybrid    ? of.kept ? ShardingStrategy::kHybridShardZero2 : ShardingStrategy::kHybridShard
      : of.kept ? ShardingStrategy::kShardGradOp
                : ShardingStrategy::kFullShard;
  options.layout = of.layout;
  options.mixed_precision.param_dtype = of.low;
  options.mixed_precision.reduce_dtype = of.reduce;
  return options;
}

Net make() { return make_net(2, kWidth, kHidden, kOut); }

using Change = std::function<void(Options&)>;

/// All of it one unit.
Net one_unit(World& world, const Case& of, const Change& change = {}) {
  Net net = make();
  Options options = options_of(world, of);
  const DeviceMesh mesh = experts_mesh(world, of.over);
  options.shard_placement_fn = [mesh](const std::string& fqn, const Tensor&) {
    return fqn.starts_with("blocks") ? ShardPlacement(0, mesh) : ShardPlacement();
  };
  if (change) change(options);
  fully_shard(net, options);
  return net;
}

/// The same, with the experts as units of their own.
Net own_units(World& world, const Case& of, const Change& change = {}) {
  Net net = make();
  Options options = options_of(world, of), inner = options;
  inner.mesh = experts_mesh(world, of.over);
  const bool hybrid = inner.mesh->ndim() == 2;
  inner.strategy =
      of.kept  ? hybrid ? ShardingStrategy::kHybridShardZero2 : ShardingStrategy::kShardGradOp
      : hybrid ? ShardingStrategy::kHybridShard
               : ShardingStrategy::kFullShard;
  if (change) change(options), change(inner);
  for (Block& block : net->blocks) fully_shard(block, inner);
  fully_shard(net, options);
  return net;
}

Data data_of(World& world) {
  return part_of(make_data(24, kWidth, kOut), world.rank(), world.size());
}

void backward(Net& net, World& world) {
  const Data data = data_of(world);
  torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y).backward();
}

using Named = std::map<std::string, Tensor>;

/// Full values, and gradients as "<name> gradient".
Named full_of(Net& net) {
  Named out;
  SummonOptions options;
  options.with_grads = true;
  const SummonFullParams full(net, options);
  for (const auto& param : net->named_parameters()) {
    out[param.key()] = param.value().detach().clone();
    if (const Tensor& gradient = param.value().grad(); gradient.defined())
      out[param.key() + " gradient"] = gradient.clone();
  }
  return out;
}

void check_same(const Named& found, const Named& expected, const std::string& when) {
  RANK_CHECK(found.size() == expected.size(),
             fmt::format("{} {} {}", when, found.size(), expected.size()));
  for (const auto& [name, tensor] : expected)
    RANK_CHECK(found.contains(name) && torch::equal(found.at(name), tensor),
               fmt::format("{}: {}", when, name));
}

/// A hybrid unit's group holds a half of its ranks: of experts over all of them there is no norm.
Tensor clip_norm(Net& net, const Case& of) {
  if (of.over != Over::kAllOfHybrid) return clip_grad_norm_(net, 0.5);
  RANK_CHECK(message_of([&] { clip_grad_norm_(net, 0.5); }).find("not all in the outermost") !=
             std::string::npos);
  return torch::zeros({});
}

/// Both ways, side by side. `run` is told which step.
void check_alike(const Case& of, const std::function<void(Net&, World&, int)>& run,
                 const Change& change = {}) {
  INFO(of.text());
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, of, change), other = own_units(world, of, change);
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2)),
        other_adam(other->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      other_adam.zero_grad();
      run(net, world, step);
      run(other, world, step);
      const std::string when = fmt::format("{}, step {}", of.text(), step);
      check_same(full_of(net), full_of(other), when);
      const Tensor norm = clip_norm(net, of), other_norm = clip_norm(other, of);
      RANK_CHECK(torch::equal(norm, other_norm),
                 fmt::format("{}: norm {} {}", when, norm.item<float>(), other_norm.item<float>()));
      adam.step();
      other_adam.step();
      check_same(full_of(net), full_of(other), when + ", stepped");
    }
  });
}

/// Plain models, one a rank, of which each parameter's gradients are averaged over `peers`.
std::vector<Net> train_plain(const std::function<std::vector<int>(bool expert, int rank)>& peers,
                             int steps, double rate) {
  std::vector<Net> nets;
  for (int rank = 0; rank < kRanks; ++rank) nets.push_back(make());
  const Data data = make_data(24, kWidth, kOut);
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Data mine = part_of(data, rank, kRanks);
      nets[rank]->zero_grad();
      torch::mse_loss(nets[rank]->forward(mine.x), mine.y).backward();
    }
    const torch::NoGradGuard no_grad;
    std::vector<Named> means(kRanks);
    for (int rank = 0; rank < kRanks; ++rank)
      for (const auto& param : nets[rank]->named_parameters()) {
        const std::vector<int> group = peers(param.key().starts_with("blocks"), rank);
        Tensor sum = torch::zeros_like(param.value());
        for (const int peer : group) sum += nets[peer]->named_parameters()[param.key()].grad();
        means[rank][param.key()] = sum / static_cast<double>(group.size());
      }
    for (int rank = 0; rank < kRanks; ++rank)
      for (auto& param : nets[rank]->named_parameters())
        param.value().sub_(means[rank][param.key()], rate);
  }
  return nets;
}

std::string refusal(const std::function<void(Options&, World&)>& change, int dims = 1) {
  std::string message;
  run_threads(kRanks, [&](World& world) {
    Net net = make();
    Options options;
    options.mesh = world.mesh();
    const DeviceMesh mesh = dims == 3 ? DeviceMesh(world, {1, 2, 2}, {"a", "b", "c"})
                                      : experts_mesh(world, Over::kPairs);
    options.shard_placement_fn = [mesh](const std::string& fqn, const Tensor&) {
      return fqn == "blocks0.a.weight" ? ShardPlacement(0, mesh) : ShardPlacement();
    };
    change(options, world);
    const std::string mine = message_of([&] { fully_shard(net, options); });
    if (world.rank() == 0) message = mine;
  });
  return message;
}

}  // namespace

TEST_CASE("experts of a unit over a mesh of their own train as plain models that average so",
          "[runtime][own_mesh]") {
  const Over over = GENERATE(Over::kPairs, Over::kTwins, Over::kAllOfHybrid);
  constexpr int kSteps = 4;
  constexpr double kRate = 0.05;
  const std::vector<Net> plain = train_plain(
      [over](bool expert, int rank) {
        const int pair = rank / 2 * 2;
        return expert && over == Over::kPairs ? std::vector<int>{pair, pair + 1}
                                              : std::vector<int>{0, 1, 2, 3};
      },
      kSteps, kRate);
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.over = over});
    torch::optim::SGD optimizer(net->parameters(), kRate);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      backward(net, world);
      optimizer.step();
    }
    const SummonFullParams full(net);
    const auto want = plain[static_cast<std::size_t>(world.rank())]->named_parameters();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::allclose(param.value(), want[param.key()], 1e-5, 1e-6), param.key());
  });
}

TEST_CASE("experts of a unit are bit for bit what units of their own are", "[runtime][own_mesh]") {
  for (const Case& of : cases())
    check_alike(of, [](Net& net, World& world, int) { backward(net, world); });
}

TEST_CASE("a unit with experts is cut, gathered and reduced over both meshes",
          "[runtime][own_mesh]") {
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.layout = MemoryLayout::kPerParameter});
    RANK_CHECK(net->named_parameters()["blocks0.a.weight"].size(0) == kHidden / 2);
    RANK_CHECK(net->named_parameters()["stem.weight"].size(0) == kWidth / 4);
    backward(net, world);
    const CommCounts all = world.communicator()->counts(),
                     pair = experts_mesh(world, Over::kPairs).group(0)->counts();
    RANK_CHECK(all.all_gathers == 1 && pair.all_gathers == 1,
               fmt::format("{} {}", all.all_gathers, pair.all_gathers));
    RANK_CHECK(all.reduce_scatters == 1 && pair.reduce_scatters == 1,
               fmt::format("{} {}", all.reduce_scatters, pair.reduce_scatters));
  });
}

TEST_CASE("accumulation of experts' gradients is that of units of their own",
          "[runtime][own_mesh]") {
  const Over over = GENERATE(Over::kPairs, Over::kTwins, Over::kAllOfHybrid);
  const bool synchronised = GENERATE(false, true), over_replicas = GENERATE(false, true);
  check_alike({.over = over}, [&](Net& net, World& world, int) {
    set_requires_gradient_sync(net, synchronised);
    set_requires_all_reduce(net, over_replicas);
    backward(net, world);
    set_requires_gradient_sync(net, true);
    set_requires_all_reduce(net, true);
    backward(net, world);
  });
}

TEST_CASE("options go with experts as with units of their own", "[runtime][own_mesh]") {
  const Over over = GENERATE(Over::kPairs, Over::kTwins, Over::kAllOfHybrid);
  const std::vector<Change> changes = {
      [](Options& o) { o.gradient_divide_factor = 3; },
      [](Options& o) { o.force_sum_reduction_for_comms = true; },
      [](Options& o) { o.find_unused_parameters = true; },
      [](Options& o) { o.check = Check::kFull; },
      [](Options& o) { o.reshard_after_forward = 2; },
      [](Options& o) { o.reshard_after_forward = false; },
      [](Options& o) { o.unshard_stream_per_group = true; },
      [](Options& o) { o.communication_thread = true; },
      [](Options& o) { o.separate_reduce_scatter_group = true; },
      [](Options& o) { o.limit_all_gathers = false; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    check_alike(
        {.over = over}, [](Net& net, World& world, int) { backward(net, world); }, changes[i]);
  }
}

TEST_CASE("optimizers in backward step experts with the rest of their unit",
          "[runtime][own_mesh]") {
  const Over over = GENERATE(Over::kPairs, Over::kTwins, Over::kAllOfHybrid);
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.over = over}), after = one_unit(world, {.over = over});
    const auto made = optimizer_in_backward(net, [](std::vector<Tensor> params) {
      return std::make_unique<torch::optim::AdamW>(params, torch::optim::AdamWOptions(1e-2));
    });
    torch::optim::AdamW adam(after->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      backward(net, world);
      backward(after, world);
      adam.step();
    }
    Named stepped = full_of(net);
    Named expected = full_of(after);
    std::erase_if(expected, [](const auto& each) { return each.first.ends_with("gradient"); });
    check_same(stepped, expected, "");
  });
}

TEST_CASE("evaluations, edits and module state of experts reach every rank of their mesh",
          "[runtime][own_mesh]") {
  run_threads(kRanks, [&](World& world) {
    Net net = make();
    {  // What the first rank of each mesh has.
      const torch::NoGradGuard no_grad;
      for (auto& param : net->named_parameters())
        param.value().fill_(static_cast<double>(world.rank()));
    }
    Options options;
    options.mesh = world.mesh();
    options.sync_module_states = true;
    const DeviceMesh mesh = experts_mesh(world, Over::kPairs);
    options.shard_placement_fn = [mesh](const std::string& fqn, const Tensor&) {
      return fqn.starts_with("blocks") ? ShardPlacement(0, mesh) : ShardPlacement();
    };
    fully_shard(net, options);
    const auto value = [&](const std::string& fqn) {
      return fqn.starts_with("blocks") ? world.rank() / 2 * 2 : 0;
    };
    for (const auto& [name, tensor] : full_of(net))
      RANK_CHECK(torch::equal(tensor, torch::full_like(tensor, value(name))), name);
    {
      const SummonFullParams full(net);
      const torch::NoGradGuard no_grad;
      for (auto& param : net->named_parameters()) param.value().add_(1);
    }
    {
      const torch::NoGradGuard no_grad;
      net->forward(data_of(world).x);
    }
    for (const auto& [name, tensor] : full_of(net))
      RANK_CHECK(torch::equal(tensor, torch::full_like(tensor, value(name) + 1)), name);
    SummonOptions first;
    first.rank0_only = true;
    first.write_back = false;
    const SummonFullParams full(net, first);
    const auto named = net->named_parameters();
    RANK_CHECK(named["stem.weight"].dim() == (world.rank() == 0 ? 2 : 1));
    RANK_CHECK(named["blocks0.a.weight"].dim() == (world.rank() % 2 == 0 ? 2 : 1));
  });
}

TEST_CASE("what an init function leaves to another rank is the first of its own mesh's to write",
          "[runtime][own_mesh]") {
  const bool all_write = GENERATE(true, false);
  run_threads(kRanks, [&](World& world) {
    Net net = [] {
      const MetaInit on_meta;
      return make();
    }();
    Options options;
    options.mesh = world.mesh();
    options.sync_module_states = true;
    const DeviceMesh mesh = experts_mesh(world, Over::kPairs);
    options.shard_placement_fn = [mesh](const std::string& fqn, const Tensor&) {
      return fqn == "blocks0.a.weight" ? ShardPlacement(0, mesh) : ShardPlacement();
    };
    options.param_init_fn = [&](torch::nn::Module& module) {
      if (world.rank() != 0 && !all_write) return;
      const torch::NoGradGuard no_grad;
      for (auto& param : module.named_parameters(/*recurse=*/false))
        param.value().fill_(static_cast<double>(world.rank()));
    };
    const std::string message = message_of([&] { fully_shard(net, options); });
    if (!all_write) {
      RANK_CHECK(message.find("unwritten") != std::string::npos &&
                     message.find("blocks0.a.weight") != std::string::npos,
                 message);
      return;
    }
    RANK_CHECK(message.empty(), message);
    for (const auto& [name, tensor] : full_of(net)) {
      const int value = name == "blocks0.a.weight" ? world.rank() / 2 * 2 : 0;
      RANK_CHECK(torch::equal(tensor, torch::full_like(tensor, value)), name);
    }
  });
}

TEST_CASE("after a failure experts' groups are made again", "[runtime][own_mesh][failure]") {
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.over = Over::kTwins}),
        other = own_units(world, {.over = Over::kTwins});
    const std::string message = message_of([&] {
      if (world.rank() == 3) net->forward(torch::ones({2, 3}));
      backward(net, world);
      backward(net, world);
    });
    RANK_CHECK(!message.empty());
    World(world).reset();
    reset(net);
    reset(other);
    backward(net, world);
    backward(other, world);
    check_same(full_of(net), full_of(other), "");
  });
}

TEST_CASE("state of experts has the form of units of their own and goes to other ranks and back",
          "[runtime][own_mesh][state]") {
  const Over over = GENERATE(Over::kTwins, Over::kAllOfHybrid);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kFull);
  const ScratchFolder scratch;
  StateDictOptions how;
  how.type = type;
  Named trained;
  run_threads(kRanks, [&](World& world) {
    const Case of{.over = over, .layout = layout};
    Net net = one_unit(world, of), other = own_units(world, of);
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2)),
        other_adam(other->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 2; ++step) {
      adam.zero_grad();
      backward(net, world);
      adam.step();
    }
    const auto forms = value_forms(net, how), expected = value_forms(other, how);
    RANK_CHECK(forms.size() == expected.size());
    for (std::size_t i = 0; i < forms.size(); ++i)
      RANK_CHECK(forms[i].fqn == expected[i].fqn && forms[i].kind == expected[i].kind &&
                     forms[i].mesh.to_string() == expected[i].mesh.to_string() &&
                     forms[i].placements == expected[i].placements,
                 forms[i].fqn);
    tessera::save(scratch / "one", state_dict(net, adam, how), world.ranks());
    tessera::load(scratch / "one", state_dict(other, other_adam, how), world.ranks());
    Named now = full_of(net);
    std::erase_if(now, [](const auto& each) { return each.first.ends_with("gradient"); });
    check_same(full_of(other), now, "as units of their own");
    if (world.rank() == 0) trained = now;
    // The next step of both: moments too.
    other_adam.zero_grad();
    adam.zero_grad();
    backward(net, world);
    backward(other, world);
    adam.step();
    other_adam.step();
    check_same(full_of(net), full_of(other), "a step later");
  });
  // On two ranks and on one, and from there back.
  for (const int ranks : {2, 1})
    run_threads(ranks, [&](World& world) {
      Net net = make();
      Options options;
      options.mesh = world.mesh();
      fully_shard(net, options);
      torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));
      tessera::load(scratch / "one", state_dict(net, adam), world.ranks());
      check_same(full_of(net), trained, fmt::format("on {} ranks", ranks));
      if (ranks == 2) tessera::save(scratch / "two", state_dict(net, adam, how), world.ranks());
    });
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.over = over, .layout = layout});
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));
    tessera::load(scratch / "two", state_dict(net, adam, how), world.ranks());
    check_same(full_of(net), trained, "back");
  });
}

TEST_CASE("meshes of their own that cannot be are refused by name", "[runtime][own_mesh]") {
  using Catch::Contains;
  CHECK_THAT(refusal([](Options& o, World&) { o.strategy = ShardingStrategy::kNoShard; }),
             Contains("\"blocks0.a.weight\"") && Contains("NO_SHARD"));
  CHECK_THAT(refusal([](Options& o, World& world) {
               o.mesh = halves(world).sub(0);
               o.extension = tensor_parallel(halves(world).sub(1));
             }),
             Contains("\"blocks0.a.weight\"") && Contains("options.extension"));
  CHECK_THAT(refusal([](Options&, World&) {}, 3), Contains("has 3 dims"));
  CHECK(refusal([](Options&, World&) {}) == "");
  run_threads(kRanks, [&](World& world) {
    Net net = one_unit(world, {.over = Over::kTwins});
    backward(net, world);
    RANK_CHECK(message_of([&] {
                 state_dict(net, {.type = StateDictType::kLocal});
               }).find("LOCAL") != std::string::npos);
    Net fresh = one_unit(world, {.over = Over::kTwins});
    const torch::NoGradGuard no_grad;
    fresh->forward(data_of(world).x);
    const std::string message = message_of([&] { register_comm_hook(fresh, average_hook()); });
    RANK_CHECK(message.find("HYBRID_SHARD") != std::string::npos, message);
  });
}

TEST_CASE("the unit's own mesh is no other and ranks that give different ones are told so",
          "[runtime][own_mesh]") {
  run_threads(kRanks, [&](World& world) {
    Net net = make();
    Options options;
    options.mesh = world.mesh();
    options.shard_placement_fn = [&](const std::string&, const Tensor&) {
      return ShardPlacement(0, world.mesh());
    };
    fully_shard(net, options);
    backward(net, world);
    RANK_CHECK(world.communicator()->counts().all_gathers == 1);

    Net other = one_unit(world, {.over = world.rank() < 2 ? Over::kPairs : Over::kTwins});
    const std::string message = message_of([&] { other->forward(data_of(world).x); });
    RANK_CHECK(message.find("of its own") != std::string::npos, message);
  });
}

}  // namespace state_own_mesh_test

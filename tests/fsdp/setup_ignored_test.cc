// What is ignored is left alone: not sharded, cast, broadcast, given memory or reduced, however
// deep it lies, whatever else registers it, and whoever wraps the module around it.
#include <fmt/format.h>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_ignored_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using tessera::fsdp::Options;
using tessera::fsdp::World;
using tessera::fsdp::WrapPolicy;

namespace {

constexpr std::int64_t kWidth = 6;

struct DeepImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor scale;
  DeepImpl() {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
    scale = register_buffer("scale", torch::rand({kWidth}) + 1);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear->forward(x) * scale; }
};
TORCH_MODULE(Deep);

/// What is named as ignored holds nothing itself.
struct KeptImpl : torch::nn::Module {
  Deep deep{nullptr};
  KeptImpl() : deep(register_module("deep", Deep())) {}
  torch::Tensor forward(const torch::Tensor& x) { return deep->forward(x); }
};
TORCH_MODULE(Kept);

/// Registers a weight and a buffer of what is ignored as its own too.
struct CellImpl : torch::nn::Module {
  torch::nn::Linear work{nullptr};
  Kept kept{nullptr};
  torch::Tensor tied, scale, shift;
  CellImpl() {
    work = register_module("work", torch::nn::Linear(kWidth, kWidth));
    kept = register_module("kept", Kept());
    tied = register_parameter("tied", kept->deep->linear->weight);
    scale = register_buffer("scale", kept->deep->scale);
    shift = register_buffer("shift", torch::rand({kWidth}));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(work->forward(x.to(work->weight.scalar_type()))).to(torch::kFloat);
    return kept->forward(x).matmul(tied) * scale + shift.to(torch::kFloat);
  }
};
FSDP_MODULE(Cell);

struct OuterImpl : torch::nn::Module {
  std::vector<Cell> cells;
  OuterImpl() {
    for (int i = 0; i < 2; ++i) cells.push_back(register_module(fmt::format("c{}", i), Cell()));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Cell& cell : cells) x = cell->forward(x);
    return x;
  }
};
FSDP_MODULE(Outer);

Outer make_outer(std::uint64_t seed) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return Outer();
}

std::vector<torch::Tensor> tensors_of(const Kept& kept) {
  return {kept->deep->linear->weight, kept->deep->linear->bias, kept->deep->scale};
}

enum class How { kByHand, kAutoWrap, kOptionsOfPolicy };

void wrap(Outer& net, const Options& options, How how) {
  if (how == How::kByHand) {
    for (Cell& cell : net->cells) fsdp::fully_shard(cell, options);
    fsdp::fully_shard(net, options);
    return;
  }
  Options own = options;
  own.ignored_modules.clear();
  const WrapPolicy policy =
      how == How::kAutoWrap
          ? WrapPolicy::types<Cell>()
          : WrapPolicy([own](const WrapPolicy::Candidate& candidate, const Options&) {
              return dynamic_cast<const CellImpl*>(candidate.module) ? std::optional(own)
                                                                     : std::nullopt;
            });
  fsdp::auto_wrap(net, policy, options);
}

}  // namespace

TEST_CASE("modules that are ignored stay as they were, with all below them", "[setup][ignored]") {
  const How how = GENERATE(How::kByHand, How::kAutoWrap, How::kOptionsOfPolicy);
  const bool low = GENERATE(false, true);
  const bool sync = GENERATE(false, true);
  CAPTURE(static_cast<int>(how), low, sync);
  fsdp::run_threads(2, [&](World& world) {
    const std::uint64_t seed = sync ? 20 + static_cast<std::uint64_t>(world.rank()) : 20;
    Outer net = make_outer(seed), plain = make_outer(seed);
    Options options;
    options.mesh = world.mesh();
    options.device = torch::kCPU;
    options.sync_module_states = sync;
    if (low) {
      options.mixed_precision.param_dtype = torch::kBFloat16;
      options.mixed_precision.buffer_dtype = torch::kHalf;
    }
    std::vector<torch::Tensor> before;
    std::vector<const void*> memory;
    for (const Cell& cell : net->cells) {
      options.ignored_modules.push_back(cell->kept.ptr());
      for (const torch::Tensor& tensor : tensors_of(cell->kept)) {
        before.push_back(tensor);
        memory.push_back(tensor.data_ptr());
      }
    }
    wrap(net, options, how);
    const torch::Tensor x = torch::ones({3, kWidth}) * (world.rank() + 1);
    net->forward(x).square().mean().backward();

    std::size_t at = 0;
    for (std::size_t c = 0; c < net->cells.size(); ++c) {
      const Cell& cell = net->cells[c];
      for (const torch::Tensor& tensor : tensors_of(cell->kept)) {
        RANK_CHECK(tensor.is_same(before[at]) && tensor.data_ptr() == memory[at]);
        RANK_CHECK(tensor.scalar_type() == torch::kFloat);
        ++at;
      }
      RANK_CHECK(cell->named_parameters(false)["tied"].is_same(cell->kept->deep->linear->weight));
      RANK_CHECK(cell->scale.scalar_type() == torch::kFloat);
      RANK_CHECK(cell->shift.scalar_type() == (low ? torch::kHalf : torch::kFloat));
      RANK_CHECK(cell->named_parameters()["work.weight"].dim() == 1);  // a shard
      // Not broadcast: each rank's own.
      const auto mine = tensors_of(cell->kept), its = tensors_of(plain->cells[c]->kept);
      for (std::size_t i = 0; i < mine.size(); ++i) RANK_CHECK(torch::equal(mine[i], its[i]));
    }
    if (low || sync) return;
    // Not reduced: each rank's own.
    plain->forward(x).square().mean().backward();
    for (std::size_t c = 0; c < net->cells.size(); ++c)
      RANK_CHECK(
          torch::allclose(net->cells[c]->tied.grad(), plain->cells[c]->tied.grad(), 1e-5, 1e-7));
  });
}

TEST_CASE("a weight that an ignored module shares with two units belongs to neither",
          "[setup][ignored]") {
  fsdp::run_threads(2, [](World& world) {
    Outer net = make_outer(3);
    const torch::Tensor weight = net->cells[0]->kept->deep->linear->weight;
    net->cells[1]->register_parameter("other", weight);
    Options options;
    options.mesh = world.mesh();
    options.ignored_modules = {net->cells[0]->kept.ptr()};
    fsdp::auto_wrap(net, WrapPolicy::types<Cell>(), options);
    RANK_CHECK(net->named_parameters()["c1.other"].is_same(weight));
    RANK_CHECK(weight.sizes() == torch::IntArrayRef({kWidth, kWidth}));
    RANK_CHECK(weight.sum().item<float>() != 0);
    RANK_CHECK(net->named_parameters()["c1.kept.deep.linear.weight"].dim() == 1);
  });
}

TEST_CASE("the unit around another ignores what that one ignores", "[setup][ignored]") {
  fsdp::run_threads(2, [](World& world) {
    Outer net = make_outer(4);
    const torch::Tensor weight = net->cells[0]->kept->deep->linear->weight;
    net->register_parameter("mine", weight);
    net->register_buffer("factor", net->cells[0]->kept->deep->scale);
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.buffer_dtype = torch::kHalf;
    Options of_cell = options;
    of_cell.ignored_modules = {net->cells[0]->kept.ptr()};
    fsdp::fully_shard(net->cells[0], of_cell);
    fsdp::fully_shard(net, options);
    net->forward(torch::ones({3, kWidth})).sum().backward();
    RANK_CHECK(net->named_parameters()["mine"].is_same(weight));
    RANK_CHECK(weight.dim() == 2 && weight.grad().dim() == 2);
    RANK_CHECK(net->cells[0]->kept->deep->scale.scalar_type() == torch::kFloat);
  });
}

TEST_CASE("an ignored module on the meta device is given neither memory nor values",
          "[setup][ignored]") {
  const World world = fsdp::fake_world(0, 2);
  Outer net = nullptr;
  {
    const fsdp::MetaInit meta;
    net = Outer();
  }
  Options options;
  options.mesh = world.mesh();
  options.ignored_modules = {net->cells[1]->kept.ptr()};
  options.param_init_fn = [](torch::nn::Module& module) {
    for (torch::Tensor& param : module.parameters(false))
      if (!param.is_meta()) param.fill_(1);
    for (torch::Tensor& buffer : module.buffers(false))
      if (!buffer.is_meta()) buffer.fill_(1);
  };
  fsdp::fully_shard(net, options);
  for (const torch::Tensor& tensor : tensors_of(net->cells[1]->kept)) CHECK(tensor.is_meta());
  CHECK(net->cells[1]->tied.is_meta());
  CHECK(net->cells[1]->scale.is_meta());
  for (const torch::Tensor& tensor : tensors_of(net->cells[0]->kept)) CHECK(!tensor.is_meta());
}

TEST_CASE("what cannot be ignored is refused by name", "[setup][ignored]") {
  const World world = fsdp::fake_world(0, 2);
  Outer net = make_outer(5);
  Options options;
  options.mesh = world.mesh();
  fsdp::fully_shard(net->cells[0], options);
  Options late = options;
  late.ignored_modules = {net->cells[0]->kept.ptr()};
  const std::string message = message_of([&] { fsdp::fully_shard(net, late); });
  CHECK_THAT(message, Catch::Contains("deep.linear.weight") && Catch::Contains("owns it already"));
  late.ignored_modules = {nullptr};
  CHECK_THAT(message_of([&] { fsdp::fully_shard(net, late); }), Catch::Contains("empty module"));
  late.ignored_modules.clear();
  late.ignored_parameters = {torch::Tensor()};
  CHECK_THAT(message_of([&] { fsdp::fully_shard(net, late); }),
             Catch::Contains("undefined tensor"));
  fsdp::fully_shard(net, options);  // nothing was changed
}

}  // namespace setup_ignored_test

// Against PyTorch: checkpoints that it wrote go through a model of the same shape, unchanged. The
// hidden cases are the C++ side of tests/interop/fsdp_state_test.py ([.peer]), of
// fsdp1_state_test.py ([.peer], [.peer-local]) and of optimizer_classes_test.py ([.peer-classes]).
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_pytorch_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

// The model of sample_checkpoints/generate/common.py.
struct TinyBlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  TinyBlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    up = register_module("up", torch::nn::Linear(6, 10));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(10, 6).bias(false)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x + down->forward(torch::relu(up->forward(norm->forward(x))));
  }
};
FSDP_MODULE(TinyBlock);

struct LayersImpl : torch::nn::Module {
  std::vector<TinyBlock> blocks;
  LayersImpl() {
    for (const char* name : {"0", "1"}) blocks.push_back(register_module(name, TinyBlock()));
  }
};
TORCH_MODULE(Layers);

struct TinyLmImpl : torch::nn::Module {
  torch::nn::Embedding embed{nullptr};
  Layers layers{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor tokens_seen, scale_history;
  TinyLmImpl() {
    embed = register_module("embed", torch::nn::Embedding(11, 6));
    layers = register_module("layers", Layers());
    head = register_module("head", torch::nn::Linear(6, 5));
    tokens_seen = register_buffer("tokens_seen", torch::zeros({}, torch::kLong));
    scale_history = register_buffer("scale_history", torch::zeros({3}));
  }
  torch::Tensor forward(torch::Tensor ids) {
    tokens_seen += ids.numel();
    torch::Tensor x = embed->forward(ids);
    for (TinyBlock& block : layers->blocks) x = block->forward(x);
    return head->forward(x);
  }
};
FSDP_MODULE(TinyLm);

/// Matrices in one group, vectors in the other, as the samples of FSDP2; or, as those of FSDP1, all
/// in one. Every option wrong.
template <class O>
std::unique_ptr<O> make_optimizer(TinyLm& model, bool one_group = false) {
  std::vector<torch::Tensor> matrices, vectors;
  for (const auto& item : model->named_parameters()) {
    const bool vector =
        item.key().ends_with("bias") || item.key().find("norm") != std::string::npos;
    (vector && !one_group ? vectors : matrices).push_back(item.value());
  }
  const auto options = optim::AdamWOptions(9).betas({0.1, 0.2}).eps(3).weight_decay(4);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<optim::AdamWOptions>(options));
  if (!one_group) groups.emplace_back(vectors, std::make_unique<optim::AdamWOptions>(options));
  return std::make_unique<O>(groups, options);
}

/// An optimizer of the class that `name` begins with, with its defaults.
std::unique_ptr<optim::Optimizer> make_default(const std::string& name, TinyLm& model,
                                               double rate) {
  const std::string kind = name.substr(0, name.find('-'));
  const auto parameters = model->parameters();
  if (kind == "Adam") return std::make_unique<optim::Adam>(parameters, rate);
  if (kind == "AdamW") return std::make_unique<optim::AdamW>(parameters, rate);
  if (kind == "SGD") return std::make_unique<optim::SGD>(parameters, rate);
  if (kind == "Adagrad") return std::make_unique<optim::Adagrad>(parameters, rate);
  RANK_CHECK(kind == "RMSprop", kind);
  return std::make_unique<optim::RMSprop>(parameters, rate);
}

void shard(TinyLm& model, const fsdp::Options& options) {
  for (TinyBlock& block : model->layers->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(model, options);
}

TinyLm make_tiny() {
  std::lock_guard lock(generator_mutex());
  return TinyLm();
}

/// As train() of common.py: the same random ids.
void train(TinyLm& model, optim::Optimizer& optimizer, std::uint64_t seed, int steps, int rank) {
  auto generator = at::detail::createCPUGenerator(seed + 17 * static_cast<std::uint64_t>(rank));
  for (int step = 0; step < steps; ++step) {
    const auto ids = torch::randint(0, 11, {4}, generator, torch::kLong);
    const auto loss = model->forward(ids).to(torch::kFloat).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}

tessera::HashReport hash_of(const std::string& path) {
  const auto files = tessera::make_posix_file_system();
  tessera::OpenedCheckpoint opened = tessera::open_checkpoint(*files, path);
  opened.locate_all({});
  return tessera::hash_checkpoint(opened);
}

std::map<std::string, std::string> sums_of(const tessera::HashReport& report) {
  std::map<std::string, std::string> out;
  for (const tessera::HashedTensor& tensor : report.tensors)
    out[tensor.name] = tensor.dtype + " " + tensor.sha256;
  return out;
}

std::string sample(const std::string& name) {
  return std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints/" + name + "/checkpoint";
}

template <class O>
void pass_through(const std::string& from, const std::string& to, int world, MemoryLayout layout) {
  fsdp::run_threads(world, [&](fsdp::World& w) {
    fsdp::Options options;
    options.mesh = w.mesh();
    options.layout = layout;
    TinyLm model = make_tiny();
    shard(model, options);
    auto optimizer = make_optimizer<O>(model);
    const tessera::LoadResult result =
        tessera::load(from, fsdp::state_dict(model, *optimizer), w.ranks());
    RANK_CHECK(result.missing.empty() && result.mismatched.empty());
    tessera::save(to, fsdp::state_dict(model, *optimizer), w.ranks());
  });
}

}  // namespace

TEST_CASE("what PyTorch wrote comes out of a sharded model as it went in") {
  const std::string name =
      GENERATE("dcp/fsdp2_w4", "dcp/fsdp2_w1", "dcp/hsdp_2x2", "dcp/fsdp2_tp_2x2",
               "dcp/fsdp2_w2_flat_optim", "dcp/fsdp1_sharded_flat_w3", "dcp/fsdp1_sharded_orig_w2",
               "dcp/fsdp1_sharded_orig_w4", "dcp/fsdp1_mesh_flat_w4", "dcp/fsdp1_mesh_orig_w2",
               "dcp/fsdp1_hsdp_mesh_2x2", "dcp/plain_w1", "torchsave/fsdp1_full");
  const int world = GENERATE(1, 2, 3);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(name, world, layout == MemoryLayout::kFlat);
  ScratchFolder folder;
  const std::string to = folder / "ours";
  pass_through<optim::AdamW>(sample(name), to, world, layout);
  const tessera::HashReport expected = hash_of(sample(name)), found = hash_of(to);
  if (name == "dcp/fsdp2_w2_flat_optim")
    CHECK(sums_of(found) == sums_of(hash_of(sample("dcp/fsdp2_w4"))));
  else
    CHECK(sums_of(found) == sums_of(expected));
  const auto values = [](const tessera::HashReport& report) {
    std::map<std::string, tessera::Value> out;
    for (const auto& [key, value] : report.values) {
      tessera::Value plain = value.is_int() ? tessera::Value::real(value.as_real()) : value;
      if (key.ends_with(".params")) {  // FSDP1 lists members in an order of its own
        tessera::ValueList members = value.as_list();
        std::ranges::sort(members, {}, [](const tessera::Value& v) { return v.as_string(); });
        plain = tessera::Value::list(members);
      }
      out.emplace(key, plain);
    }
    return out;
  };
  if (name != "dcp/fsdp2_w2_flat_optim") {
    const auto theirs = values(expected), ours = values(found);
    const bool two_groups = theirs.contains("optim.param_groups.1.lr");
    for (const auto& [key, value] : theirs) {
      if (key.ends_with(".params") && !two_groups) continue;  // here there are two
      CAPTURE(key);
      CHECK(ours.contains(key));
      if (ours.contains(key)) CHECK(ours.at(key) == value);
    }
  }
}

TEST_CASE("the fused optimizer takes over what AdamW of PyTorch left") {
  ScratchFolder folder;
  const std::string to = folder / "ours";
  pass_through<fsdp::FusedAdamW>(sample("dcp/fsdp2_w4"), to, 2, MemoryLayout::kFlat);
  CHECK(sums_of(hash_of(to)) == sums_of(hash_of(sample("dcp/fsdp2_w4"))));
}

namespace {

fsdp::StateDictOptions local() {
  fsdp::StateDictOptions options;
  options.type = fsdp::StateDictType::kLocal;
  return options;
}

/// As FSDP1 without a mesh; every value wrong.
TinyLm make_local(fsdp::World& world) {
  fsdp::Options options;
  options.process_group = world.communicator();
  TinyLm model = make_tiny();
  shard(model, options);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-7);
  for (torch::Tensor& buffer : model->buffers()) buffer.fill_(3);
  return model;
}

/// Those of the model, without "model.".
std::map<std::string, std::string> model_sums(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& [name, sum] : sums_of(hash_of(path)))
    if (!name.starts_with("optim."))
      out[name.starts_with("model.") ? name.substr(std::string("model.").size()) : name] = sum;
  return out;
}

}  // namespace

TEST_CASE("LOCAL state dicts of FSDP1 hold what ours do, and come into any number of ranks") {
  const std::string name = GENERATE("dcp/fsdp1_local_w2", "dcp/fsdp1_local_w3");
  const int world = GENERATE(1, 2, 3);
  CAPTURE(name, world);
  ScratchFolder folder;
  const std::string flat = folder / "flat", whole = folder / "whole";
  fsdp::run_threads(world, [&](fsdp::World& w) {
    TinyLm model = make_local(w);
    tessera::LoadPolicy policy;
    policy.names.renames = {{"*", "model.*"}};  // the sample is a model's state dict itself
    const tessera::LoadResult result =
        tessera::load(sample(name), fsdp::state_dict(model, local()), w.ranks(), policy);
    RANK_CHECK(result.missing.empty() && result.unexpected.empty());
    tessera::save(whole, fsdp::state_dict(model), w.ranks());
    tessera::save(flat, fsdp::state_dict(model, local()), w.ranks());
  });
  CHECK(model_sums(whole) == model_sums(sample("torchsave/fsdp1_full")));
  CHECK(model_sums(flat) == model_sums(sample(name)));
}

TEST_CASE("FSDP1's LOCAL state dicts with their optimizer's come into any number of ranks") {
  const int world = GENERATE(1, 2, 3);
  CAPTURE(world);
  ScratchFolder folder;
  const std::string whole = folder / "whole";
  fsdp::run_threads(world, [&](fsdp::World& w) {
    TinyLm model = make_local(w);
    auto optimizer = make_optimizer<optim::AdamW>(model, /*one_group=*/true);
    const tessera::LoadResult result =
        tessera::load(sample("torchsave/fsdp1_local_rankfiles_w3"),
                      fsdp::state_dict(model, *optimizer, local()), w.ranks());
    RANK_CHECK(result.missing.empty() && result.unexpected.empty());
    tessera::save(whole, fsdp::state_dict(model, *optimizer), w.ranks());
  });
  CHECK(sums_of(hash_of(whole)) == sums_of(hash_of(sample("torchsave/fsdp1_full"))));
}

// TESSERA_PEER: "SOURCE WORLD LAYOUT SEED STEPS DEST [SECOND_DEST]": load, [train, save,] as often
// as there are destinations. LAYOUT: flat, rows, or fsdp1 (flat without a mesh, one group).
TEST_CASE("peer of PyTorch", "[.peer]") {
  const char* text = std::getenv("TESSERA_PEER");
  REQUIRE(text != nullptr);
  std::istringstream words(text);
  std::string source, destination;
  std::uint64_t seed = 0;
  int world = 0, steps = 0;
  std::string layout;
  words >> source >> world >> layout >> seed >> steps;
  std::vector<std::string> destinations;
  while (words >> destination) destinations.push_back(destination);
  fsdp::run_threads(world, [&](fsdp::World& w) {
    fsdp::Options options;
    const bool fsdp1 = layout == "fsdp1";
    if (fsdp1)
      options.process_group = w.communicator();
    else
      options.mesh = w.mesh();
    options.layout = layout == "rows" ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;
    TinyLm model = make_tiny();
    shard(model, options);
    auto optimizer = make_optimizer<optim::AdamW>(model, fsdp1);
    tessera::load(source, fsdp::state_dict(model, *optimizer), w.ranks());
    for (const std::string& each : destinations) {
      train(model, *optimizer, seed, steps, w.rank());
      tessera::save(each, fsdp::state_dict(model, *optimizer), w.ranks());
    }
  });
}

// TESSERA_PEER: "SOURCE WORLD DEST": a LOCAL state dict through a model.
TEST_CASE("peer of FSDP1's local state dicts", "[.peer-local]") {
  const char* text = std::getenv("TESSERA_PEER");
  REQUIRE(text != nullptr);
  std::istringstream words(text);
  std::string source, destination;
  int world = 0;
  words >> source >> world >> destination;
  fsdp::run_threads(world, [&](fsdp::World& w) {
    TinyLm model = make_local(w);
    tessera::load(source, fsdp::state_dict(model, local()), w.ranks());
    tessera::save(destination, fsdp::state_dict(model, local()), w.ranks());
  });
}

// TESSERA_PEER: "FOLDER RATE NAME...": each optimizer as it is made to NAME.fresh, and what is in
// NAME.theirs through it to NAME.back.
TEST_CASE("peer of PyTorch's optimizer classes", "[.peer-classes]") {
  const char* text = std::getenv("TESSERA_PEER");
  REQUIRE(text != nullptr);
  std::istringstream words(text);
  std::string folder, name;
  double rate = 0;
  words >> folder >> rate;
  while (words >> name)
    fsdp::run_threads(2, [&](fsdp::World& w) {
      fsdp::Options options;
      options.mesh = w.mesh();
      TinyLm model = make_tiny();
      shard(model, options);
      auto optimizer = make_default(name, model, rate);
      const auto state = [&] { return fsdp::state_dict(model, *optimizer); };
      const std::string path = folder + "/" + name;
      tessera::save(path + ".fresh", state(), w.ranks());
      tessera::load(path + ".theirs", state(), w.ranks());
      tessera::save(path + ".back", state(), w.ranks());
    });
}

}  // namespace state_pytorch_test

// Extensions of a user's own: parameters that checkpoints hold in another form, and models with and
// without extensions in one process.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/tensor_parallel_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;
using fsdp::StoredPart;

namespace {

constexpr std::int64_t kIn = 5, kEach = 7;
constexpr double kScale = 1.0 / 16;

/// One product of three matrices that others keep apart, and a matrix of few values.
struct FusedImpl : torch::nn::Module {
  torch::Tensor qkv, codes, plain;
  FusedImpl() {
    qkv =
        register_parameter("qkv", torch::arange(3 * kEach * kIn).to(torch::kFloat).view({-1, kIn}));
    codes = register_parameter(
        "codes", ((torch::arange(4 * kIn) - 9).to(torch::kFloat) * kScale).view({4, kIn}));
    plain = register_parameter("plain", torch::arange(6).to(torch::kFloat));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::linear(x, qkv).sum() + torch::linear(x, codes).sum() + plain.sum();
  }
};
FSDP_MODULE(Fused);

struct OuterImpl : torch::nn::Module {
  Fused inner = register_module("inner", Fused());
  torch::Tensor forward(torch::Tensor x) { return inner->forward(x); }
};
FSDP_MODULE(Outer);

/// q, k, v for qkv; int8 codes and their scale for codes.
class Unfuse : public fsdp::Extension {
 public:
  bool is_transformed(const torch::nn::Module&, const std::string& name) const override {
    return name != "plain";
  }
  std::vector<StoredPart> post_unflatten(const torch::nn::Module& module, const std::string& name,
                                         const at::Tensor& whole) const override {
    if (dynamic_cast<const FusedImpl*>(&module) == nullptr) throw std::runtime_error("module");
    if (name == "codes")
      return {{"codes", (whole / kScale).round().to(torch::kChar)},
              {"codes_scale", torch::full({}, kScale)}};
    return {{"q", whole.narrow(0, 0, kEach)},
            {"k", whole.narrow(0, kEach, kEach)},
            {"v", whole.narrow(0, 2 * kEach, kEach)}};
  }
  at::Tensor pre_load(const torch::nn::Module&, const std::string& name,
                      const std::vector<StoredPart>& stored) const override {
    if (name == "codes") return stored[0].tensor.to(torch::kFloat) * stored[1].tensor;
    return torch::cat({stored[0].tensor, stored[1].tensor, stored[2].tensor});
  }
};

fsdp::Options options_of(fsdp::World& world, MemoryLayout layout, bool extended = true) {
  fsdp::Options options;
  options.mesh = world.mesh();
  options.layout = layout;
  if (extended) options.extension = std::make_shared<Unfuse>();
  return options;
}

fsdp::StateDictOptions of_type(StateDictType type, bool rank0_only = false) {
  fsdp::StateDictOptions options;
  options.type = type;
  options.rank0_only = rank0_only;
  return options;
}

void train(Outer& model, torch::optim::Optimizer& optimizer) {
  // Gradients that are whole codes: the values stay what int8 can hold.
  optimizer.zero_grad();
  model->forward(torch::ones({1, kIn})).backward();
  optimizer.step();
}

std::unique_ptr<torch::optim::SGD> sgd(Outer& model) {
  return std::make_unique<torch::optim::SGD>(model->parameters(),
                                             torch::optim::SGDOptions(kScale).momentum(0.5));
}

}  // namespace

TEST_CASE("an extension decides what stands for a parameter in checkpoints and it comes back") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kFull);
  const bool rank0_only = type == StateDictType::kFull && layout == MemoryLayout::kFlat;
  const ScratchFolder folder;
  const std::string path = folder / "a";
  std::vector<torch::Tensor> expected;
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Outer model;
    fully_shard(model->inner, options_of(world, layout));
    fully_shard(model, options_of(world, layout));
    auto optimizer = sgd(model);
    train(model, *optimizer);
    tessera::save(path, fsdp::state_dict(model, *optimizer, of_type(type, rank0_only)),
                  world.ranks());
    const fsdp::SummonFullParams summoned(model);
    if (world.rank() == 0)
      for (const torch::Tensor& parameter : model->parameters())
        expected.push_back(parameter.detach().clone());
  });
  REQUIRE(expected.size() == 3);
  // In the file: the parts, under names beside the parameter's.
  std::map<std::string, torch::Tensor> stored = {
      {"q", torch::zeros({kEach, kIn})}, {"k", torch::zeros({kEach, kIn})},
      {"v", torch::zeros({kEach, kIn})}, {"codes", torch::zeros({4, kIn}, torch::kChar)},
      {"codes_scale", torch::zeros({})}, {"plain", torch::zeros({6})}};
  tessera::LiveState reader;
  for (auto& [name, tensor] : stored)
    reader.add(
        {tessera::key_item("model"), tessera::key_item("inner." + name)},
        {tensor.scalar_type() == torch::kChar ? tessera::DType::kInt8 : tessera::DType::kFloat32,
         tensor.sizes().vec(),
         {},
         tensor.data_ptr()});
  const auto alone = tessera::single_rank();
  const tessera::LoadResult read = tessera::load(path, reader, *alone);
  CHECK(read.loaded.size() == stored.size());
  CHECK(same_bits(torch::cat({stored["q"], stored["k"], stored["v"]}), expected[0]));
  CHECK(same_bits(stored["codes"].to(torch::kFloat) * stored["codes_scale"], expected[1]));
  // And on another number of ranks, flat, in the parameters.
  std::mutex mutex;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Outer model;
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-3);
    }
    fully_shard(model->inner, options_of(world, MemoryLayout::kFlat));
    fully_shard(model, options_of(world, MemoryLayout::kFlat));
    auto optimizer = sgd(model);
    const tessera::LoadResult result = tessera::load(
        path, fsdp::state_dict(model, *optimizer, of_type(type, rank0_only)), world.ranks());
    RANK_CHECK(result.missing.empty() && result.mismatched.empty());
    const fsdp::SummonFullParams summoned(model);
    for (std::size_t p = 0; p < expected.size(); ++p)
      RANK_CHECK(same_bits(model->parameters()[p], expected[p]));
  });
}

TEST_CASE("forms of transformed values are rows under the names of their parts") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Outer model;
    fully_shard(model, options_of(world, MemoryLayout::kFlat));
    std::string found;
    for (const fsdp::ValueForm& form : fsdp::value_forms(model))
      found += form.fqn + " " + form.placements[0].to_string() + "; ";
    RANK_CHECK(found ==
                   "inner.q shard(0); inner.k shard(0); inner.v shard(0); inner.codes shard(0); "
                   "inner.codes_scale replicate; inner.plain flat; ",
               found);
  });
}

TEST_CASE("what an extension cannot do is refused by name") {
  struct Wrong : Unfuse {
    at::Tensor pre_load(const torch::nn::Module&, const std::string&,
                        const std::vector<StoredPart>& stored) const override {
      return stored[0].tensor;
    }
  };
  struct Part : Unfuse {
    std::optional<int> sharded_dim(const torch::nn::Module&, const std::string&,
                                   const at::Tensor&) const override {
      return 0;
    }
  };
  const auto with = [](auto extension) {
    fsdp::Options options;
    options.extension = std::make_shared<decltype(extension)>();
    return options;
  };
  {
    Outer model;
    fully_shard(model, with(Unfuse()));
    CHECK_THROWS_WITH(fsdp::state_dict(model, of_type(StateDictType::kLocal)),
                      Catch::Contains("stored in another form"));
  }
  {
    Outer model;
    CHECK_THROWS_WITH(fully_shard(model, with(Part())),
                      Catch::Contains("is a part by dim 0") && Catch::Contains("mesh()"));
  }
  const ScratchFolder folder;
  const auto alone = tessera::single_rank();
  Outer model;
  fully_shard(model, with(Wrong()));
  tessera::save(folder / "a", fsdp::state_dict(model), *alone);
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-3);
  }
  CHECK_THROWS_WITH(tessera::load(folder / "a", fsdp::state_dict(model), *alone),
                    Catch::Contains("pre_load of \"inner.qkv\": expected shape [21,5]"));
  for (const torch::Tensor& parameter : model->parameters())
    CHECK(same_bits(parameter, torch::full_like(parameter, -3)));
  // A part alone is no parameter.
  Outer whole;
  fully_shard(whole, with(Unfuse()));
  tessera::LiveState state = fsdp::state_dict(whole);
  state.remove_if([](const auto& entry) { return entry.name == "model.inner.k"; });
  tessera::LoadPolicy policy;
  policy.model = tessera::PartPolicy::kAllowBoth;
  CHECK_THROWS_WITH(
      tessera::load(folder / "a", state, *alone, policy),
      Catch::Contains("\"model.inner.k\", one of the tensors it is stored as, was not loaded"));
}

TEST_CASE("models on a 1-D and a 2-D mesh and with an extension live in one process") {
  // With their optimizers; saved in every order, and loaded in every order again.
  std::vector<std::vector<std::size_t>> orders;
  std::vector<std::size_t> next = {0, 1, 2};
  do orders.push_back(next);
  while (std::next_permutation(next.begin(), next.end()));
  REQUIRE(orders.size() == 6);
  for (const std::vector<std::size_t>& order : orders) {
    tessera::MemoryFileSystem fs;
    tessera::SaveOptions saving;
    tessera::LoadPolicy loading;
    saving.file_system = loading.file_system = &fs;
    fsdp::run_threads(4, [&](fsdp::World& world) {
      const fsdp::DeviceMesh mesh(world, {2, 2}, {"data", "tensor"});
      Odd one = make_odd(false);
      CutStack two = make_cut_stack(mesh.sub(1));
      Outer three;
      fsdp::Options plain;
      plain.mesh = world.mesh();
      shard_odd(one, plain);
      shard_cut(two, mesh, MemoryLayout::kFlat);
      fully_shard(three, options_of(world, MemoryLayout::kFlat));
      const std::vector<fsdp::ModuleRef> models = {one, two, three};
      std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
      for (const fsdp::ModuleRef& model : models)
        optimizers.push_back(std::make_unique<torch::optim::SGD>(
            once_each(model->parameters()), torch::optim::SGDOptions(kScale).momentum(0.5)));
      odd_loss(one, 0, world.rank(), 4).backward();
      two->forward(torch::ones({2, kWidth})).sum().backward();
      three->forward(torch::ones({1, kIn})).backward();
      for (const auto& optimizer : optimizers) optimizer->step();
      const auto path = [](std::size_t m) { return "/run/" + std::to_string(m); };
      const auto state = [&](std::size_t m) { return fsdp::state_dict(models[m], *optimizers[m]); };
      /// A model's parameters and what its optimizer has learned of them.
      const auto tensors_of = [&](std::size_t m) {
        std::vector<torch::Tensor> out;
        for (const torch::Tensor& parameter : once_each(models[m]->parameters())) {
          out.push_back(parameter.detach());
          auto& held = optimizers[m]->state().at(parameter.unsafeGetTensorImpl());
          out.push_back(static_cast<torch::optim::SGDParamState&>(*held).momentum_buffer());
        }
        return out;
      };
      std::vector<std::vector<torch::Tensor>> before(models.size());
      for (std::size_t m = 0; m < models.size(); ++m)
        for (const torch::Tensor& tensor : tensors_of(m)) before[m].push_back(tensor.clone());
      for (const std::size_t m : order) tessera::save(path(m), state(m), world.ranks(), saving);
      for (const std::vector<std::size_t>& back : orders) {
        {
          const torch::NoGradGuard no_grad;
          for (std::size_t m = 0; m < models.size(); ++m)
            for (torch::Tensor& tensor : tensors_of(m)) tensor.fill_(-2);
        }
        for (const std::size_t m : back) tessera::load(path(m), state(m), world.ranks(), loading);
        for (std::size_t m = 0; m < models.size(); ++m)
          for (std::size_t t = 0; t < before[m].size(); ++t)
            RANK_CHECK(same_bits(tensors_of(m)[t], before[m][t]),
                       std::to_string(m) + " " + std::to_string(t));
      }
      // The forms are each model's own.
      const std::size_t dims[] = {1, 2, 1};
      for (std::size_t m = 0; m < models.size(); ++m)
        for (const fsdp::ValueForm& form : fsdp::value_forms(models[m]))
          if (form.kind == fsdp::ValueKind::kDTensor)
            RANK_CHECK(form.placements.size() == dims[m], form.fqn);
    });
  }
}

}  // namespace state_extension_test

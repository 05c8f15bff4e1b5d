// What extensions are given: parameters that have their values, and none that stands under several
// names.
#include <tessera/base/error.h>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_sync_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::StoredPart;

TEST_CASE("pre_flatten sees the values of the first rank where modules are synchronised") {
  struct Sums : fsdp::Extension {
    mutable double sum = 0;
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      if (name == "matrix") sum = parameter.sum().item<double>();
      return parameter;
    }
  };
  const bool meta = GENERATE(false, true);  // on other ranks without memory so far
  fsdp::run_threads(3, [&](fsdp::World& world) {
    const bool first = world.rank() == 0;
    Matrix model(meta && !first ? torch::kMeta : torch::kCPU);
    if (!meta || first) fill(model, 2 + world.rank());
    const auto extension = std::make_shared<Sums>();
    fsdp::Options options = options_of(world, true, extension);
    options.sync_module_states = true;
    options.param_init_fn = [](torch::nn::Module&) {};
    fully_shard(model, options);
    RANK_CHECK(extension->sum == 2 * kRows * kColumns, std::to_string(extension->sum));
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(torch::equal(model->matrix, torch::full({kRows, kColumns}, 2.0F)));
  });
}

namespace {

struct TwiceImpl : torch::nn::Module {
  Matrix one = register_module("one", Matrix());
  Matrix two = register_module("two", one);
  torch::Tensor forward(torch::Tensor x) { return one->forward(x); }
};
FSDP_MODULE(Twice);

}  // namespace

TEST_CASE("a parameter of a module that is held twice is not transformed") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Twice model;
    fully_shard(model, options_of(world, true, std::make_shared<Defaults>()));
    const std::string found = error_of([&] { fsdp::state_dict(model); });
    RANK_CHECK(found.find("\"two.matrix\" is tied") != std::string::npos, found);
  });
}

TEST_CASE("pre_load may give another floating type, and no other") {
  struct Codes : Defaults {
    torch::Dtype type = torch::kDouble;
    at::Tensor pre_load(const torch::nn::Module&, const std::string&,
                        const std::vector<StoredPart>& stored) const override {
      return stored[0].tensor.to(type);
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto extension = std::make_shared<Codes>();
    Matrix model;
    fully_shard(model, options_of(world, true, extension));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    const auto found = [&](torch::Dtype type) {
      fill(model, -3);
      extension->type = type;
      return error_of(
          [&] { tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading); });
    };
    RANK_CHECK(
        found(torch::kChar).find("pre_load of \"matrix\": expected type Float, found Char") !=
        std::string::npos);
    RANK_CHECK(found(torch::kDouble).empty());
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(torch::equal(model->matrix, counted({kRows, kColumns})));
  });
}

}  // namespace state_extension_sync_test

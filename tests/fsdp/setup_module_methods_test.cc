// What a module that can be a unit is to others: its name, its class, its copies, and its methods
// load, save and to.
#include <sstream>

#include "tests/fsdp/interception_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_module_methods_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::interception;

namespace {

struct OwnNamesImpl : Scaled {
  std::string loaded;
  void load(const std::string& path) { loaded = path; }
  bool save(const std::string&, int) { return true; }
  int to(int x) { return x; }
  Tensor forward(Tensor x) { return x * weight; }
};
FSDP_MODULE(OwnNames);

struct CopyableImpl : torch::nn::Cloneable<CopyableImpl> {
  explicit CopyableImpl(std::int64_t n) : size(n) { CopyableImpl::reset(); }
  void reset() override { weight = register_parameter("weight", torch::full({size}, 2.f)); }
  Tensor forward(Tensor x) { return x * weight; }
  std::int64_t size;
  Tensor weight;
};
FSDP_MODULE(Copyable);

}  // namespace

TEST_CASE("names and casts show the user's class") {
  Block block;
  CHECK_THAT(block->name(), Catch::EndsWith("BlockImpl"));
  CHECK_THAT(block->name(), !Catch::Contains("Hooked"));
  CHECK(fsdp::Holder<torch::nn::LinearImpl>(2, 2)->name() == "torch::nn::LinearImpl");
  std::ostringstream printed;
  printed << torch::nn::Sequential(block, fsdp::Holder<torch::nn::LinearImpl>(2, 3));
  CHECK_THAT(printed.str(),
             Catch::Contains("BlockImpl") && Catch::Contains("Linear(in_features=2"));
  const std::shared_ptr<torch::nn::Module> module = block.ptr();
  CHECK(std::dynamic_pointer_cast<BlockImpl>(module) != nullptr);
  CHECK(module->as<Block>() == block.get());
  CHECK(module->as<BlockImpl>() == block.get());
  const auto made = std::make_shared<fsdp::Module<BlockImpl>>();
  const Block held(made);
  CHECK(held.get() == made.get());
}

TEST_CASE("an unsharded module that can be a unit is cloned as one") {
  Copyable module(4);
  {
    torch::NoGradGuard no_grad;
    module->weight.fill_(5);
  }
  const auto copy = std::dynamic_pointer_cast<fsdp::Module<CopyableImpl>>(module->clone());
  REQUIRE(copy);
  CHECK(copy->weight.equal(module->weight));
  CHECK_FALSE(copy->weight.is_same(module->weight));
  CHECK(copy->parameters()[0].is_same(copy->weight));
  fsdp::fully_shard(copy, alone());
  CHECK(copy->forward(kX).equal(kX * 5));
  CHECK_FALSE(sharded(module->weight));
  fsdp::Holder<torch::nn::LinearImpl> linear(3, 2);
  const auto twin = linear->clone();
  CHECK(dynamic_cast<fsdp::HookPoint*>(twin.get()) != nullptr);
  CHECK(twin->as<torch::nn::Linear>()
            ->forward(torch::ones({1, 3}))
            .equal(linear(torch::ones({1, 3}))));
  const torch::nn::Sequential inside(linear);
  CHECK(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(inside->clone())
            ->forward(torch::ones({1, 3}))
            .equal(linear(torch::ones({1, 3}))));
}

TEST_CASE(
    "clone, to, save and load of a sharded module are refused with the call to make instead") {
  Copyable module(4);
  module->to(torch::kDouble);
  CHECK(module->weight.scalar_type() == torch::kDouble);
  torch::nn::Sequential around(module);
  fsdp::fully_shard(module, alone());
  CHECK_THROWS_WITH(module->clone(), Catch::Contains("clone()") && Catch::Contains("CopyableImpl"));
  CHECK_THROWS_WITH(module->to(torch::kFloat), Catch::Contains("to()"));
  CHECK_THROWS_WITH(module->to(torch::Device(torch::kCPU)), Catch::Contains("to()"));
  CHECK_THROWS_WITH(around->to(torch::kFloat), Catch::Contains("to()"));
  std::stringstream stream;
  CHECK_THROWS_WITH(torch::save(around, stream), Catch::Contains("save()"));
  torch::serialize::InputArchive archive;
  CHECK_THROWS_WITH(module->load(archive), Catch::Contains("load()"));
}

TEST_CASE("methods of the user's named load, save and to stay reachable") {
  OwnNames module;
  module->load("file");
  CHECK(module->loaded == "file");
  CHECK(module->save("file", 1));
  CHECK(module->to(3) == 3);
  static_cast<torch::nn::Module&>(*module).to(torch::kDouble);
  CHECK(module->weight.scalar_type() == torch::kDouble);
  fsdp::fully_shard(module, alone());
  CHECK_THROWS_WITH(static_cast<torch::nn::Module&>(*module).to(torch::kFloat),
                    Catch::Contains("to()"));
  CHECK(module(kX.to(torch::kDouble)).equal(expected()));
}

}  // namespace setup_module_methods_test

// Stock modules inside a plain Sequential become units without a change of names.
#include <tessera/fsdp.h>
#include <tessera/fsdp/hook_slot.h>

#include "tests/fsdp/torch_and_catch.h"

namespace setup_hook_slot_test {

namespace fsdp = tessera::fsdp;
using torch::Tensor;

namespace {

fsdp::Options alone() {
  fsdp::Options options;
  options.process_group = fsdp::single_communicator();
  return options;
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  for (const auto& item : module.named_buffers()) names.push_back(item.key());
  return names;
}

}  // namespace

TEST_CASE("a hooked slot of a Sequential trains as before, under the same names") {
  torch::manual_seed(2);
  torch::nn::Linear first(4, 8);
  torch::nn::Sequential net(first, torch::nn::ReLU(), torch::nn::BatchNorm1d(8),
                            torch::nn::Linear(8, 2));
  const auto names = names_of(*net);
  const Tensor x = torch::randn({5, 4});
  Tensor plain = net->forward(x);
  plain.sum().backward();
  const Tensor gradient = first->weight.grad().clone();
  net->zero_grad();

  for (const std::size_t slot : {0, 2, 3}) {
    fsdp::hook_slot(net, slot);
    fsdp::fully_shard(net[slot], alone());
  }
  CHECK(names_of(*net) == names);
  CHECK(net->forward(x).allclose(plain));
  Tensor y = net->forward(x);
  y.sum().backward();
  CHECK(net->named_parameters()["0.weight"].grad().allclose(gradient.flatten()));
}

TEST_CASE("a hooked slot passes on mode, name, printing, clone and moves") {
  torch::nn::Sequential net(torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(4));
  fsdp::hook_slot(net, 0);
  const auto slot = fsdp::hook_slot(net, 1);
  CHECK(fsdp::hook_slot(net, 1) == slot);
  CHECK(slot->name() == "torch::nn::BatchNorm1dImpl");
  const Tensor x = torch::randn({8, 4});
  net->eval();
  CHECK_FALSE(slot->is_training());
  CHECK(net->forward(x).allclose(x, 1e-4, 1e-4));
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  REQUIRE(copy);
  CHECK(copy->forward(x).equal(net->forward(x)));
  CHECK_FALSE(copy->parameters()[0].is_same(net->parameters()[0]));
  net->to(torch::kDouble);
  CHECK(net->forward(x.to(torch::kDouble)).scalar_type() == torch::kDouble);
  std::stringstream stream;
  torch::save(net, stream);
  torch::nn::Sequential other(torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(4));
  CHECK_NOTHROW(torch::load(other, stream));
}

TEST_CASE("a slot with children keeps their names") {
  torch::nn::Sequential net(torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                torch::nn::TransformerEncoderLayerOptions(4, 2).dropout(0), 1)),
                            torch::nn::Linear(4, 4));
  const auto names = names_of(*net);
  const Tensor x = torch::randn({3, 2, 4}), plain = net->forward(x);
  fsdp::hook_slot(net, 0);
  CHECK(names_of(*net) == names);
  CHECK(net->forward(x).equal(plain));
}

TEST_CASE("a slot of another signature is hooked with it") {
  torch::nn::Sequential net(torch::nn::Bilinear(4, 4, 3));
  const Tensor x = torch::randn({5, 4}), plain = net->forward(x, x);
  fsdp::hook_slot<Tensor(const Tensor&, const Tensor&)>(net, 0);
  fsdp::fully_shard(net[0], alone());
  CHECK(net->forward(x, x).equal(plain));
}

TEST_CASE("hook_slot refuses slots that are not there") {
  torch::nn::Sequential net(torch::nn::Linear(2, 2));
  CHECK_THROWS_WITH(fsdp::hook_slot(net, 1), Catch::Contains("slot 1"));
}

}  // namespace setup_hook_slot_test

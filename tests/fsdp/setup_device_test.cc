// options.device: where a unit computes, and what is refused before anything is sharded. What moves
// to a GPU is tests/gpu_kit's.
#include <c10/core/StorageImpl.h>

#include "fsdp_core/params/refill_buffer.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_device_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// A tensor without memory that says it is on a GPU, which no machine needs for that.
torch::Tensor on_gpu(int index) {
  const torch::Device device(torch::kCUDA, static_cast<c10::DeviceIndex>(index));
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 16, c10::DataPtr(nullptr, device), nullptr, false));
  return tensor_over(storage, torch::kFloat, 0, {4});
}

struct SpreadImpl : torch::nn::Module {
  torch::nn::Linear here{nullptr};
  SpreadImpl(bool parameter_away, bool buffer_away) {
    here = register_module("here", torch::nn::Linear(4, 4));
    register_buffer("scale", buffer_away ? on_gpu(1) : torch::ones({4}));
    if (parameter_away) register_parameter("away", on_gpu(1));
  }
  torch::Tensor forward(torch::Tensor x) { return here->forward(x); }
};
FSDP_MODULE(Spread);

std::string refusal(bool parameter_away, bool buffer_away, std::optional<torch::Device> device) {
  Options options;
  options.device = device;
  Spread module(parameter_away, buffer_away);
  const std::string message = message_of([&] { fully_shard(module, options); });
  CHECK(module->parameters().size() == (parameter_away ? 3 : 2));
  CHECK(module->here->parameters()[0].dim() == 2);  // nothing was sharded
  return message;
}

}  // namespace

TEST_CASE("a module on the CPU trains on the device that it is given", "[setup][device]") {
  const char* name = GENERATE("cpu", "cpu:0");
  run_threads(2, [&](World& world) {
    Options options;
    options.device = torch::Device(name);
    BesidePlain both(world, options);
    backward(both.net, both.data);
    backward(both.plain, both.data);
    check_full_gradients(both.net, both.plain);
  });
}

TEST_CASE("a module that is elsewhere already is refused by name", "[setup][device]") {
  using Catch::Contains;
  CHECK_THAT(refusal(true, false, torch::kCPU),
             Contains("parameter \"away\" is on cuda:1, options.device is cpu"));
  CHECK_THAT(refusal(true, false, std::nullopt), Contains("is on cpu, \"away\" on cuda:1") &&
                                                     Contains("move the module to one device"));
  CHECK_THAT(refusal(false, true, torch::kCPU),
             Contains("a buffer is on cuda:1, options.device is cpu"));
}

TEST_CASE("a device that the process does not have is refused", "[setup][device]") {
  using Catch::Contains;
  CHECK_THAT(refusal(false, false, torch::Device("meta")), Contains("options.device is meta"));
  CHECK_THAT(refusal(false, false, torch::Device("cuda:99")),
             Contains("options.device is cuda:99: this process has"));
  if (!torch::cuda::is_available())
    CHECK_THAT(refusal(false, false, torch::Device("cuda")),
               Contains("options.device is cuda: this process has 0 of these"));
}

}  // namespace setup_device_test

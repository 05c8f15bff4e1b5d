#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/state_dict.h>

#include <cstring>
#include <mutex>

namespace tessera::fsdp {

Value rng_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  return Value::bytes(
      {static_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.nbytes())});
}

void set_rng_state(const Value& value, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const auto expected = static_cast<std::size_t>(generator.get_state().nbytes());
  if (value.kind() != Value::Kind::kBytes || value.as_string().size() != expected)
    fail(Code::kCorrupt,
         fmt::format("the value is no state of LibTorch's {} generator",
                     device.is_cpu() ? "CPU" : device.str()),
         "it comes from fsdp::rng_state() of the same release");
  at::Tensor state = at::empty({static_cast<std::int64_t>(expected)}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), value.as_string().data(), expected);
  generator.set_state(state);
}

}  // namespace tessera::fsdp

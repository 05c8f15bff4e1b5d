// OpenedCheckpoint::read: against the bytes that show's NumPy file has, and against what cannot be.
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/ops/show.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "tests/support/inspect_case.h"

namespace read_tensor_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

Status refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

/// The last bytes of a .npy file are the elements.
template <class T>
std::vector<T> from_npy(OpenedCheckpoint& checkpoint, const std::string& name, std::size_t count) {
  ShowOptions options;
  options.npy = true;
  const Bytes npy = show(checkpoint, name, options).npy;
  std::vector<T> values(count);
  if (count != 0)
    std::memcpy(values.data(), npy.data() + npy.size() - count * sizeof(T), count * sizeof(T));
  return values;
}

}  // namespace

TEST_CASE("a tensor is read whole as numbers, whatever its sharding") {
  OpenedCheckpoint checkpoint = open_path(case_path("dcp/fsdp2_w4"));
  std::size_t read = 0;
  for (const std::uint32_t index : leaf_tensors(checkpoint.manifest)) {
    const StoredTensor& tensor = checkpoint.manifest.tensors[index];
    if (tensor.spec.dtype != DType::kFloat32) continue;
    const std::string name(tensor.name);
    const auto count = static_cast<std::size_t>(checkpoint.tensor(name).spec.shape.numel());
    const std::vector<float> values = checkpoint.read<float>(name);
    REQUIRE(values.size() == count);
    CHECK(values == from_npy<float>(checkpoint, name, count));
    const std::vector<double> wide = checkpoint.read<double>(name);
    CHECK(std::equal(wide.begin(), wide.end(), values.begin(), values.end()));
    ++read;
  }
  CHECK(read > 20);
}

TEST_CASE("what a type cannot hold is refused, and a wrong name gets the nearest one") {
  OpenedCheckpoint checkpoint = open_path(case_path("safetensors/all_dtypes"));
  std::size_t floats = 0, integers = 0;
  for (const std::uint32_t index : leaf_tensors(checkpoint.manifest)) {
    const StoredTensor& tensor = checkpoint.manifest.tensors[index];
    const std::string name(tensor.name);
    INFO(name);
    if (is_floating(tensor.spec.dtype) && bits(tensor.spec.dtype) >= 8) {
      CHECK(refusal_of([&] { checkpoint.read<std::int64_t>(name); }).code == Code::kUnsupported);
      checkpoint.read<double>(name);
      ++floats;
    }
    if (tensor.spec.dtype == DType::kInt64) {
      const auto count = static_cast<std::size_t>(tensor.spec.shape.numel());
      CHECK(checkpoint.read<std::int64_t>(name) == from_npy<std::int64_t>(checkpoint, name, count));
      ++integers;
    }
  }
  CHECK(floats > 2);
  CHECK(integers > 0);
  const std::string known(checkpoint.manifest.tensors[leaf_tensors(checkpoint.manifest)[0]].name);
  const Status status = refusal_of([&] { checkpoint.read<float>(known + "x"); });
  CHECK(status.code == Code::kInvalidArgument);
  CHECK(status.hint.find(known) != std::string::npos);
}

}  // namespace read_tensor_test

// Elements that a load did not write are found, whatever the values around them are.
#include <catch2/catch.hpp>

#include "lib/live/untouched.h"

namespace live_canary_test {

using namespace tessera;

namespace {

Manifest one_tensor(DType dtype) {
  Manifest manifest;
  StoredTensor tensor;
  tensor.name = "w";
  tensor.spec = {dtype, {4, 6}};
  manifest.tensors.push_back(tensor);
  return manifest;
}

}  // namespace

TEST_CASE("the elements that nobody wrote are named, in dense and in strided memory") {
  const Manifest manifest = one_tensor(DType::kFloat32);
  for (const bool strided : {false, true}) {
    std::vector<float> memory(24 + 4);
    MemoryTarget target{
        0, Chunk::whole_of(Box::whole({4, 6})), reinterpret_cast<std::byte*>(memory.data()), {}};
    if (strided) target.strides = {1, 4};
    fill_canary(manifest, {&target, 1}, kFirstCanary);
    CHECK(canaries(manifest, target, kFirstCanary).size() == 24);
    CHECK(memory[24] == 0);  // outside of the target
    for (std::size_t i = 0; i < 24; ++i)
      if (i != 5 && i != 17) memory[i] = static_cast<float>(i);
    // Place 5 of the memory is element [0,5], or, the first dim innermost, [1,1].
    const std::vector<std::int64_t> expected = strided
                                                   ? std::vector<std::int64_t>{1 * 6 + 1, 1 * 6 + 4}
                                                   : std::vector<std::int64_t>{5, 17};
    CHECK(canaries(manifest, target, kFirstCanary) == expected);
    CHECK(canaries(manifest, target, kSecondCanary).empty());
  }
}

TEST_CASE("an element counts only when all of its bytes are the canary's") {
  const Manifest manifest = one_tensor(DType::kInt64);
  std::vector<std::int64_t> memory(24);
  const MemoryTarget target{
      0, Chunk::whole_of(Box::whole({4, 6})), reinterpret_cast<std::byte*>(memory.data()), {}};
  fill_canary(manifest, {&target, 1}, kFirstCanary);
  for (std::int64_t& element : memory) element ^= 1;
  CHECK(canaries(manifest, target, kFirstCanary).empty());
}

TEST_CASE("staged elements go to their places") {
  const Manifest manifest = one_tensor(DType::kFloat32);
  std::vector<float> dense(24), memory(24);
  for (std::size_t i = 0; i < 24; ++i) dense[i] = static_cast<float>(i);
  const MemoryTarget target{
      0, Chunk::whole_of(Box::whole({4, 6})), reinterpret_cast<std::byte*>(memory.data()), {1, 4}};
  const auto* bytes = reinterpret_cast<const std::byte*>(dense.data());
  CHECK_FALSE(holds(manifest, target, bytes));
  copy_to_target(manifest, bytes, target);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 6; ++j) CHECK(memory[j * 4 + i] == dense[i * 6 + j]);
  CHECK(holds(manifest, target, bytes));
  memory[23] = -memory[23];  // of the last row and column
  CHECK_FALSE(holds(manifest, target, bytes));
}

}  // namespace live_canary_test

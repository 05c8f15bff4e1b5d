#include <tessera/base/error.h>
#include <tessera/tensor/dtype.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

namespace dtype_test {

using namespace tessera;

TEST_CASE("every dtype has one torch name that reads back") {
  std::set<std::string_view> names;
  for (const DType dtype : all_dtypes()) {
    INFO(torch_name(dtype));
    CHECK(dtype_from_torch_name(torch_name(dtype)) == dtype);
    CHECK(names.insert(torch_name(dtype)).second);
  }
  CHECK(names.size() == 49);
  CHECK_FALSE(dtype_from_torch_name("float12"));
  CHECK_FALSE(dtype_from_torch_name(""));
  CHECK_FALSE(dtype_from_torch_name("torch.float32"));
}

TEST_CASE("safetensors names are those of its 0.8 release") {
  std::set<std::string> names;
  for (const DType dtype : all_dtypes()) {
    const auto name = safetensors_name(dtype);
    if (!name) continue;
    CHECK(dtype_from_safetensors_name(*name) == dtype);
    CHECK(names.insert(std::string(*name)).second);
  }
  CHECK(names ==
        std::set<std::string>{"BOOL",    "F4",      "F6_E2M3", "F6_E3M2",     "U8",          "I8",
                              "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
                              "U16",     "F16",     "BF16",    "I32",         "U32",         "F32",
                              "C64",     "F64",     "I64",     "U64"});
  CHECK_FALSE(dtype_from_safetensors_name(""));
  CHECK_FALSE(dtype_from_safetensors_name("f32"));
}

TEST_CASE("widths and swap units") {
  CHECK(bits(DType::kBool) == 8);
  CHECK(element_bytes(DType::kBFloat16) == 2);
  CHECK(element_bytes(DType::kComplex128) == 16);
  CHECK(swap_unit_bytes(DType::kComplex128) == 8);
  CHECK(swap_unit_bytes(DType::kComplex64) == 4);
  CHECK(swap_unit_bytes(DType::kComplex32) == 2);
  CHECK(swap_unit_bytes(DType::kInt8) == 1);
  CHECK(bits(DType::kFloat4) == 4);
  CHECK(bits(DType::kFloat6E2M3) == 6);
  CHECK(bits(DType::kFloat4E2M1FnX2) == 8);
  CHECK(is_sub_byte(DType::kFloat6E3M2));
  CHECK_FALSE(is_sub_byte(DType::kUInt4));
  CHECK_THROWS_AS(element_bytes(DType::kFloat4), Error);
  for (const DType dtype : all_dtypes()) {
    INFO(torch_name(dtype));
    if (!is_sub_byte(dtype) && !is_complex(dtype))
      CHECK(swap_unit_bytes(dtype) == element_bytes(dtype));
  }
}

TEST_CASE("every dtype is of one class") {
  for (const DType dtype : all_dtypes()) {
    INFO(torch_name(dtype));
    const bool opaque = torch_name(dtype).starts_with("bits");
    CHECK(is_floating(dtype) + is_complex(dtype) + is_quantized(dtype) + is_integer(dtype) +
              (dtype == DType::kBool) + opaque ==
          1);
  }
  CHECK(is_floating(DType::kFloat8E8M0Fnu));
  CHECK_FALSE(is_integer(DType::kBool));
  CHECK(is_integer(DType::kUInt4));
}

}  // namespace dtype_test

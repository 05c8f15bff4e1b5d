// The safetensors header: what is read, every rule that refuses, and the layout that is written.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/safetensors_header.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/archive_gather.h"

namespace tessera::safetensors_header_test {
namespace {

SafetensorsHeader parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_safetensors_header(as_bytes(json), data_bytes);
}

Status failure(const std::string& json, std::uint64_t data_bytes) {
  try {
    parse(json, data_bytes);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

/// {"w": {dtype, shape, offsets}}
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

Status file_failure(std::string content) {
  const test::ByteFile file(std::move(content));
  try {
    read_safetensors_header(ByteWindow::whole(file));
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

std::string length(std::uint64_t n) { return {reinterpret_cast<const char*>(&n), 8}; }

}  // namespace

TEST_CASE("a safetensors header lists tensors in its own order, and its metadata") {
  const auto header = parse(
      R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},"__metadata__":{"k":"v"},"a":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"},
          "e":{"dtype":"I64","shape":[0,7],"data_offsets":[26,26]}}   )",
      26);
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "b");
  CHECK(header.tensors[0].spec == TensorSpec{DType::kFloat32, Shape{2, 3}});
  CHECK(header.tensors[0].begin == 2);
  CHECK(header.tensors[0].end == 26);
  CHECK(header.tensors[1].spec == TensorSpec{DType::kBFloat16, Shape{}});
  CHECK(header.tensors[2].spec == TensorSpec{DType::kInt64, Shape{0, 7}});
  CHECK(header.metadata == std::map<std::string, std::string>{{"k", "v"}});
  CHECK(parse("{}", 0).tensors.empty());
}

TEST_CASE("safetensors knows every dtype of release 0.8") {
  const std::pair<const char*, int> kTypes[] = {
      {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
      {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
      {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& [name, bit_count] : kTypes) {
    CAPTURE(name);
    const std::uint64_t size = static_cast<std::uint64_t>(bit_count);  // 8 elements
    const auto header = parse(one(name, "[8]", fmt::format("[0,{}]", size)), size);
    CHECK(bits(header.tensors[0].spec.dtype) == bit_count);
    std::vector<SafetensorsTensor> again = header.tensors;
    layout_safetensors(again);
    CHECK(again[0].end == size);
  }
  CHECK(failure(one("F128", "[1]", "[0,16]"), 16).code == Code::kUnsupported);
}

TEST_CASE("each rule of a safetensors header refuses alone") {
  const std::tuple<std::string, std::uint64_t, std::string> kCases[] = {
      {one("F32", "[2]", "[0,7]"), 7, "disagree"},
      {one("F32", "[2]", "[0,8]"), 9, "1 bytes follow"},
      {one("F32", "[2]", "[0,8]"), 7, "leave the file"},
      {one("F32", "[2]", "[4,12]"), 12, "hole"},
      {one("F32", "[2]", "[8,0]"), 8, "backwards"},
      {one("F32", "[-2]", "[0,8]"), 8, "negative"},
      {one("F32", "[2.0]", "[0,8]"), 8, "not whole"},
      {one("F32", "[2]", "[-0,8]"), 8, "the integer -0"},
      {one("F32", "[-0]", "[0,0]"), 0, "the integer -0"},
      {std::string("{}\0", 3), 0, "NUL"},
      {std::string("{} \0\0", 5), 0, "NUL"},
      {one("F32", "[2]", "[0,8,9]"), 8, "two numbers"},
      {one("F32", "[2]", "[-1,7]"), 8, "negative"},
      {one("F32", "[4611686018427387904,4]", "[0,8]"), 8, "2^63"},
      {one("F32", "[4611686018427387904]", "[0,8]"), 8, "overflow"},
      {one("F4", "[3]", "[0,1]"), 1, "whole bytes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "duplicate"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4, "duplicate"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, "missing"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, "missing"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1}})", 4, "unexpected"},
      {R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", 4, "deeper"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, "unexpected"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, "unexpected"},
      {R"({"a":[1]})", 0, "unexpected"},
      {R"({"a":1})", 0, "unexpected"},
      {R"({"__metadata__":{"k":1}})", 0, "not a string"},
      {R"({"__metadata__":{"k":{}}})", 0, "unexpected"},
      {R"({"__metadata__":"k"})", 0, "unexpected"},
      {R"([])", 0, "start with"},
      {R"( {})", 0, "start with"},
      {"", 0, "start with"},
      {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "NUL"},
  };
  for (const auto& [json, data_bytes, words] : kCases) {
    CAPTURE(json);
    const Status status = failure(json, data_bytes);
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message, Catch::Contains(words));
  }
}

TEST_CASE("errors of a safetensors header name the tensor") {
  CHECK(failure(one("F32", "[2]", "[0,7]"), 7).context.tensor == "w");
  CHECK(failure(one("F32", "[2]", "[4,12]"), 12).context.tensor == "w");
}

TEST_CASE("a declared header length is never believed") {
  CHECK_THAT(file_failure("abc").message, Catch::Contains("too few"));
  CHECK_THAT(file_failure(length(UINT64_MAX) + "{}").message, Catch::Contains("allowed"));
  CHECK_THAT(file_failure(length(100'000'001) + "{}").message, Catch::Contains("allowed"));
  CHECK_THAT(file_failure(length(3) + "{}").message, Catch::Contains("in a file of 10"));
  CHECK(file_failure(length(2) + "{}").code == Code::kOk);
}

TEST_CASE("a file too short or too long is reported instead of refused when asked") {
  const std::string json = one("F32", "[2]", "[0,8]");
  CHECK(parse_safetensors_header(as_bytes(json), 5, true).missing_bytes == 3);
  CHECK(parse_safetensors_header(as_bytes(json), 9, true).trailing_bytes == 1);
  CHECK(parse_safetensors_header(as_bytes(json), 8, true).trailing_bytes == 0);
  CHECK_THROWS_AS(parse_safetensors_header(as_bytes(json), 5), Error);
  CHECK_THROWS_AS(parse_safetensors_header(as_bytes(json), 9), Error);
}

TEST_CASE("the written layout starts with wide dtypes, then goes by name") {
  std::vector<SafetensorsTensor> tensors = {{"flag", {DType::kBool, Shape{3}}, 0, 0},
                                            {"z", {DType::kFloat32, Shape{1}}, 0, 0},
                                            {"a", {DType::kFloat32, Shape{2}}, 0, 0},
                                            {"half", {DType::kFloat16, Shape{1}}, 0, 0},
                                            {"wide", {DType::kInt64, Shape{}}, 0, 0}};
  layout_safetensors(tensors);
  std::string order;
  for (const auto& tensor : tensors)
    order += fmt::format("{}[{},{}) ", tensor.name, tensor.begin, tensor.end);
  CHECK(order == "wide[0,8) a[8,16) z[16,20) half[20,22) flag[22,25) ");
  for (const std::uint64_t alignment : {8, 4096}) {
    const Bytes bytes = render_safetensors_header(tensors, {{"format", "pt"}}, alignment);
    CHECK(bytes.size() % alignment == 0);
    const auto back = parse_safetensors_header(ByteView(bytes).subspan(8), 25);
    CHECK(back.data_offset == bytes.size());
    CHECK(back.metadata.at("format") == "pt");
    REQUIRE(back.tensors.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(back.tensors[i].name == tensors[i].name);
      CHECK(back.tensors[i].spec == tensors[i].spec);
      CHECK(back.tensors[i].begin == tensors[i].begin);
    }
  }
}

TEST_CASE("what safetensors cannot hold is refused by name") {
  const auto layout = [](std::string name, DType dtype) {
    std::vector<SafetensorsTensor> tensors = {{std::move(name), {dtype, Shape{2}}, 0, 0}};
    try {
      layout_safetensors(tensors);
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      return error.status().to_string();
    }
    return std::string("accepted");
  };
  CHECK_THAT(layout("w", DType::kComplex128),
             Catch::Contains("complex128") && Catch::Contains("\"w\""));
  CHECK_THAT(layout("w", DType::kQInt8), Catch::Contains("qint8"));
  CHECK_THAT(layout("__metadata__", DType::kFloat32), Catch::Contains("reserves"));
  CHECK_THAT(layout(std::string("a\0b", 3), DType::kFloat32), Catch::Contains("name"));
  CHECK_THAT(layout("\xFF", DType::kFloat32), Catch::Contains("name"));
  CHECK(layout("", DType::kFloat32) == "accepted");
}

}  // namespace tessera::safetensors_header_test

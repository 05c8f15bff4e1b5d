// Casts against PyTorch's own results: data/cast_table.txt, written by data/make_cast_table.py.
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace cast_test {

using namespace tessera;

namespace {

std::vector<std::vector<std::string>> table(const std::string& kind) {
  std::ifstream in(TESSERA_SOURCE_DIR "/tests/tensor/data/cast_table.txt");
  REQUIRE(in);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<std::string> row;
    for (std::string word; words >> word;) row.push_back(word);
    if (!row.empty() && row[0] == kind) rows.push_back(std::move(row));
  }
  REQUIRE_FALSE(rows.empty());
  return rows;
}

DType dtype_named(const std::string& name) {
  const auto dtype = dtype_from_torch_name(name);
  REQUIRE(dtype);
  return *dtype;
}

Bytes pattern_bytes(DType dtype, const std::vector<std::uint64_t>& patterns) {
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  Bytes bytes(patterns.size() * width);
  for (std::size_t i = 0; i < patterns.size(); ++i)
    std::memcpy(bytes.data() + i * width, &patterns[i], width);
  return bytes;
}

std::uint64_t pattern_at(DType dtype, const Bytes& bytes, std::size_t i) {
  std::uint64_t pattern = 0;
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  std::memcpy(&pattern, bytes.data() + i * width, width);
  return pattern;
}

Bytes cast(DType from, const Bytes& source, DType to, CastCounts* counts = nullptr) {
  const std::size_t numel = source.size() / static_cast<std::size_t>(element_bytes(from));
  Bytes out(numel * static_cast<std::size_t>(element_bytes(to)));
  const CastCounts found = cast_elements(from, source, to, out);
  if (counts != nullptr) *counts = found;
  return out;
}

bool is_nan(DType dtype, std::uint64_t pattern) {
  if (!is_floating(dtype)) return false;
  double value = 0;
  to_double(dtype, pattern_bytes(dtype, {pattern}), {&value, 1});
  return std::isnan(value);
}

Bytes floats(const std::vector<float>& values) {
  Bytes bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

CastCounts counts_of(const std::vector<float>& values, DType to) {
  CastCounts counts;
  cast(DType::kFloat32, floats(values), to, &counts);
  return counts;
}

}  // namespace

TEST_CASE("all patterns of the 8-bit floats widen as in PyTorch") {
  int types = 0;
  for (const auto& row : table("decode")) {
    const DType dtype = dtype_named(row[1]);
    REQUIRE(row.size() == 2 + 256);
    for (std::size_t code = 0; code < 256; ++code) {
      const std::uint64_t expected = std::stoull(row[2 + code], nullptr, 16);
      const Bytes wide = cast(dtype, pattern_bytes(dtype, {code}), DType::kFloat32);
      const std::uint64_t actual = pattern_at(DType::kFloat32, wide, 0);
      INFO(row[1] << " pattern " << code);
      if (is_nan(DType::kFloat32, expected)) {
        REQUIRE(is_nan(DType::kFloat32, actual));
      } else {
        REQUIRE(actual == expected);
      }
    }
    ++types;
  }
  CHECK(types == 5);
}

TEST_CASE("all patterns of the 16-bit floats widen as in PyTorch") {
  for (const auto& row : table("decode_hash")) {
    const DType dtype = dtype_named(row[1]);
    std::vector<std::uint64_t> codes(65536);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i;
    const Bytes wide = cast(dtype, pattern_bytes(dtype, codes), DType::kFloat32);
    std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
    for (std::size_t i = 0; i < codes.size(); ++i) {
      std::uint64_t pattern = pattern_at(DType::kFloat32, wide, i);
      if (is_nan(DType::kFloat32, pattern)) pattern = 0x7FC00000;
      for (int b = 0; b < 4; ++b) hash = (hash ^ ((pattern >> (8 * b)) & 0xFF)) * 0x100000001B3u;
    }
    INFO(row[1]);
    CHECK(hash == std::stoull(row[2], nullptr, 16));
  }
}

TEST_CASE("every pattern survives float32 and back") {
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3Fn, DType::kFloat8E4M3FnUz,
        DType::kFloat8E5M2, DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu}) {
    std::vector<std::uint64_t> codes(std::size_t{1} << bits(dtype));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i;
    const Bytes source = pattern_bytes(dtype, codes);
    const Bytes back = cast(DType::kFloat32, cast(dtype, source, DType::kFloat32), dtype);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const std::uint64_t code = pattern_at(dtype, back, i);
      INFO(torch_name(dtype) << " pattern " << i);
      if (is_nan(dtype, i)) {
        REQUIRE(is_nan(dtype, code));
      } else {
        REQUIRE(code == i);
      }
    }
  }
}

TEST_CASE("casts give PyTorch's bits") {
  std::map<std::string, int> checked;
  for (const auto& row : table("cast")) {
    const DType from = dtype_named(row[1]);
    const DType to = dtype_named(row[2]);
    for (std::size_t i = 3; i < row.size(); ++i) {
      const auto colon = row[i].find(':');
      const std::uint64_t input = std::stoull(row[i].substr(0, colon), nullptr, 16);
      const std::uint64_t expected = std::stoull(row[i].substr(colon + 1), nullptr, 16);
      const std::uint64_t actual = pattern_at(to, cast(from, pattern_bytes(from, {input}), to), 0);
      ++checked[row[1] + " to " + row[2]];
      INFO(row[1] << " to " << row[2] << ", " << row[i] << ", got " << std::hex << actual);
      if (is_nan(to, expected)) {
        CHECK(is_nan(to, actual));
      } else {
        CHECK(actual == expected);
      }
    }
  }
  CHECK(checked.size() > 180);
}

TEST_CASE("blocks and single elements cast alike") {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(static_cast<float>(i * 2654435761u % 4096) - 2048.0f,
                           static_cast<int>(i % 40) - 20);
  const Bytes all = cast(DType::kFloat32, floats(values), DType::kBFloat16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Bytes one = cast(DType::kFloat32, floats({values[i]}), DType::kBFloat16);
    REQUIRE(pattern_at(DType::kBFloat16, one, 0) == pattern_at(DType::kBFloat16, all, i));
  }
}

TEST_CASE("finite values that do not fit are counted") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {1, 65504, 65519, 65520, -1e30f, inf, -inf, nan};
  CHECK(counts_of(values, DType::kFloat16).overflow_to_inf == 2);
  CHECK(counts_of(values, DType::kBFloat16).overflow_to_inf == 0);
  CHECK(counts_of({3.4e38f, -3.4e38f}, DType::kBFloat16).overflow_to_inf == 2);
  CHECK(counts_of({448, 464, 465, -500, inf}, DType::kFloat8E4M3Fn).overflow_to_inf == 2);
  CHECK(counts_of({1, -1, 0}, DType::kFloat8E8M0Fnu).overflow_to_inf == 1);  // no sign
  CHECK(counts_of(values, DType::kFloat32).overflow_to_inf == 0);
}

TEST_CASE("non-zero values that become zero are counted") {
  CHECK(counts_of({0.0f, -0.0f, 1e-45f, 2.9e-8f, 3e-8f, -1e-20f}, DType::kFloat16)
            .underflow_to_zero == 3);
  CHECK(counts_of({0.5f, -0.5f, 1.0f, 0.0f}, DType::kInt32).underflow_to_zero == 2);
  CHECK(counts_of({1e-30f, 0.0f}, DType::kFloat8E5M2).underflow_to_zero == 1);
}

TEST_CASE("floats outside an integer's range saturate and are counted") {
  CastCounts counts;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Bytes out =
      cast(DType::kFloat32, floats({300, -1, 255.9f, nan, -0.9f}), DType::kUInt8, &counts);
  CHECK(pattern_at(DType::kUInt8, out, 0) == 255);
  CHECK(pattern_at(DType::kUInt8, out, 1) == 0);
  CHECK(pattern_at(DType::kUInt8, out, 2) == 255);
  CHECK(pattern_at(DType::kUInt8, out, 3) == 0);
  CHECK(pattern_at(DType::kUInt8, out, 4) == 0);
  CHECK(counts.overflow_to_inf == 3);  // 300, -1, NaN
  CHECK(counts.underflow_to_zero == 1);
  const Bytes wide = cast(DType::kFloat32, floats({9.3e18f, -9.3e18f, -9223372036854775808.0f}),
                          DType::kInt64, &counts);
  CHECK(pattern_at(DType::kInt64, wide, 0) == 0x7FFFFFFFFFFFFFFFu);
  CHECK(pattern_at(DType::kInt64, wide, 1) == 0x8000000000000000u);
  CHECK(pattern_at(DType::kInt64, wide, 2) == 0x8000000000000000u);
  CHECK(counts.overflow_to_inf == 2);
}

TEST_CASE("integers that do not fit wrap and are counted") {
  CastCounts counts;
  const Bytes out = cast(DType::kInt32, pattern_bytes(DType::kInt32, {300, 0xFFFFFFFF, 7}),
                         DType::kUInt8, &counts);
  CHECK(pattern_at(DType::kUInt8, out, 0) == 44);
  CHECK(pattern_at(DType::kUInt8, out, 1) == 255);
  CHECK(pattern_at(DType::kUInt8, out, 2) == 7);
  CHECK(counts.overflow_to_inf == 2);
}

TEST_CASE("any non-zero byte is a true bool") {
  const Bytes out = cast(DType::kBool, pattern_bytes(DType::kBool, {0, 1, 2, 255}), DType::kInt8);
  CHECK(out == Bytes{std::byte{0}, std::byte{1}, std::byte{1}, std::byte{1}});
}

TEST_CASE("types without arithmetic are refused") {
  for (const DType dtype : {DType::kComplex64, DType::kQInt8, DType::kFloat4,
                            DType::kFloat4E2M1FnX2, DType::kBits8, DType::kUInt4}) {
    INFO(torch_name(dtype));
    for (const bool as_source : {true, false}) {
      try {
        cast_elements(as_source ? dtype : DType::kFloat32, {}, as_source ? DType::kFloat32 : dtype,
                      {});
        FAIL("accepted");
      } catch (const Error& error) {
        CHECK(error.code() == Code::kUnsupported);
      }
    }
  }
}

TEST_CASE("a cast to the same type copies bits") {
  const Bytes nans = pattern_bytes(DType::kFloat32, {0x7F800001, 0xFFC12345, 0x80000000});
  CHECK(cast(DType::kFloat32, nans, DType::kFloat32) == nans);
  CHECK(cast(DType::kFloat32, {}, DType::kFloat16).empty());
}

}  // namespace cast_test

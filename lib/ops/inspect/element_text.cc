#include "lib/ops/inspect/element_text.h"

#include <fmt/format.h>
#include <tessera/base/bytes.h>
#include <tessera/tensor/cast.h>

#include <cmath>
#include <span>

namespace tessera {
namespace {

std::string real_text(double value, DType dtype) {
  if (dtype == DType::kBool) return value != 0 ? "True" : "False";
  if (dtype == DType::kFloat64) return fmt::format("{}", value);
  // A float32 that holds the value prints it shortest; narrower types are exact in it.
  return fmt::format("{}", static_cast<float>(value));
}

DType part_type(DType complex) {
  return complex == DType::kComplex32   ? DType::kFloat16
         : complex == DType::kComplex64 ? DType::kFloat32
                                        : DType::kFloat64;
}

std::string integer_text(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kUInt64:
      return fmt::format("{}", load_le<std::uint64_t>(at));
    case DType::kInt64:
      return fmt::format("{}", load_le<std::int64_t>(at));
    default:
      return "";
  }
}

std::string hex_text(const std::byte* at, std::size_t width) {
  std::string text = "0x";
  for (std::size_t i = width; i-- > 0;)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(at[i]));
  return text;
}

}  // namespace

bool has_number_text(DType dtype) { return is_castable(dtype) || is_complex(dtype); }

std::vector<std::string> element_texts(DType dtype, ByteView bytes, std::int64_t count) {
  std::vector<std::string> texts;
  const auto n = static_cast<std::size_t>(count);
  if (is_complex(dtype)) {
    std::vector<double> parts(2 * n);
    to_double(part_type(dtype), bytes, parts);
    for (std::size_t i = 0; i < n; ++i) {
      const std::string im = real_text(parts[2 * i + 1], part_type(dtype));
      texts.push_back(fmt::format("{}{}{}j", real_text(parts[2 * i], part_type(dtype)),
                                  im.starts_with('-') ? "" : "+", im));
    }
    return texts;
  }
  if (!is_castable(dtype)) {
    const std::size_t width = n ? std::max<std::size_t>(1, bytes.size() / n) : 1;
    for (std::size_t i = 0; i + width <= bytes.size(); i += width)
      texts.push_back(hex_text(&bytes[i], width));
    return texts;
  }
  std::vector<double> values(n);
  to_double(dtype, bytes, values);
  for (std::size_t i = 0; i < n; ++i) {
    // 64-bit integers do not all fit a double.
    std::string exact =
        bits(dtype) == 64 && is_integer(dtype) ? integer_text(dtype, &bytes[8 * i]) : "";
    if (exact.empty())
      exact = is_integer(dtype) ? fmt::format("{:.0f}", values[i]) : real_text(values[i], dtype);
    texts.push_back(std::move(exact));
  }
  return texts;
}

}  // namespace tessera

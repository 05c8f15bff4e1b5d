#include "lib/state/quant_codes.h"

#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <cstring>

namespace tessera {

std::int64_t CodePacking::per_unit() const {
  switch (form) {
    case CodeForm::kElements:
      return 1;
    case CodeForm::kLowFirst:
    case CodeForm::kHighFirst:
      return 2 * element_bytes(dtype);
    case CodeForm::kWords:
      return 32 / bits;
  }
  return 1;
}

CodeTable numbers_of(DType dtype) {
  Bytes codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  CodeTable table;
  cast_elements(dtype, codes, DType::kFloat32, std::as_writable_bytes(std::span(table)));
  return table;
}

CodeTable e2m1_numbers() {
  constexpr std::array kMagnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  CodeTable table{};
  for (std::size_t i = 0; i < kMagnitudes.size(); ++i) {
    table[i] = kMagnitudes[i];
    table[i + kMagnitudes.size()] = -kMagnitudes[i];
  }
  return table;
}

CodeReader::CodeReader(const CodePacking& packing, const CodeTable& table)
    : packing_(packing), table_(table) {
  const bool high_first = packing.form == CodeForm::kHighFirst;
  if (!high_first && packing.form != CodeForm::kLowFirst) return;
  for (std::size_t byte = 0; byte < pairs_.size(); ++byte) {
    const float low = table[byte & 15], high = table[byte >> 4];
    pairs_[byte] = high_first ? std::array{high, low} : std::array{low, high};
  }
}

void CodeReader::read(const std::byte* units, std::int64_t first, std::span<float> out) const {
  if (packing_.form == CodeForm::kWords) return read_words(units, first, out);
  if (packing_.form != CodeForm::kElements) return read_halves(units, first, out);
  if (bits(packing_.dtype) == 8) return read_bytes(units, first, out);
  const auto width = static_cast<std::size_t>(element_bytes(packing_.dtype));
  cast_elements(packing_.dtype,
                {units + static_cast<std::size_t>(first) * width, out.size() * width},
                DType::kFloat32, std::as_writable_bytes(out));
}

void CodeReader::read_bytes(const std::byte* units, std::int64_t first,
                            std::span<float> out) const {
  const std::byte* code = units + first;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = table_[static_cast<std::uint8_t>(code[i])];
}

void CodeReader::read_halves(const std::byte* units, std::int64_t first,
                             std::span<float> out) const {
  const std::byte* unit = units + first / 2;
  std::size_t i = 0;
  if (first % 2 != 0 && !out.empty()) out[i++] = pairs_[static_cast<std::uint8_t>(*unit++)][1];
  for (; i + 2 <= out.size(); i += 2)
    std::memcpy(&out[i], pairs_[static_cast<std::uint8_t>(*unit++)].data(), 2 * sizeof(float));
  if (i < out.size()) out[i] = pairs_[static_cast<std::uint8_t>(*unit)][0];
}

void CodeReader::read_words(const std::byte* units, std::int64_t first,
                            std::span<float> out) const {
  const std::int64_t per = packing_.per_unit();
  const auto width = static_cast<unsigned>(packing_.bits);
  const std::uint32_t mask = width == 32 ? ~0U : (1U << width) - 1;
  const std::byte* unit = units + first / per * 4;
  std::int64_t at = first % per;
  for (std::size_t i = 0; i < out.size(); unit += 4, at = 0) {
    std::uint32_t word = load_le<std::uint32_t>(unit) >> (width * static_cast<unsigned>(at));
    for (; at < per && i < out.size(); ++at, word >>= width)
      out[i++] = static_cast<float>(static_cast<std::int32_t>(word & mask) - packing_.bias);
  }
}

}  // namespace tessera

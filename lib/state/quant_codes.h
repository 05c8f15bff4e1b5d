#pragma once
// Codes of quantized weights as numbers: how they are packed, and what they stand for before a scale
// is applied. Pure.
#include <tessera/base/bytes.h>
#include <tessera/tensor/dtype.h>

#include <array>
#include <cstdint>
#include <span>

namespace tessera {

enum class CodeForm : std::uint8_t {
  kElements,   // one per element
  kLowFirst,   // two of 4 bits in a byte, the lower half first; elements may be of several bytes
  kHighFirst,  // the upper half first
  kWords,      // 32 / bits of them in a 32-bit word, from its lowest bits on
};

struct CodePacking {
  CodeForm form = CodeForm::kElements;
  DType dtype = DType::kUInt8;  // of the tensor that holds them
  int bits = 8;                 // kWords
  int bias = 0;                 // kWords: taken off each code

  /// Codes in one element of the tensor that holds them.
  std::int64_t per_unit() const;
};

/// What codes of 8 bits and less stand for, by code.
using CodeTable = std::array<float, 256>;
/// The numbers that elements of a type of one byte are. Precondition: is_castable(dtype), one byte.
CodeTable numbers_of(DType dtype);
/// Four-bit floats (sign, two bits of exponent, one of mantissa): OCP's E2M1.
CodeTable e2m1_numbers();

class CodeReader {
 public:
  /// `table`: of 256 numbers for kElements of one byte, of 16 for two in a byte; unused otherwise.
  CodeReader(const CodePacking& packing, const CodeTable& table);

  /// Codes [first, first + out.size()) counted from the first code of `units`.
  void read(const std::byte* units, std::int64_t first, std::span<float> out) const;

 private:
  void read_bytes(const std::byte* units, std::int64_t first, std::span<float> out) const;
  void read_halves(const std::byte* units, std::int64_t first, std::span<float> out) const;
  void read_words(const std::byte* units, std::int64_t first, std::span<float> out) const;

  CodePacking packing_;
  CodeTable table_;
  std::array<std::array<float, 2>, 256> pairs_;  // of two codes in a byte
};

}  // namespace tessera

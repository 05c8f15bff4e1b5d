#include "lib/encoding/pickle_number.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera {
namespace {

using Words = std::vector<std::uint32_t>;  // little-endian magnitude
constexpr std::uint32_t kChunk = 1'000'000'000;

/// words /= kChunk; returns the remainder.
std::uint32_t divide(Words& words) {
  std::uint64_t remainder = 0;
  for (std::size_t i = words.size(); i-- > 0;) {
    const std::uint64_t value = (remainder << 32) | words[i];
    words[i] = static_cast<std::uint32_t>(value / kChunk);
    remainder = value % kChunk;
  }
  while (!words.empty() && words.back() == 0) words.pop_back();
  return static_cast<std::uint32_t>(remainder);
}

void multiply_add(Words& words, std::uint32_t factor, std::uint32_t addend) {
  std::uint64_t carry = addend;
  for (std::uint32_t& word : words) {
    carry += static_cast<std::uint64_t>(word) * factor;
    word = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  if (carry) words.push_back(static_cast<std::uint32_t>(carry));
}

/// Two's complement bytes <-> negated bytes.
void negate(std::string& bytes) {
  unsigned carry = 1;
  for (char& c : bytes) {
    const unsigned value = static_cast<unsigned char>(~c) + carry;
    c = static_cast<char>(value);
    carry = value >> 8;
  }
}

}  // namespace

std::string decimal_from_twos_complement(std::string_view little_endian) {
  std::string bytes(little_endian);
  const bool negative = !bytes.empty() && (bytes.back() & 0x80);
  if (negative) negate(bytes);
  Words words((bytes.size() + 3) / 4);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    words[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (i % 4 * 8);
  while (!words.empty() && words.back() == 0) words.pop_back();
  if (words.empty()) return "0";
  std::string reversed;
  while (!words.empty()) {
    std::uint32_t chunk = divide(words);
    for (int digit = 0; digit < 9 && (chunk != 0 || !words.empty()); ++digit, chunk /= 10)
      reversed.push_back(static_cast<char>('0' + chunk % 10));
  }
  if (negative) reversed.push_back('-');
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

std::string twos_complement_from_decimal(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  if (negative || decimal.starts_with('+')) decimal.remove_prefix(1);
  Words words;
  for (const char digit : decimal) multiply_add(words, 10, static_cast<std::uint32_t>(digit - '0'));
  std::string bytes;
  for (const std::uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(word >> shift));
  }
  bytes.push_back('\0');
  if (negative) negate(bytes);
  const char filler = bytes.back() & 0x80 ? '\xff' : '\0';
  while (bytes.size() > 1 && bytes.back() == filler &&
         ((bytes[bytes.size() - 2] ^ filler) & 0x80) == 0)
    bytes.pop_back();
  return bytes == std::string(1, '\0') ? std::string() : bytes;
}

bool is_decimal_integer(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return is_decimal(text);
}

}  // namespace tessera

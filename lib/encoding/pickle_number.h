#pragma once
// Integers beyond int64 between pickle's little-endian two's complement and decimal text.
#include <string>
#include <string_view>

namespace tessera {

/// Longest integer converted, in bytes: conversion is quadratic (Python limits it, too).
inline constexpr std::size_t kMaxLongBytes = 1024;
inline constexpr std::size_t kMaxLongDigits = 2400;

/// "-1208925819614629174706176". Precondition: at most kMaxLongBytes.
std::string decimal_from_twos_complement(std::string_view little_endian);
/// Shortest two's complement. Precondition: an optional sign and at most kMaxLongDigits digits.
std::string twos_complement_from_decimal(std::string_view decimal);
/// Optional sign, then digits only.
bool is_decimal_integer(std::string_view text);

}  // namespace tessera

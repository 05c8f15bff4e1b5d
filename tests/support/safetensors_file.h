#pragma once
// A safetensors file made by hand.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tessera::testing {

/// The length of `header`, the header, padded with blanks to 8 bytes, and the data.
inline std::string safetensors_of(std::string header, std::string_view data) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}

}  // namespace tessera::testing

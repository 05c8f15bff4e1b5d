#pragma once
// UTF-8 as Python's "surrogatepass" reads and writes it: lone surrogates are three bytes like any
// other code point.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

bool is_python_utf8(std::string_view text);
void append_utf8(std::string& out, std::uint32_t code_point);
/// Bytes to text by Latin-1: every byte is a code point.
std::string utf8_from_latin1(std::string_view bytes);
/// The inverse; false when a code point is above 255. Precondition: valid UTF-8.
bool latin1_from_utf8(std::string_view text, std::string& out);

}  // namespace tessera

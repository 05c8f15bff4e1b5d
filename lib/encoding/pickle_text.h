#pragma once
// Text arguments of pickle protocol 0.
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// A quoted Python 2 str literal ('it\'s\x00') to its bytes; nullopt if malformed.
std::optional<std::string> parse_python_string(std::string_view literal);
/// Python's raw-unicode-escape (Latin-1 bytes, \uXXXX, \UXXXXXXXX) to UTF-8; nullopt if malformed.
std::optional<std::string> parse_raw_unicode_escape(std::string_view text);

}  // namespace tessera

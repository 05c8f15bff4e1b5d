#pragma once
// Text the user writes or reads: globs, sizes, safe printing, near misses, natural order.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Whole-name match; `*` is any run (dots included), `?` one character, `[a-c]` a class, `\`
/// quotes. Linear in |pattern| x |name| at worst.
bool glob_match(std::string_view pattern, std::string_view name);

/// coreutils sizes: 512, 5K = 5KiB = 5120, 5KB = 5000, up to E. Throws kInvalidArgument.
std::uint64_t parse_size(std::string_view text);

/// "1.5 GiB": at most four significant characters, for people.
std::string format_bytes(std::uint64_t bytes);

/// "1 element", "2 elements".
std::string with_noun(std::int64_t count, std::string_view noun);

/// Escapes `text` so that a name cannot control a terminal or look like another name: control
/// characters, DEL and invalid UTF-8 become \n, \t or \xNN; characters that reorder text or have no
/// width become \uNNNN.
std::string printable(std::string_view text);

/// The candidate with the smallest edit distance to `word`, or empty when none is near.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

/// ASCII's digits, whatever the locale.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Digits and nothing else, at least one.
bool is_decimal(std::string_view text);

/// Digits compare as numbers: "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b);

bool is_valid_utf8(std::string_view text);

std::string to_hex(std::span<const std::uint8_t> bytes);

std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace tessera

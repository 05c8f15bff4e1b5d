#pragma once
// Numbers as people read them, and pictures of numbers in block characters.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tools {

std::string count_text(std::uint64_t count);                                // "1,234,567"
std::string counted(std::uint64_t count, std::string_view noun);            // "1 file", "2 files"
std::string real_text(double value, int digits = 4);                        // "1.234e-05", "nan"
std::string real_text(const std::optional<double>& value, int digits = 4);  // "-" when absent
std::string percent_text(double fraction);                                  // "33.3 %", "<0.1 %"
std::string seconds_text(double seconds);        // "0.42 s", "2 min 05 s", "3 h 07 min"
std::string age_text(double seconds);            // "12 s", "5 min", "3 h", "2 days"
std::string rate_text(double bytes_per_second);  // "1.2 GiB/s"
std::string shape_text(std::span<const std::int64_t> shape);  // "[8, 3]", "scalar"
std::string index_text(std::span<const std::int64_t> index);  // "[8, 3]", "[]"

/// What is left when digits go: equal for messages that differ in numbers alone.
std::string without_numbers(std::string_view text);

/// A bar of `fraction` of `width` columns in eighths.
std::string bar(double fraction, int width);
/// One column per count, heights in eighths; a count above 0 is never blank.
std::string sparkline(std::span<const std::int64_t> counts);
/// `counts` gathered into `columns` columns.
std::vector<std::int64_t> rebinned(std::span<const std::int64_t> counts, std::size_t columns);
/// `height` lines of the same, tallest column full.
std::vector<std::string> histogram_lines(std::span<const std::int64_t> counts, int height);

}  // namespace tessera::tools

#include "tools/render/number_text.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>

namespace tessera::tools {
namespace {

constexpr const char* kRising[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr const char* kGrowing[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

std::int64_t largest(std::span<const std::int64_t> counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

/// Height of `count` in eighths when `top` is `height` whole cells; at least one for what is there.
int eighths(std::int64_t count, std::int64_t top, int height) {
  if (count <= 0 || top <= 0) return 0;
  const double part = static_cast<double>(count) / static_cast<double>(top);
  return std::max(1, static_cast<int>(std::lround(part * 8 * height)));
}

}  // namespace

std::string count_text(std::uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count_text(count), noun, count == 1 ? "" : "s");
}

std::string real_text(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{:.{}g}", value, digits);
}
std::string real_text(const std::optional<double>& value, int digits) {
  return value ? real_text(*value, digits) : "-";
}

std::string percent_text(double fraction) {
  const double percent = fraction * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  return fmt::format("{:.1f} %", percent);
}

std::string seconds_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 10) return fmt::format("{:.2f} s", seconds);
  if (seconds < 60) return fmt::format("{:.0f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string age_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e11));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min", whole / 60);
  if (whole < 48 * 3600) return fmt::format("{} h", whole / 3600);
  return fmt::format("{} days", whole / 86400);
}

std::string rate_text(double bytes_per_second) {
  if (!(bytes_per_second >= 0) || bytes_per_second > 1e18) return "?/s";
  return format_bytes(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

std::string index_text(std::span<const std::int64_t> index) {
  return fmt::format("[{}]", fmt::join(index, ", "));
}
std::string shape_text(std::span<const std::int64_t> shape) {
  return shape.empty() ? "scalar" : index_text(shape);
}

std::string without_numbers(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c < '0' || c > '9') out += c;
  return out;
}

std::string bar(double fraction, int width) {
  const int cells = std::clamp(static_cast<int>(std::lround(fraction * 8 * width)),
                               fraction > 0 ? 1 : 0, 8 * width);
  std::string result;
  for (int i = 0; i < cells / 8; ++i) result += kGrowing[8];
  return result + kGrowing[cells % 8];
}

std::string sparkline(std::span<const std::int64_t> counts) {
  const std::int64_t top = largest(counts);
  std::string result;
  for (const std::int64_t count : counts) result += kRising[std::min(8, eighths(count, top, 1))];
  return result;
}

std::vector<std::int64_t> rebinned(std::span<const std::int64_t> counts, std::size_t columns) {
  if (counts.size() <= columns || columns == 0) return {counts.begin(), counts.end()};
  std::vector<std::int64_t> result(columns, 0);
  for (std::size_t i = 0; i < counts.size(); ++i) result[i * columns / counts.size()] += counts[i];
  return result;
}

std::vector<std::string> histogram_lines(std::span<const std::int64_t> counts, int height) {
  const std::int64_t top = largest(counts);
  std::vector<std::string> lines;
  for (int row = height - 1; row >= 0; --row) {
    std::string line;
    for (const std::int64_t count : counts) {
      line += kRising[std::clamp(eighths(count, top, height) - 8 * row, 0, 8)];
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera::tools

#include "tools/args/values.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/small_file.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/format/training_folder.h>
#include <tessera/reshard/memory_limit.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace tessera::tools {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& value, std::string_view wanted,
                         std::string_view hint = {}) {
  fail(Code::kInvalidArgument,
       fmt::format("{} \"{}\": expected {}{}", flag, printable(value), wanted, hint));
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  const std::string near = nearest(word, views);
  return near.empty() ? std::string() : fmt::format("; did you mean {}?", near);
}

std::vector<std::string> choices_of(std::string_view placeholder) {
  std::vector<std::string> result;
  if (placeholder.find('|') == std::string_view::npos) return result;
  for (const std::string_view part : split(placeholder, '|')) result.emplace_back(part);
  return result;
}

std::string one_of(const std::string& flag, const std::string& value, std::string_view choices) {
  const std::vector<std::string> all = choices_of(choices);
  if (std::find(all.begin(), all.end(), value) != all.end()) return value;
  refuse(flag, value, fmt::format("one of {}", fmt::join(all, ", ")), did_you_mean(value, all));
}

std::vector<std::string> handled_formats(bool to_write) {
  std::vector<std::string> ids;
  for (const FormatDriver* driver : all_formats())
    if (!to_write || driver->capabilities().writes || as_training_folder(*driver) != nullptr)
      ids.emplace_back(driver->id());
  if (!to_write) return ids;
  for (const FormatDriver* driver : all_formats())
    if (const std::string_view preset = driver->capabilities().preset; !preset.empty())
      ids.emplace_back(preset);
  return ids;
}

std::string format_id(const std::string& flag, const std::string& value, bool presets) {
  if (find_format(value) || (presets && find_preset(value))) return value;
  const std::vector<std::string> all = handled_formats(presets);
  refuse(flag, value, fmt::format("a format: {}", fmt::join(all, ", ")), did_you_mean(value, all));
}

std::int64_t whole_number(const std::string& flag, const std::string& value, std::int64_t minimum,
                          std::int64_t maximum) {
  std::int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < minimum || number > maximum) {
    refuse(flag, value,
           maximum == std::numeric_limits<std::int64_t>::max()
               ? fmt::format("a whole number of at least {}", minimum)
               : fmt::format("a whole number from {} to {}", minimum, maximum));
  }
  return number;
}

double fraction(const std::string& flag, const std::string& value) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= 0 && number <= 1))
    refuse(flag, value, "a number from 0 to 1, as 0.999");
  return number;
}

double tolerance(const std::string& flag, const std::string& value) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number) || number < 0) {
    refuse(flag, value, "a finite number of at least 0, as 1e-6");
  }
  return number;
}

std::uint64_t size_in_bytes(const std::string& flag, const std::string& value) {
  std::uint64_t size = 0;
  try {
    size = parse_size(value);
  } catch (const Error&) {
    refuse(flag, value, "a size, as 5GB, 512MiB or 4096");
  }
  if (size == 0) refuse(flag, value, "a size above 0, as 5GB, 512MiB or 4096");
  return size;
}

std::uint64_t memory_limit_in_bytes(const std::string& flag, const std::string& value) {
  const std::uint64_t size = size_in_bytes(flag, value);
  if (size < kLeastMemoryLimitBytes)
    refuse(flag, value, "at least 1MiB, the smallest limit that can be kept");
  return size;
}

std::string file_text(const std::string& flag, const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found)
    fail(Code::kNotFound, fmt::format("{} {}: there is no such file", flag, printable(path)));
  if (std::filesystem::is_directory(status))
    fail(Code::kInvalidArgument, fmt::format("{} {}: is a folder", flag, printable(path)));
  std::string text;
  const int error = read_small_file(path, kMostBytes, text);
  if (error == EFBIG)
    fail(Code::kInvalidArgument, fmt::format("{} {}: larger than 64 MiB", flag, printable(path)));
  if (error != 0) {
    fail(error == ENOMEM ? Code::kResourceExhausted : Code::kIo,
         fmt::format("{} {}: cannot be read: {}", flag, printable(path), std::strerror(error)));
  }
  return text;
}

std::pair<std::string, std::string> key_and_value(const std::string& flag,
                                                  const std::string& value) {
  const std::size_t at = value.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == value.size()) {
    refuse(flag, value, "GLOB=VALUE");
  }
  return {value.substr(0, at), value.substr(at + 1)};
}

OutputFormat output_format(const std::string& flag, const std::string& value) {
  const std::string word = one_of(flag, value, "human|json|ndjson");
  if (word == "json") return OutputFormat::kJson;
  return word == "ndjson" ? OutputFormat::kNdjson : OutputFormat::kHuman;
}

ColorMode color_mode(const std::string& flag, const std::string& value) {
  const std::string word = one_of(flag, value, "auto|always|never");
  if (word == "always") return ColorMode::kAlways;
  return word == "never" ? ColorMode::kNever : ColorMode::kAuto;
}

ProgressMode progress_mode(const std::string& flag, const std::string& value) {
  const std::string word = one_of(flag, value, "auto|bar|json|none");
  if (word == "bar") return ProgressMode::kBar;
  if (word == "json") return ProgressMode::kJson;
  return word == "none" ? ProgressMode::kNone : ProgressMode::kAuto;
}

}  // namespace tessera::tools

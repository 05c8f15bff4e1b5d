#pragma once
// The meaning of single values on the command line. Each throws kInvalidArgument naming the flag,
// the value and what was expected.
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/args/args.h"

namespace tessera::tools {

/// Ids of formats that are read, or written (with the preset `hf`).
std::vector<std::string> handled_formats(bool to_write);
/// The parts of "a|b|c".
std::vector<std::string> choices_of(std::string_view placeholder);
/// `value` when it is one of "a|b|c".
std::string one_of(const std::string& flag, const std::string& value, std::string_view choices);
/// `value` when it is a format id (or "hf", where `presets`).
std::string format_id(const std::string& flag, const std::string& value, bool presets);
std::int64_t whole_number(const std::string& flag, const std::string& value, std::int64_t minimum,
                          std::int64_t maximum = std::numeric_limits<std::int64_t>::max());
/// A number from 0 to 1.
double fraction(const std::string& flag, const std::string& value);
double tolerance(const std::string& flag, const std::string& value);
std::uint64_t size_in_bytes(const std::string& flag, const std::string& value);
/// The same, and no less than kLeastMemoryLimitBytes, which one thread needs for its blocks.
std::uint64_t memory_limit_in_bytes(const std::string& flag, const std::string& value);
/// What the file or pipe named by `flag` says, at most 64 MiB; throws kNotFound, kInvalidArgument
/// (a folder, too large), kIo with path and errno.
std::string file_text(const std::string& flag, const std::string& path);
/// "KEY=VALUE", cut at the first '='.
std::pair<std::string, std::string> key_and_value(const std::string& flag,
                                                  const std::string& value);
OutputFormat output_format(const std::string& flag, const std::string& value);
ColorMode color_mode(const std::string& flag, const std::string& value);
ProgressMode progress_mode(const std::string& flag, const std::string& value);

/// "; did you mean X?" or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera::tools

#pragma once
// The table of formats, and detection by content over it.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/format/format_driver.h>

namespace tessera {

/// Every driver, in the order in which detection asks them.
std::span<const FormatDriver* const> all_formats();
/// nullptr when no format has this id.
const FormatDriver* find_format(std::string_view id);

struct Detection {
  const FormatDriver* driver = nullptr;   // set when exactly one says kYes, or none does and exactly one says kMaybe
  std::vector<std::pair<std::string, std::string>> candidates;  // id, reason: everyone who did not say kNo
};
Detection detect_format(const Place& place);

}  // namespace tessera

#pragma once
// The table of formats, and detection by content over it.
#include <tessera/format/format_driver.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Every driver, in the order in which detection asks them.
std::span<const FormatDriver* const> all_formats();
/// nullptr when no format has this id.
const FormatDriver* find_format(std::string_view id);

/// What the driver says of a place. Content that it cannot read is somebody else's: kNo. A disk that fails, memory that runs
/// out and a run that is stopped are no answers: they throw.
ProbeResult probe_place(const FormatDriver& driver, const Place& place);

struct Detection {
  /// Set when exactly one says kYes, or none does and exactly one says kMaybe. An answer about a
  /// container does not count where another one says kYes.
  const FormatDriver* driver = nullptr;
  /// Id and reason of every format that did not say kNo, but for those that know less than another
  /// of the same files (ProbeResult::about).
  std::vector<std::pair<std::string, std::string>> candidates;
};
Detection detect_format(const Place& place);

}  // namespace tessera

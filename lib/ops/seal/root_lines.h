#pragma once
// The lines under a root: fields joined by tabs, lines sorted bytewise, SHA-256 over all.
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// `text` as jq's @tsv writes it: tab, newline, carriage return and backslash are escaped.
std::string tsv(std::string_view text);
/// SHA-256 (hex) over `lines` in bytewise order; each ends with a newline.
std::string root_of(std::vector<std::string> lines);

}  // namespace tessera

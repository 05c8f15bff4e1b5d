#pragma once
// What `?` shows.
#include "tools/browse/picture.h"

namespace tessera::tools {

inline constexpr const char* kSummaryTitle = "summary";
inline constexpr const char* kHelpTitle = "help";

/// `two`: with the keys of two checkpoints.
Picture help_lines(bool two, int width);

}  // namespace tessera::tools

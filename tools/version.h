#pragma once
#include <string_view>

namespace tessera::tools {

inline constexpr std::string_view kVersion =
    "0.1.0";  // as in CMakeLists.txt (a test compares them)

}  // namespace tessera::tools

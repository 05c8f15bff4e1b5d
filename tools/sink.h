#pragma once
// Where output goes piece by piece, so that what has a million lines is never one text.
#include <functional>
#include <string_view>

namespace tessera::tools {

using Sink = std::function<void(std::string_view piece)>;

}  // namespace tessera::tools

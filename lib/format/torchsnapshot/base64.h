#pragma once
// Base64 of RFC 4648, decoded: how snapshots keep floats and bytes in text.
#include <optional>
#include <string>
#include <string_view>

namespace tessera::snapshot {

/// nullopt for anything that is not whole, padded base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tessera::snapshot

#pragma once
// Codes of a quantized weight are numbers only with what lies beside them: who changes or renames
// codes has to take that along.
#include <tessera/state/manifest.h>

#include <set>
#include <string>
#include <string_view>

namespace tessera {

/// Throws kUnsupported where codes among `changed` (parameters by FQN) have a scale, a table or the
/// like that is not among `taken`. With `rows_alone` one scale for all of a weight may stay.
void refuse_codes_alone(const Manifest& manifest, const std::set<std::string>& changed,
                        const std::set<std::string>& taken, std::string_view by,
                        bool rows_alone = false);

}  // namespace tessera

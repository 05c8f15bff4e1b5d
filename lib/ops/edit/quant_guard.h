#pragma once
// Codes of a quantized weight are numbers only with what lies beside them: who changes or renames
// codes has to take that along.
#include <tessera/state/findings.h>
#include <tessera/state/manifest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/state/quant_parts.h"

namespace tessera {

/// Throws kUnsupported where codes among `changed` (parameters by FQN) have a scale, a table or the
/// like that is not among `taken`. With `rows_alone` one scale for all of a weight may stay.
void refuse_codes_alone(const Manifest& manifest, const std::set<std::string>& changed,
                        const std::set<std::string>& taken, std::string_view by,
                        bool rows_alone = false);

/// A warning where new names part scales and the like from their codes. `before`: quant_parts() of
/// the same tensors under their old names.
std::vector<Note> parts_left_alone(const Manifest& manifest, const std::vector<QuantPart>& before);

}  // namespace tessera

#pragma once
#include <string_view>

namespace tessera {

/// ProbeResult::about of a folder with a model's weights, beside which a run's other state may lie.
inline constexpr std::string_view kAboutWeights = "weights";

}  // namespace tessera

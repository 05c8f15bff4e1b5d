#pragma once
#include <string_view>

namespace tessera::fsdp {

/// Whole-name match of an FQN: "*" is any run within a component, "**" any run across components,
/// "**." also none at all, "?" one character that is not a dot. Everything else stands for itself.
bool fqn_matches(std::string_view glob, std::string_view fqn);

}  // namespace tessera::fsdp

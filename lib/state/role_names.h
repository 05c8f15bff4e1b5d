#pragma once
// What roles.cc and the renaming share.
#include <string_view>

namespace tessera {

/// True for a flattened optimizer key: "state.<fqn>.<leaf>" or "param_groups.<fqn>.<option>" in one
/// path item.
bool starts_with_root(std::string_view key);

}  // namespace tessera

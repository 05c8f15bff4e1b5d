#pragma once
// The text of a dict key in a path: Python's str() of it.
#include <tessera/state/value.h>

#include <string>

namespace tessera {

/// str(key): a string is itself, 1 is "1", 1.5 "1.5", (1, 'a') "(1, 'a')"; objects print as
/// <module.Name>.
std::string key_text(const Value& key);

}  // namespace tessera

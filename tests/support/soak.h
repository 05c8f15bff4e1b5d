#pragma once
// How much a wide test repeats: all of it in ./dev soak, a part in the gate.
#include <cstdlib>

namespace tessera::testing {

/// True where tests/soak/run asks for all.
inline bool soaking() { return std::getenv("TESSERA_SOAK") != nullptr; }

/// `all` in soak, `some` elsewhere.
template <typename Number>
Number repeated(Number all, Number some) {
  return soaking() ? all : some;
}

}  // namespace tessera::testing

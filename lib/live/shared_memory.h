#pragma once
// Whether pieces of a live state share memory.
#include <tessera/state/live_state.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

namespace tessera {

struct NamedPiece {
  std::string name;
  const LivePiece* piece = nullptr;  // checked, and not empty
  DType dtype = DType::kFloat32;
};

/// Names of the first two pieces of which an element lies in the same bytes. Cost: the pieces, and
/// where strided ones lie between each other their runs, of which at most 16 million are compared.
std::optional<std::pair<std::string, std::string>> first_shared(std::span<const NamedPiece> pieces);

}  // namespace tessera

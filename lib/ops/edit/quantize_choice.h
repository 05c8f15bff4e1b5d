#pragma once
// Which weights --quantize means, and how each lies: by names, types and shapes alone.
#include <tessera/ops/transform.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct QuantizedChoice {
  std::size_t entry = 0;  // of the state
  std::string fqn;
  bool stacked = false;  // experts of one layer in one tensor
  bool turned = false;   // stacked: [experts, inputs, outputs]
};

struct QuantizeChoice {
  std::vector<QuantizedChoice> weights;  // in the order of the state
  std::vector<std::string> kept;         // FQNs of matrices that stay
  std::vector<Note> notes;               // what was asked for, or would be, and why it stays
};

/// Throws kInvalidArgument for a glob that matches no parameter, and where nothing is chosen;
/// kUnsupported where the dims of stacked experts cannot be seen.
QuantizeChoice choose_quantized(const Manifest& manifest, const Roles& roles,
                                const Transformations& asked, const std::vector<Alias>& tied);

}  // namespace tessera

#pragma once
// Second moments that stand out in one checkpoint: an update that met one huge gradient divides by
// it for thousands of steps, and the parameter hardly moves.
//
//   max     the largest element of a parameter's second moment (exp_avg_sq, square_avg, sum, ...)
//   layer   median of the others' maxima in its layer: `layers.3.` of layers.3.mlp.up.weight
//   kind    median of the others' maxima of its kind: `layers.#.mlp.up.weight`
//
// It stands out where max >= 1e5 x layer and max >= 1e5 x kind, or max >= 1e8 x kind: gradients
// differ between kinds and between layers, not that much in both ways at once. Where one of the two
// has no others, the other decides; where both have none, the median of all. Zeros do not count.
// Pure.
#include <tessera/state/manifest.h>

#include <string>
#include <vector>

namespace tessera {

inline constexpr double kOutlierRatio = 1e5;
inline constexpr double kOutlierRatioOfKind = 1e8;

struct SecondMoment {
  std::string fqn;
  std::string leaf;   // medians are taken over moments of one name
  double max = 0;     // of its finite elements
  std::string place;  // of that element, for the message
};

/// OP020 for each, in order.
std::vector<Note> find_outliers(const std::vector<SecondMoment>& moments);

}  // namespace tessera

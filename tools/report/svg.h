#pragma once
// Pictures for a paper: standalone SVG, white ground, no script, nothing that is fetched. Names come from
// a checkpoint that nobody trusts: they are text, escaped twice (for a terminal, and for XML).
#include <tessera/ops/stat.h>
#include <tessera/state/manifest.h>

#include <string>
#include <vector>

namespace tessera::tools {

/// A treemap: area is bytes, modules that are alike are one box, colour is the kind.
std::string svg_modules(const std::string& title, const Manifest& manifest);

struct HeatCell {
  std::string name;  // dotted: up to its first number it is a layer, the rest is the module
  double value = 0;  // on a log scale; not finite: red, 0: grey
};
/// Layers down, modules across.
std::string svg_heat_map(const std::string& title, const std::vector<HeatCell>& cells);

/// Linear, and of magnitudes on a log scale where `stat` has both.
std::string svg_histogram(const TensorStat& stat);

}  // namespace tessera::tools

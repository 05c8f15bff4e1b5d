#include <tessera/base/text.h>
#include <tessera/ops/diff.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lib/ops/inspect/name_families.h"

namespace tessera {
namespace {

struct Sums {
  LayerDiff row;
  double change = 0;  // squares
  double size = 0;
};

void add_values(const TensorDiff& d, Sums& sums) {
  LayerDiff& row = sums.row;
  const bool broken = d.nonfinite_mismatch > 0 || std::isnan(d.relative_l2);
  const bool more = broken ? !std::isnan(row.most_relative_l2)
                           : d.relative_l2 > row.most_relative_l2;  // of NaN never
  if (row.most_changed.empty() || more) {
    row.most_changed = d.name;
    row.most_relative_l2 = broken ? std::numeric_limits<double>::quiet_NaN() : d.relative_l2;
  }
  sums.change += d.l2 * d.l2;
  if (d.relative_l2 > 0) sums.size += std::pow(d.l2 / d.relative_l2, 2);
}

}  // namespace

std::vector<LayerDiff> diff_by_layer(const DiffReport& report) {
  std::map<std::string, Sums> layers;
  for (const TensorDiff& d : report.tensors) {
    Sums& sums = layers[layer_of(d.name)];
    ++sums.row.tensors;
    if (d.what == TensorDiff::What::kValues)
      add_values(d, sums);
    else
      ++sums.row.other_form;
  }
  std::vector<LayerDiff> rows;
  for (auto& [name, sums] : layers) {
    sums.row.name = name;
    if (sums.change > 0) sums.row.relative_l2 = std::sqrt(sums.change / sums.size);
    rows.push_back(std::move(sums.row));
  }
  std::ranges::sort(rows,
                    [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
  return rows;
}

}  // namespace tessera

#include "tools/ordering.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tessera::tools {
namespace {

constexpr double kMost = std::numeric_limits<double>::infinity();
constexpr double kNone = -std::numeric_limits<double>::infinity();

/// The largest first; NaN, which is a finding, before all.
template <class Row, class Key>
void largest_first(std::vector<Row>& rows, const Key& key) {
  std::ranges::stable_sort(rows, std::greater<>(), [&](const Row& row) {
    const double value = key(row);
    return std::isnan(value) ? kMost : value;
  });
}

template <class Row>
void keep_top(std::vector<Row>& rows, std::optional<std::int64_t> top) {
  if (top) rows.resize(std::min(rows.size(), static_cast<std::size_t>(*top)));
}

double change(const TensorDiff& row) {
  if (row.what != TensorDiff::What::kValues || row.nonfinite_mismatch > 0) return kMost;
  return row.relative_l2;
}

double number_of(const TensorStat& row, const std::string& sort) {
  const auto or_none = [](const std::optional<double>& value) { return value.value_or(kNone); };
  if (sort == "abs-max") return or_none(row.abs_max);
  if (sort == "std") return or_none(row.std);
  if (sort == "l2") return or_none(row.l2);
  if (sort == "nan") return static_cast<double>(row.nan + row.pos_inf + row.neg_inf);
  return row.count > 0 ? static_cast<double>(row.zeros) / static_cast<double>(row.count) : kNone;
}

double number_of(const UpdateRow& row, const std::string& sort) {
  if (sort == "update") return row.update_norm;
  if (sort == "weight") return row.weight_norm;
  if (sort == "v") return row.v_max;
  if (sort == "growth") return row.growth.value_or(kNone);
  return row.ratio;
}

}  // namespace

void order(DiffReport& report, const std::string& sort) {
  if (sort == "change") largest_first(report.tensors, change);
  if (sort == "name") std::ranges::stable_sort(report.tensors, natural_less, &TensorDiff::name);
}

void order(std::vector<LayerDiff>& layers, const std::string& sort) {
  if (sort == "change")
    largest_first(layers,
                  [](const LayerDiff& row) { return row.other_form ? kMost : row.relative_l2; });
}

void order(OptimReport& report, const std::string& sort, std::optional<std::int64_t> top) {
  if (sort == "growth" && report.other_path.empty())
    fail(Code::kInvalidArgument,
         "--sort growth compares with a second checkpoint, and there is none",
         "ckpt-inspect optim A B --sort growth");
  for (OptimizerReport& optimizer : report.optimizers) {
    if (sort == "name")
      std::ranges::stable_sort(optimizer.updates, natural_less, &UpdateRow::fqn);
    else if (!sort.empty())
      largest_first(optimizer.updates, [&](const UpdateRow& row) { return number_of(row, sort); });
    keep_top(optimizer.updates, top);
  }
}

void order(StatReport& report, const std::string& sort, std::optional<std::int64_t> top) {
  if (sort == "name")
    std::ranges::stable_sort(report.tensors, natural_less, &TensorStat::name);
  else if (!sort.empty() && sort != "stored")
    largest_first(report.tensors, [&](const TensorStat& row) { return number_of(row, sort); });
  keep_top(report.tensors, top);
}

}  // namespace tessera::tools

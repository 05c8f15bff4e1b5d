#include "lib/ops/inspect/optim_outliers.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "lib/ops/inspect/name_families.h"

namespace tessera {
namespace {

/// Maxima of one layer or kind, ascending.
class Peers {
 public:
  void add(double max) { maxima_.push_back(max); }
  void sort() { std::ranges::sort(maxima_); }

  /// Median of all but one element equal to `own`; nullopt if there are no others.
  std::optional<double> median_without(double own) const {
    const std::size_t others = maxima_.size() - 1;
    if (others == 0) return std::nullopt;
    const auto at = std::ranges::lower_bound(maxima_, own) - maxima_.begin();
    const auto other = [&](std::size_t i) {
      return maxima_[i < static_cast<std::size_t>(at) ? i : i + 1];
    };
    return (other((others - 1) / 2) + other(others / 2)) / 2;
  }

 private:
  std::vector<double> maxima_;
};

struct Medians {
  std::optional<double> layer, kind, all;
};

bool stands_out(double max, const Medians& m) {
  if (m.kind && max >= kOutlierRatioOfKind * *m.kind) return true;
  if (!m.layer && !m.kind) return m.all && max >= kOutlierRatio * *m.all;
  return (!m.layer || max >= kOutlierRatio * *m.layer) &&
         (!m.kind || max >= kOutlierRatio * *m.kind);
}

std::string message_of(const SecondMoment& moment, const Medians& m) {
  std::string times;
  const auto add = [&](const std::optional<double>& median, std::string_view what) {
    if (median)
      times += fmt::format("{}{:.2g} times the median of {}", times.empty() ? "" : ", ",
                           moment.max / *median, what);
  };
  add(m.layer, "its layer");
  add(m.kind, "its kind");
  if (times.empty()) add(m.all, "all");
  return fmt::format("{} stands out: {:.4g} at {}, {}", moment.leaf, moment.max, moment.place,
                     times);
}

}  // namespace

std::vector<Note> find_outliers(const std::vector<SecondMoment>& moments) {
  std::map<std::string, Peers> layers, kinds, all;
  const auto each = [](const SecondMoment& moment, auto&& layer, auto&& kind, auto&& whole) {
    layer(moment.leaf + ' ' + layer_of(moment.fqn));
    kind(moment.leaf + ' ' + kind_of(moment.fqn));
    whole(moment.leaf);
  };
  for (const SecondMoment& moment : moments) {
    if (!(moment.max > 0)) continue;
    const auto into = [&](auto& peers) {
      return [&](const std::string& key) { peers[key].add(moment.max); };
    };
    each(moment, into(layers), into(kinds), into(all));
  }
  for (auto* group : {&layers, &kinds, &all})
    for (auto& [key, peers] : *group) peers.sort();
  std::vector<Note> findings;
  for (const SecondMoment& moment : moments) {
    if (!(moment.max > 0)) continue;
    Medians medians;
    const auto from = [&](const auto& peers, std::optional<double>& median) {
      return [&](const std::string& key) { median = peers.at(key).median_without(moment.max); };
    };
    each(moment, from(layers, medians.layer), from(kinds, medians.kind), from(all, medians.all));
    if (stands_out(moment.max, medians))
      findings.push_back(
          {Finding::kOutlier, Severity::kWarning, message_of(moment, medians), "", moment.fqn});
  }
  return findings;
}

}  // namespace tessera

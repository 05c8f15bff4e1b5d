#include "fsdp_core/unit/arena_plan.h"

#include <algorithm>
#include <functional>

namespace tessera::fsdp {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kMostTries = 400, kWork = 300'000'000;  // pairs looked at: a second at most

std::size_t rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// The most bytes alive together.
std::size_t worst_moment(const std::vector<Lifetime>& step, const std::vector<std::uint32_t>& who) {
  std::vector<std::pair<std::uint32_t, std::ptrdiff_t>> changes;
  for (const std::uint32_t k : who) {
    const auto bytes = static_cast<std::ptrdiff_t>(rounded(step[k].bytes));
    changes.emplace_back(step[k].begin, bytes);
    changes.emplace_back(step[k].end, -bytes);
  }
  std::sort(changes.begin(), changes.end());
  std::ptrdiff_t alive = 0, most = 0;
  for (const auto& [when, bytes] : changes) most = std::max(most, alive += bytes);
  return static_cast<std::size_t>(most);
}

/// Places lifetimes one after the other, each at the lowest or at the highest place that is free
/// while it lives.
class Packer {
 public:
  Packer(const std::vector<Lifetime>& step, std::size_t height) : step_(step), height_(height) {}

  /// False: one did not fit below the height.
  bool place(const std::vector<std::uint32_t>& order, const std::vector<bool>& from_top) {
    offsets.assign(step_.size(), ArenaPlan::kNowhere);
    placed_.clear();
    for (const std::uint32_t k : order) {
      const std::size_t bytes = rounded(step_[k].bytes);
      find_taken(step_[k]);
      const std::size_t at = from_top[k] ? highest(bytes) : lowest(bytes);
      if (at == ArenaPlan::kNowhere) return false;
      offsets[k] = at;
      placed_.push_back(k);
    }
    return true;
  }

  std::vector<std::size_t> offsets;

 private:
  void find_taken(const Lifetime& one) {
    taken_.clear();
    for (const std::uint32_t k : placed_)
      if (step_[k].begin < one.end && one.begin < step_[k].end)
        taken_.emplace_back(offsets[k], offsets[k] + rounded(step_[k].bytes));
    std::sort(taken_.begin(), taken_.end());
  }
  std::size_t lowest(std::size_t bytes) const {
    std::size_t at = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin >= at + bytes) break;
      at = std::max(at, end);
    }
    return at + bytes <= height_ ? at : ArenaPlan::kNowhere;
  }
  std::size_t highest(std::size_t bytes) {
    // They may lie in each other's way: they need not live at the same time.
    std::ranges::sort(taken_, std::ranges::greater(), &std::pair<std::size_t, std::size_t>::second);
    std::size_t top = height_;
    for (const auto& [begin, end] : taken_) {
      if (end + bytes <= top) break;
      top = std::min(top, begin);
    }
    return top >= bytes ? top - bytes : ArenaPlan::kNowhere;
  }

  const std::vector<Lifetime>& step_;
  std::size_t height_;
  std::vector<std::uint32_t> placed_;
  std::vector<std::pair<std::size_t, std::size_t>> taken_;
};

}  // namespace

std::optional<ArenaPlan> plan_arena(const std::vector<Lifetime>& step) {
  std::vector<std::uint32_t> who;
  for (std::uint32_t k = 0; k < step.size(); ++k)
    if (step[k].end != Lifetime::kOpen && step[k].bytes > 0) who.push_back(k);
  if (who.empty() || who.size() > kMostLifetimes) return std::nullopt;
  ArenaPlan plan;
  plan.bytes = worst_moment(step, who);
  Packer packer(step, plan.bytes);
  std::uint64_t seed = 1;
  const auto draw = [&seed] {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(seed >> 33) / static_cast<double>(1ULL << 31);
  };
  // Four orders of their own; then those from both ends; then what is large and lives long first,
  // shaken.
  std::vector<double> weight(step.size());
  std::vector<bool> from_top(step.size(), false);
  const std::size_t tries =
      std::clamp<std::size_t>(kWork / (who.size() * who.size()), 8, kMostTries);
  for (std::size_t attempt = 0; attempt < tries; ++attempt) {
    for (const std::uint32_t k : who) {
      const double life = step[k].end - step[k].begin, bytes = static_cast<double>(step[k].bytes);
      weight[k] = attempt >= 8       ? bytes * life * (0.3 + 0.7 * draw())
                  : attempt % 4 == 0 ? bytes + life * 1e-9
                  : attempt % 4 == 1 ? life
                  : attempt % 4 == 2 ? -static_cast<double>(step[k].begin)
                                     : bytes * life;
      if (attempt >= 4) from_top[k] = draw() < 0.5;
    }
    std::vector<std::uint32_t> order = who;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weight[a] > weight[b]; });
    if (!packer.place(order, from_top)) continue;
    plan.offsets = std::move(packer.offsets);
    return plan;
  }
  return std::nullopt;
}

}  // namespace tessera::fsdp

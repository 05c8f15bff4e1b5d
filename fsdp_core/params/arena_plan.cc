#include "fsdp_core/params/arena_plan.h"

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

  void clear() {
    offsets.assign(step_.size(), ArenaPlan::kNowhere);
    placed_.clear();
  }
  /// Beside what is placed already. False: one did not fit below the height, and none is placed.
  bool place(const std::vector<std::uint32_t>& order, const std::vector<bool>& from_top) {
    const std::size_t before = placed_.size();
    for (const std::uint32_t k : order) {
      const std::size_t bytes = rounded(step_[k].bytes);
      find_taken(step_[k]);
      const std::size_t at = from_top[k] ? highest(bytes) : lowest(bytes);
      if (at == ArenaPlan::kNowhere) {
        placed_.resize(before);
        return false;
      }
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

/// Orders to place lifetimes in, and the ends to begin from: four of their own; then those from
/// both ends; then what is large and lives long first, shaken.
class Orders {
 public:
  explicit Orders(const std::vector<Lifetime>& step)
      : from_top(step.size(), false), step_(step), weight_(step.size()) {}

  const std::vector<std::uint32_t>& next(const std::vector<std::uint32_t>& who,
                                         std::size_t attempt) {
    for (const std::uint32_t k : who) {
      const double life = step_[k].end - step_[k].begin,
                   bytes = static_cast<double>(step_[k].bytes);
      weight_[k] = attempt >= 8       ? bytes * life * (0.3 + 0.7 * draw())
                   : attempt % 4 == 0 ? bytes + life * 1e-9
                   : attempt % 4 == 1 ? life
                   : attempt % 4 == 2 ? -static_cast<double>(step_[k].begin)
                                      : bytes * life;
      from_top[k] = attempt >= 4 && draw() < 0.5;
    }
    order_ = who;
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weight_[a] > weight_[b]; });
    return order_;
  }
  std::vector<bool> from_top;

 private:
  double draw() {
    seed_ = seed_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(seed_ >> 33) / static_cast<double>(1ULL << 31);
  }
  const std::vector<Lifetime>& step_;
  std::vector<double> weight_;
  std::vector<std::uint32_t> order_;
  std::uint64_t seed_ = 1;
};

/// What lives through much of the step, and groups of the rest that never meet each other, as the
/// backwards of a step that adds up gradients: each group finds its places by itself.
struct Parts {
  std::vector<std::uint32_t> lasting;
  std::vector<std::vector<std::uint32_t>> groups;
};

Parts parts_of(const std::vector<Lifetime>& step, std::vector<std::uint32_t> who) {
  std::uint32_t last = 0;
  for (const std::uint32_t k : who) last = std::max(last, step[k].end);
  std::ranges::stable_sort(who, {}, [&](std::uint32_t k) { return step[k].begin; });
  Parts parts;
  std::uint32_t group_end = 0;
  for (const std::uint32_t k : who) {
    if ((step[k].end - step[k].begin) > last / 4) {
      parts.lasting.push_back(k);
      continue;
    }
    if (parts.groups.empty() || step[k].begin >= group_end) parts.groups.emplace_back();
    parts.groups.back().push_back(k);
    group_end = std::max(group_end, step[k].end);
  }
  return parts;
}

bool place_parts(Packer& packer, Orders& orders, const Parts& parts, std::size_t attempt) {
  constexpr std::size_t kTriesOfGroup = 40;
  packer.clear();
  if (!packer.place(orders.next(parts.lasting, attempt), orders.from_top)) return false;
  return std::ranges::all_of(parts.groups, [&](const std::vector<std::uint32_t>& group) {
    for (std::size_t tried = 0; tried < kTriesOfGroup; ++tried)
      if (packer.place(orders.next(group, tried), orders.from_top)) return true;
    return false;
  });
}

}  // namespace

std::optional<ArenaPlan> plan_arena(const std::vector<Lifetime>& step) {
  std::vector<std::uint32_t> who;
  for (std::uint32_t k = 0; k < step.size(); ++k)
    if (step[k].end != Lifetime::kOpen && step[k].bytes > 0) who.push_back(k);
  if (who.empty() || who.size() > kMostLifetimes) return std::nullopt;
  ArenaPlan plan;
  plan.bytes = worst_moment(step, who);
  Packer packer(step, plan.bytes);
  Orders orders(step);
  const std::size_t tries =
      std::clamp<std::size_t>(kWork / (who.size() * who.size()), 8, kMostTries);
  bool found = false;
  for (std::size_t attempt = 0; attempt < tries && !found; ++attempt) {
    packer.clear();
    found = packer.place(orders.next(who, attempt), orders.from_top);
  }
  const Parts parts = parts_of(step, who);
  for (std::size_t attempt = 0; attempt < tries / 8 && !found && parts.groups.size() > 1; ++attempt)
    found = place_parts(packer, orders, parts, attempt);
  if (!found) return std::nullopt;
  plan.offsets = std::move(packer.offsets);
  return plan;
}

}  // namespace tessera::fsdp

#include "lib/state/sharded_object.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace tessera {
namespace {

constexpr std::int64_t kMostOfGrid = std::int64_t{1} << 31;  // of all dims together: ranks

/// "0.12" -> {0, 12}; empty: not of this form.
std::vector<std::int64_t> counters(std::string_view text) {
  std::vector<std::int64_t> out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    std::int32_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0) return {};
    out.push_back(number);
    if (stop == end) return out;
    if (*stop != '.') return {};
    at = stop;
  }
}

}  // namespace

std::int64_t ShardedObject::number() const {
  std::int64_t number = 0;
  for (std::size_t d = 0; d < grid.size(); ++d)
    number = number * std::max<std::int64_t>(grid[d], 1) + place[d];
  return number;
}

std::int64_t ShardedObject::places() const {
  std::int64_t count = 1;
  for (const std::int64_t size : grid) count *= std::max<std::int64_t>(size, 1);
  return count;
}

bool ShardedObject::of_ranks() const { return places() > 1 && !key.ends_with("_extra_state"); }

std::optional<ShardedObject> parse_sharded_object(std::string_view name) {
  constexpr std::string_view kMark = "/shard_";
  const std::size_t at = name.rfind(kMark);
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  const std::string_view rest = name.substr(at + kMark.size());
  const std::size_t bar = rest.find('_');
  if (bar == std::string_view::npos) return std::nullopt;
  ShardedObject object{name.substr(0, at), counters(rest.substr(0, bar)),
                       counters(rest.substr(bar + 1))};
  std::int64_t places = 1;
  for (const std::int64_t size : object.grid) {
    if (size == 0 || size > kMostOfGrid / places) return std::nullopt;
    places *= size;
  }
  if (object.grid.empty()) return std::nullopt;
  if (object.grid.size() + 1 == object.place.size()) object.grid.push_back(0);
  if (object.place.size() != object.grid.size()) return std::nullopt;
  for (std::size_t d = 0; d < object.grid.size(); ++d) {
    if (object.grid[d] != 0 && object.place[d] >= object.grid[d]) return std::nullopt;
  }
  return object;
}

}  // namespace tessera

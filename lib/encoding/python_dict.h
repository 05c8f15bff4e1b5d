#pragma once
// What a Python dict makes of entries that are set one after the other.
#include <tessera/state/value.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace tessera {

/// Of entries with one string or integer as key, the first keeps its place and takes the last
/// value.
inline void merge_equal_keys(ValueDict& entries) {
  std::unordered_map<std::string_view, std::size_t> strings;
  std::unordered_map<std::int64_t, std::size_t> integers;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::size_t first = kept;
    const Value& key = entries[i].first;
    if (key.is_string()) first = strings.try_emplace(key.as_string(), kept).first->second;
    if (key.is_int()) first = integers.try_emplace(key.as_int(), kept).first->second;
    if (first == kept && i != kept) entries[kept] = std::move(entries[i]);
    if (first != kept) entries[first].second = std::move(entries[i].second);
    kept += first == kept;
  }
  entries.resize(kept);
}

}  // namespace tessera

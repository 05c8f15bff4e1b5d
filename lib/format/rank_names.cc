#include "lib/format/rank_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

std::int64_t most_ranks(std::size_t files, std::size_t parts) {
  constexpr std::size_t kFree = 1 << 12, kPerFile = 16, kMost = 1 << 20;
  const std::size_t most = (kFree + kPerFile * files) / std::max<std::size_t>(parts, 1);
  return static_cast<std::int64_t>(std::min(most, kMost));
}

std::string list_ranks(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string list;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    list += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  if (ranks.size() > kMost) list += fmt::format(" and {} more", ranks.size() - kMost);
  return list;
}

std::string with_number(std::string_view sample, std::size_t begin, std::size_t end,
                        std::int64_t number) {
  const std::size_t width = sample[begin] == '0' ? end - begin : 1;
  return fmt::format("{}{:0>{}}{}", sample.substr(0, begin), number, width, sample.substr(end));
}

}  // namespace tessera

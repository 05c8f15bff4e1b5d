#pragma once
// Files that are named by rank. How a name says its rank differs from format to format; what
// follows from the ranks does not. Pure.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Upper bound on the number of ranks that names (or records) of `files` files may speak of, when
/// each rank has `parts` files: rank_1000000.pt alone must not make a reader count a million lost
/// ranks. A folder that lost most of a few thousand ranks is still read.
std::int64_t most_ranks(std::size_t files, std::size_t parts = 1);

/// Ranks below `ranks` that are no keys of `present` (a set or map), ascending.
template <class Keyed>
std::vector<std::int64_t> missing_ranks(const Keyed& present, std::int64_t ranks) {
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    if (!present.contains(rank)) missing.push_back(rank);
  return missing;
}

/// "0, 1, 2 and 5 more".
std::string list_ranks(const std::vector<std::int64_t>& ranks);

/// The name that the file of `number` has beside `sample`, whose own number is the digits
/// [begin, end): with leading zeros where those have some.
std::string with_number(std::string_view sample, std::size_t begin, std::size_t end,
                        std::int64_t number);

}  // namespace tessera

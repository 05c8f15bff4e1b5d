#pragma once
// Two lists of hashed tensors held against each other, for whoever says it in words.
#include <tessera/ops/hash.h>

#include <string>
#include <vector>

namespace tessera {

struct HashedDifference {
  enum class What { kMissing, kUnexpected, kSpec, kQuantizer, kContent };
  What what = What::kContent;
  std::string name;
  std::string expected_sha256;  // kContent
  std::string found_sha256;
};

/// By name: first those of `expected` in its order, then what only `found` has, by name.
std::vector<HashedDifference> compare_hashed(const std::vector<HashedTensor>& expected,
                                             const std::vector<HashedTensor>& found);

}  // namespace tessera

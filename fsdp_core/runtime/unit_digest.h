#pragma once
// What every rank must have alike about its units, as lines of text.
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp::detail {

class Unit;

/// (unit, property), unit by unit in module order.
using Digest = std::vector<std::pair<std::string, std::string>>;
Digest digest_of(const std::vector<std::shared_ptr<Unit>>& units);

std::string encode(const Digest& digest);
Digest decode_digest(const std::string& text);

/// What is different about the first line that is; "" where none is. Ranks are the global ones.
std::string first_difference(const Digest& one, int rank_of_one, const Digest& other,
                             int rank_of_other);

}  // namespace tessera::fsdp::detail

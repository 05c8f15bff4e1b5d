#pragma once
// Ranks of a group that make different calls at the same time find it out here.
#include <cstddef>
#include <span>
#include <vector>

namespace tessera {

/// `openings[r]`: the first message of rank r's call, which begins with the call's name as a text
/// (lib/state/live/wire.h). Throws kInvalidArgument, naming calls and ranks, where they are not the same.
void check_same_call(std::span<const std::vector<std::byte>> openings);

}  // namespace tessera

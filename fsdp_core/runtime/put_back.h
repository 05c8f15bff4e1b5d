#pragma once
// Races that were mended, to be put back by tests, which prove that the simulated accelerator would
// find each of them if it came back. Nothing else sets one.
#include <cstdint>

namespace tessera::fsdp::detail {

enum class Race : std::uint8_t {
  kNone,
  kPartialFreedElsewhere,  // partial sums go back to the reduce stream's memory from the all-reduce
                           // stream
  kOutputFreedEarly,       // a sum over the shards is freed before its all-reduce has read it
  kInputFreedEarly,        // unsharded gradients are freed before their reduction has read them
  kLoweredEarly,           // gradients are cast to the compute dtype before the last reduction
  kOffloadUnordered,       // the host reads offloaded gradients without waiting for their copies
};

/// Process-wide: backwards run on threads of LibTorch's.
void put_back(Race race);
bool is_put_back(Race race);

}  // namespace tessera::fsdp::detail

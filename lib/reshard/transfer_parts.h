#pragma once
// What transfers to files and to memory have in common.
#include <tessera/reshard/plan.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lib/reshard/gather.h"
#include "lib/reshard/units.h"

namespace tessera {

/// Whether any chunk that the plan reads is a compressed item.
bool reads_coded(const Manifest& source, const Plan& plan);
GatherOptions gather_options(const Budget& budget, const CodedGate& gate,
                             const CancelToken* cancel);

/// One of `threads` that share what the gate has.
std::unique_ptr<Worker> make_worker(StagedMeter& meter, CodedGate& gate, int threads);

/// What the workers of a run did, summed.
struct WorkerTotals {
  std::uint64_t bytes_read = 0;
  std::map<std::uint32_t, CastCounts> casts;
  void add(const Worker& worker);
};

}  // namespace tessera

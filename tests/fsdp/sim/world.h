#pragma once
// Ranks as threads, rank r on device sim:r, and the groups between them: as NCCL's, collectives are
// work of the stream that is current at the call, the calls return at once, tensors of the host and
// of other devices are refused, and a failure shows at a later call.
//
//   host        all_reduce()  ->  work for the current stream, and a turn in this group
//   the stream  waits for what was before it; waits for its turn; meets the other ranks' streams
//
// Turns make one group's collectives run in the order in which they were asked for, whatever their
// streams, without ordering those streams: a wait that is missing between them stays missing.
#include <tessera/fsdp/world.h>

#include <functional>

namespace tessera::sim {

/// As run_threads. Each rank's device is its thread's current one; all its work has run when
/// `body` has returned on it.
void run_ranks(int size, const std::function<void(fsdp::World&)>& body);

}  // namespace tessera::sim

#pragma once
// Groups of ranks that are processes and share one GPU, without NCCL: the data goes through the
// host's memory and Gloo's sockets.
//
//   all-gather of rank r   current stream: [late] copy `in` to pinned memory
//                          host: waits for this stream alone, then Gloo
//                          current stream: [late] copy the result to `out`; the host does not wait
//
// Stream semantics as NCCL's, with one difference. As there, tensors are read and written in the
// order of the stream that is current at the call, on no other; the call returns before the output
// is written, so that a reader which does not wait for the stream reads old values; tensors of the
// host are refused. Unlike there, the input has been read when the call returns: memory that is
// written again too early after it is not found out.
//
// Ranks are processes and no threads: LibTorch runs all backwards of a process on one thread per
// device, where a rank that waits for the others would keep them from coming.
//
// On a device that is the CPU all of this is plain copies: what the tests of the kit itself run.
#include <tessera/fsdp/world.h>

#include <cstdint>

namespace tessera::gpu_kit {

/// How late this process is: before each copy of a group, and where the kit's models ask, the
/// current stream is kept busy for 0 to `most_us` microseconds, drawn from `seed`. 0: never.
void set_lateness(std::uint64_t seed, int most_us);
void be_late(c10::Device device);

/// The world of this process by the launcher's variables, its groups as above.
fsdp::World staged_world(c10::Device device, const fsdp::WorldOptions& options);

}  // namespace tessera::gpu_kit

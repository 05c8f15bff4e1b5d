#pragma once
// What the child gives up before it touches a byte of a file: memory, time, every descriptor but
// the socket, and every system call but those that a computation needs.
#include <cstdint>

namespace tessera::h5 {

/// False where this kernel cannot confine (no seccomp): the caller must not go on.
bool confine(std::uint32_t cpu_seconds);

}  // namespace tessera::h5

#pragma once
// What the values of a pickle may take in memory. A byte of pickle makes an object, of an honest
// one ten or more do: the bound grows with the pickle, and holds for files of nothing else.
#include <tessera/encoding/pickle_reader.h>

#include <cstdint>

namespace tessera {

/// The most for a pickle of any size, unless more was granted.
inline constexpr std::uint64_t kMostPickleMemoryBytes = std::uint64_t{4} << 30;

/// Length, in bytes, of the pickle that `graph` was read from.
std::uint64_t stream_bytes(const PickleGraph& graph);
/// 16 MiB, and 40 bytes for each byte of the pickle, at most kMostPickleMemoryBytes; or `granted`,
/// where that is more. decode_pickle makes no more than that, and decode_archive_root nothing that
/// flattens to more.
std::uint64_t pickle_memory_bytes(std::uint64_t stream_bytes, std::uint64_t granted);
/// Throws kResourceExhausted.
[[noreturn]] void refuse_pickle_memory(std::uint64_t stream_bytes, std::uint64_t granted);

}  // namespace tessera

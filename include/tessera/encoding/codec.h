#pragma once
// Codecs: named transformations of whole byte strings, as checkpoints record them.
//
//   stream.zstd    zstd frames, one or several in a row (PyTorch DCP's compression extension)
//   stream.rot13   PyTorch's demonstration extension: swaps the case of ASCII letters, its own
//                  inverse
//   slice:O:N      bytes [O, O + N) of what came before: ours, appended by locate() when a
//                  compressed item is an archive whose inside was looked up; never taken from a
//                  file
//   hdf5.*         HDF5's filters (lib/encoding/hdf5_codecs.h), named by its reader
//
// A name may carry "@domain" and "/version", as DCP descriptors do; the major version must be 1.
// Pure; thread-safe.
#include <tessera/base/bytes.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace tessera {

/// True when decode() knows this codec (and its version).
bool has_codec(std::string_view codec);

/// All of `in`, decoded. The output never grows past `max_output_bytes` nor past what the input can
/// honestly hold (a ratio cap against bombs). Throws kCorrupt for damaged input or more output than
/// that, kUnsupported naming an unknown codec.
Bytes decode(std::string_view codec, ByteView in, std::uint64_t max_output_bytes);

/// decode("stream.zstd") without all of the output in memory: piece after piece of it.
void decode_zstd_pieces(ByteView in, std::uint64_t max_output_bytes,
                        const std::function<void(ByteView)>& take);

}  // namespace tessera

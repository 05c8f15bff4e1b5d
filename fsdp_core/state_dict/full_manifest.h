#pragma once
// What a state that lies whole in memory is, without its tensors' data: between ranks, and for
// matching it with what a model asks for.
#include <tessera/state/live_state.h>
#include <tessera/state/manifest.h>

#include <string>

namespace tessera::fsdp {

/// Names, types, shapes and values; no tensor data, no sources. Tensors in the order of the entries.
Manifest manifest_of(const LiveState& full);
/// Throws kUnsupported: a value that holds tensors.
Bytes packed(const Manifest& manifest);
Manifest unpacked(ByteView bytes);

/// A line for every entry: name, type and shape, and of what is one number or a value also that.
/// Ranks that have the same state have the same lines.
std::string scalar_lines(const LiveState& full);

}  // namespace tessera::fsdp

#pragma once
// Reads a whole small file or pipe: limits of the kernel, tables and rules that a user names. Files
// of a checkpoint are read through Directory instead. Does not use C++ streams, which repeat
// interrupted calls for ever.
#include <cstddef>
#include <string>

namespace tessera {

/// Appends the bytes of `path` to `text`. Returns 0, or the errno that stopped it; EFBIG if there
/// are more than `most_bytes`, as from a device that never ends. What was read before stays in
/// `text`.
[[nodiscard]] int read_small_file(const std::string& path, std::size_t most_bytes,
                                  std::string& text);

}  // namespace tessera

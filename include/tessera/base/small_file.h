#pragma once
// A file or a pipe read whole: limits of the kernel, tables and rules that a user names. What
// belongs to a checkpoint is read through Directory instead. No stream of the C++ library: those
// repeat interrupted calls for ever.
#include <cstddef>
#include <string>

namespace tessera {

/// Appends the bytes of `path` to `text`. 0, or the errno that stopped it; EFBIG: more than
/// `most_bytes`, as devices give that never end. What was read before stays in `text`.
[[nodiscard]] int read_small_file(const std::string& path, std::size_t most_bytes,
                                  std::string& text);

}  // namespace tessera

#pragma once
// A file that a command of ckpt-inspect writes beside its result (--npy, -o): all of it, or nothing.
#include <functional>
#include <string>

#include "tools/sink.h"

namespace tessera::tools {

/// Makes `path` of what `content` hands to its sink. Throws kAlreadyExists, naming `flag`, where it
/// exists and `replace` is false; kIo where it cannot be written, and what `content` throws: then
/// nothing is left, and an old file stays as it was. `holds_signals`: SIGINT and SIGTERM wait for the
/// end, as is right for a program of ours.
void write_new_file(const std::string& path, const char* flag, bool replace, bool holds_signals,
                    const std::function<void(const Sink& sink)>& content);

}  // namespace tessera::tools

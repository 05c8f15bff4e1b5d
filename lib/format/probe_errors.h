#pragma once
// What a probe may swallow: content that is somebody else's. A disk that fails, memory that runs
// out and a run that is stopped are no answers about the format.
#include <tessera/base/error.h>

namespace tessera {

/// Call it first in a probe's `catch (const Error& error)`: throws again what is not of the
/// content.
inline void rethrow_unless_of_content(const Error& error) {
  switch (error.code()) {
    case Code::kCorrupt:
    case Code::kUnsupported:
    case Code::kNotFound:
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return;
    default:
      throw;
  }
}

}  // namespace tessera

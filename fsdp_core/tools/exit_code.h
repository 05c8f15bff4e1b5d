#pragma once
// The exit status of the runtime's small programs after a failure.
#include <tessera/base/error.h>

namespace tessera::fsdp {

inline int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return 2;
    case Code::kNotFound:
    case Code::kIo:
      return 3;
    case Code::kCorrupt:
      return 4;
    default:
      return 70;
  }
}

}  // namespace tessera::fsdp

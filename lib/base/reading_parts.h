#pragma once
// Between listing a checkpoint and reading its data files may go: then the checkpoint is damaged
// (kCorrupt), it is not that the user named a wrong path (kNotFound).
#include <tessera/base/error.h>

#include <utility>

namespace tessera {

/// Runs `f`, which reads files of a checkpoint that exists.
template <class F>
decltype(auto) reading_parts(F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.code() != Code::kNotFound) throw;
    Status status = error.status();
    status.code = Code::kCorrupt;
    status.message = "a part of the checkpoint is missing: " + status.message;
    throw Error(std::move(status));
  }
}

}  // namespace tessera

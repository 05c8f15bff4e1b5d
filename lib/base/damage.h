#pragma once
// Between listing a checkpoint and reading its data files may go: then the checkpoint is damaged
// (kCorrupt), it is not that the user named a wrong path (kNotFound).
#include <tessera/base/error.h>

#include <string>
#include <utility>

namespace tessera {

/// What can come of damaged bytes or lost files, as against a request to stop, a lack of memory or
/// a bug of ours. A turned bit may well look like a feature that nobody supports.
inline bool is_damage(Code code) {
  return code == Code::kCorrupt || code == Code::kUnsupported || code == Code::kNotFound ||
         code == Code::kIo;
}

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

/// A problem as a list of several checkpoints shows it: with its file, where the words lack it.
inline std::string in_its_file(const std::string& file, const std::string& message) {
  return file.empty() || message.find(file) != message.npos ? message : file + ": " + message;
}

}  // namespace tessera

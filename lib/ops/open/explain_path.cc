// How PATH is understood, without reading what it means.
#include <tessera/base/error.h>

#include <utility>

#include "lib/ops/open/path_resolve.h"

namespace tessera {

PathExplanation explain_path(FileSystem& fs, const std::string& path, const std::string& from) {
  const PathResolver resolver(fs, from);
  PathExplanation out;
  out.path = path;
  out.is_folder = resolver.require(path).type == FileType::kDirectory;
  std::vector<Note> notes;
  try {
    const FoundCheckpoint found = resolver.resolve(path, notes, &out.steps);
    out.found = found.path;
    out.format = found.driver->id();
  } catch (const Error& error) {
    if (out.steps.empty()) throw;
    out.failure = error.status();
  }
  return out;
}

std::vector<const FormatDriver*> formats_at(FileSystem& fs, const std::string& path,
                                            const std::string& from) {
  const PathResolver resolver(fs, from);
  std::vector<Note> notes;
  try {
    return {resolver.resolve(path, notes).driver};
  } catch (const Error& error) {
    if (error.code() != Code::kNotFound || !fs.stat(path)) return {};
  }
  std::vector<const FormatDriver*> out;
  for (const FoundCheckpoint& found : resolver.below(path, notes)) out.push_back(found.driver);
  return out;
}

}  // namespace tessera

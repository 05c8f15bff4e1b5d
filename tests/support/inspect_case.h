#pragma once
// Checkpoints opened the way commands open them: samples, and the fixtures of tests/ops/data.
#include <tessera/encoding/json.h>
#include <tessera/ops/open.h>
#include <tessera/storage/file_system.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/support/note_text.h"
#include "tests/support/run_command.h"

namespace tessera::testing {

inline FileSystem& disk() {
  static const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  return *fs;
}

/// tests/ops/data/<relative>
inline std::string fixture(const std::string& relative) {
  return TESSERA_SOURCE_DIR "/tests/ops/data/" + relative;
}

inline OpenedCheckpoint open_path(const std::string& path, const OpenOptions& options = {}) {
  return open_checkpoint(disk(), path, options);
}
inline OpenedCheckpoint open_sample(const std::string& name, const OpenOptions& options = {}) {
  return open_path(case_path(name), options);
}

inline Value json_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  JsonLimits limits;
  limits.max_depth = 64;
  return parse_json(as_bytes(text), limits);
}

/// How often each code was found, and for which tensors.
inline std::map<std::string, std::vector<std::string>> by_code(const std::vector<Note>& notes) {
  std::map<std::string, std::vector<std::string>> found;
  for (const Note& note : notes) found[note_code(note)].push_back(note.tensor);
  return found;
}

}  // namespace tessera::testing

#pragma once
// What tests of verify share: damage, and the findings about it.
#include <fmt/format.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/memory_file_system.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/support/inspect_case.h"
#include "tests/support/note_text.h"

namespace tessera::testing {

using Edit = std::function<void(Bytes&)>;

inline void edit(MemoryFileSystem& fs, const std::string& path, const Edit& change) {
  Bytes bytes = fs.read_file(path);
  change(bytes);
  fs.write_file(path, bytes);
}
inline void cut_one(Bytes& bytes) { bytes.pop_back(); }
inline void add_one(Bytes& bytes) { bytes.push_back(std::byte{7}); }
inline void empty(Bytes& bytes) { bytes.clear(); }
inline Edit flip(std::size_t at) {
  return [at](Bytes& bytes) { bytes.at(at) ^= std::byte{1}; };
}

inline VerifyReport verify(FileSystem& fs, const std::string& path,
                           VerifyLevel level = VerifyLevel::kFull) {
  VerifyOptions options;
  options.level = level;
  return verify_checkpoint(fs, path, options);
}

/// The finding of this code about this file and tensor ("" = any).
inline const Note* find(const VerifyReport& report, const std::string& code,
                        const std::string& file = "", const std::string& tensor = "") {
  for (const Note& note : report.findings)
    if (note_code(note) == code && (file.empty() || note.file == file) &&
        (tensor.empty() || note.tensor == tensor))
      return &note;
  return nullptr;
}

inline std::string list(const VerifyReport& report) {
  std::string text;
  for (const Note& n : report.findings)
    text += fmt::format("{} {} [{}] {}: {}\n", note_code(n), note_severity(n), n.file, n.tensor,
                        n.message);
  return text;
}

/// Where the elements of `tensor`'s first chunk lie.
inline std::pair<std::string, std::size_t> place_of(FileSystem& fs, const std::string& path,
                                                    const std::string& tensor) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  const Source& source = opened.manifest.source(*opened.manifest.find(tensor), 0);
  return {opened.manifest.files[source.file].path, static_cast<std::size_t>(source.offset)};
}

inline constexpr VerifyLevel kLevels[] = {VerifyLevel::kQuick, VerifyLevel::kFull,
                                          VerifyLevel::kDeep};

}  // namespace tessera::testing

#pragma once
// Small checkpoints to publish.
#include <tessera/storage/stage.h>

#include <string>

#include "tests/storage/storage_fixture.h"

namespace tessera::test {

inline constexpr const char* kHash =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
inline constexpr const char* kOtherHash = "ffeeddccbbaa99887766554433221100";
inline constexpr const char* kSealText = "{\"seal\":1}";

inline const Tree kOld = {{"a.bin", "old a"}, {"old.bin", "only in the old one"}};
inline const Tree kNew = {{"a.bin", "new a, longer"}, {"sub/", ""}, {"sub/b.bin", "new b"}};

inline Bytes seal_bytes() {
  const ByteView text = as_bytes(kSealText);
  return {text.begin(), text.end()};
}

inline Tree sealed(Tree tree) {
  tree["tessera.manifest.json"] = kSealText;
  return tree;
}

/// `tree` inside a folder `name`.
inline Tree under(const std::string& name, const Tree& tree) {
  Tree out{{name + "/", ""}};
  for (const auto& [path, content] : tree) out[name + "/" + path] = content;
  return out;
}

/// Writes the files of `tree`, each in two pieces that are journalled.
inline void fill(Stage& stage, const Tree& tree) {
  std::uint32_t number = 0;
  for (const auto& [path, content] : tree) {
    if (path.ends_with('/')) continue;
    const auto file = stage.create(path, IoMode::kDirect);
    const ByteView bytes = as_bytes(content);
    const std::size_t half = bytes.size() / 2;
    file->allocate(bytes.size());
    file->write_at(half, bytes.subspan(half));
    stage.journal({number, 0, half, bytes.size() - half});
    file->write_at(0, bytes.first(half));
    stage.journal({number, 0, 0, half});
    file->sync();
    file->close();
    ++number;
  }
  stage.flush_journal();
}

inline void publish(FileSystem& fs, const std::string& path, const std::string& hash,
                    const StageOptions& options, const Tree& tree) {
  const auto stage = Stage::open(fs, path, hash, options);
  fill(*stage, tree);
  stage->publish({}, seal_bytes);
}

}  // namespace tessera::test

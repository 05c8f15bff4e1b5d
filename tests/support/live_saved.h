#pragma once
// Small checkpoints in a memory file system, saved and loaded by one rank.
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/memory_file_system.h>

#include <functional>
#include <initializer_list>

namespace tessera::test {

inline SaveOptions saving(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  return options;
}

inline LoadPolicy loading(FileSystem& fs) {
  LoadPolicy policy;
  policy.file_system = &fs;
  return policy;
}

/// /run/a, of the state that `build` fills in.
inline void save_one(FileSystem& fs, const std::function<void(LiveState&)>& build) {
  LiveState state;
  build(state);
  const auto ranks = single_rank();
  save("/run/a", state, *ranks, saving(fs));
}

inline LoadResult load_one(const LiveState& state, const LoadPolicy& policy) {
  const auto ranks = single_rank();
  return load("/run/a", state, *ranks, policy);
}

/// Keys of nested dicts.
inline Path at(std::initializer_list<const char*> keys) {
  Path path;
  for (const char* key : keys) path.push_back(key_item(key));
  return path;
}

}  // namespace tessera::test

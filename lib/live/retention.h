#pragma once
// Retention: a run's folder holds checkpoints of one name with growing numbers (step_90, step_100)
// and a pointer `latest`. Old ones are removed; what the pointer names never is.
//
//   <run>/latest        the name of a neighbour, replaced by one rename
//   <run>/step_90       a checkpoint of ours (it has our manifest)
//   <run>/.step_90.tmp-<hash>   one on its way out: invisible before its first file goes
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct Retention {
  std::vector<std::string> removed;
  std::vector<std::string> failed;  // "step_3: why"
};

/// Throws kInvalidArgument where `latest` beside `path` cannot be replaced, or is `path` itself.
void check_can_point(const FileSystem& fs, const std::string& path);

/// Makes `latest` beside `path` name it. Durable when it returns. Throws kNotFound where another
/// save has removed it.
void point_latest(FileSystem& fs, const std::string& path);

/// Keeps the newest `keep_last` (at least 1) of the checkpoints named like `path` (canonical),
/// `path` itself and what `latest` names. Larger numbers are of a run that was rolled back: they
/// neither count nor go. Leftovers of interrupted saves and removals of
/// that name go too, except where the file system has no locks, because it is unknown there whether
/// they are in use. Failing to remove one is not an error: the next call tries again.
Retention remove_old(FileSystem& fs, const std::string& path, std::uint32_t keep_last);

}  // namespace tessera

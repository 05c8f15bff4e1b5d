#pragma once
// Files beside a checkpoint's own.
#include <tessera/ops/open.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {

/// Files below the checkpoint's folder, at any depth, that its manifest does not list; our seal is
/// its own, and pointers were followed. `looked_into`: files and folders that count as such, too.
/// Links count, as what they lead to is not part of the checkpoint. Folders that cannot be listed
/// count as one. Sorted.
std::vector<std::string> other_files(const OpenedCheckpoint& checkpoint,
                                     const std::set<std::string>& looked_into);

}  // namespace tessera

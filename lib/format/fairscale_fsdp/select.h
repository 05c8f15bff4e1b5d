#pragma once
// Choosing the files of a checkpoint: by names (files.h) and by what the first of each family
// holds. Opens a handful of archives; used by detection and by reading.
#include <tessera/base/error.h>
#include <tessera/format/format_driver.h>

#include <optional>
#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/files.h"

namespace tessera::fairscale {

struct ChosenFiles {
  /// Files by rank; a rank without files is missing. The first family's file comes first.
  std::vector<std::vector<std::string>> ranks;
  std::vector<std::string> others;  // torch.save files that belong to no rank
  /// How rank files are named; prefix and suffix empty for a single file of any name.
  FileFamily family;
  bool counts_from_one = false;
};

/// nullopt: nothing here that can be read has FairScale's metadata; `unreadable` then is what the
/// first file said that cannot. Throws kUnsupported when several checkpoints stand side by side.
std::optional<ChosenFiles> choose_files(const Place& place, Status* unreadable = nullptr);

/// A torch.save file's root, or nullopt when it is none.
std::optional<Value> peek_root(const Directory& directory, const std::string& name,
                               std::uint64_t pickle_limit_bytes);

}  // namespace tessera::fairscale

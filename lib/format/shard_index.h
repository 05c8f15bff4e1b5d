#pragma once
// Hugging Face's shards, whatever is inside them: an index (`model.safetensors.index.json`,
// `pytorch_model.bin.index.json`) that names a file for each tensor, or files numbered
// `model-00002-of-00005`. (safetensors, torch-save.)
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/findings.h"

namespace tessera {

/// How one kind of shard, and its index, are named.
struct ShardNaming {
  std::string_view suffix;        // ".safetensors", ".bin"
  std::string_view index_suffix;  // ".safetensors.index.json", ".bin.index.json"
};

/// An index, as far as we use it.
struct ShardIndex {
  std::string file;
  std::vector<std::pair<std::string, std::uint32_t>>
      weight_map;                   // tensor -> index in `shards`, in file order
  std::vector<std::string> shards;  // sorted, unique, safe relative paths
  std::optional<std::int64_t> total_size;
  /// ColossalAI's index of an optimizer names the file of its groups; a safe relative path, "": none.
  std::string param_groups;
};

struct ShardSet {
  std::vector<std::string> files;  // those that are there, sorted
  std::optional<ShardIndex> index;
  std::string incomplete = {};  // names of a numbered set of which some are missing; "": none is
};

/// Throws kCorrupt for JSON that is no index, an empty map, or a shard name that leaves the folder.
ShardIndex read_shard_index(const Directory& directory, const std::string& file);

/// The same, or nullopt with a finding (CK042) where it cannot be parsed, `options` ask to go on
/// without it (guess_index), and the folder's files are one numbered set: their names show which
/// belong together and which are missing.
std::optional<ShardIndex> read_or_guess_index(const Directory& directory, const std::string& file,
                                              const ShardNaming& naming, const ReadOptions& options,
                                              Findings& findings);

/// The folder's one index; "" without one. Throws kUnsupported for several.
std::string only_shard_index(const Directory& directory, const ShardNaming& naming);

/// The whole model's one file beside an index of other files, which Hugging Face's loaders take
/// before the index: "model.safetensors" beside "model.safetensors.index.json". "" where there is
/// none, or where the index names it itself. What is left out of account is noted (CK018).
std::string file_before_index(const Directory& directory, const ShardIndex& index,
                              Findings& findings);

/// The shards that the index names. Missing ones are findings (CK010), numbered or otherwise
/// like-named files that it does not name warnings (CK018).
ShardSet shards_of_index(const Directory& directory, const ShardNaming& naming, ShardIndex index,
                         Findings& findings);

/// "model-00002-of-00005.safetensors" -> {"model-*-of-00005", 2, 5}
struct NumberedName {
  std::string family;
  std::int64_t number = 0;
  std::int64_t total = 0;
};
std::optional<NumberedName> numbered_shard(std::string_view name, const ShardNaming& naming);

/// A regular file of that suffix that is not hidden.
bool is_shard_file(const FileInfo& info, const ShardNaming& naming);
/// A link or the like that stands in the place of a numbered shard.
bool is_unusable_shard(const FileInfo& info, const ShardNaming& naming);

/// Without an index, the numbers in a family's names show how many files it should have: CK010
/// where some are missing, CK036 where all are here and a loader would need an index
/// (`index_expected`). Returns the names of the first set of which some are missing, or "".
std::string check_numbered_shards(const std::vector<std::string>& files, const ShardNaming& naming,
                                  bool index_expected, Findings& findings);

/// A name that the shards hold, and in which of ShardSet::files.
struct HeldName {
  std::string name;
  std::vector<std::uint32_t> files;
  bool in_pieces = false;  // each file holds another part of it: no copy is stale
};

/// What the index says against what the shards hold: CK024, CK030, CK031, CK033. Of each held name
/// the one file that counts; none where all of them do. `set` has an index; `lost(file)`: the file
/// is there, but nothing of it can be read.
std::vector<std::optional<std::uint32_t>> compare_with_index(
    const ShardSet& set, std::span<const HeldName> held,
    const std::function<bool(std::uint32_t file)>& lost, Findings& findings);

/// CK032 if the index states another size than that of the tensors in all shards.
void compare_total_size(const ShardIndex& index, std::uint64_t total_bytes, Findings& findings);

}  // namespace tessera

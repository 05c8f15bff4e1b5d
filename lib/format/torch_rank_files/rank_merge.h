#pragma once
// One logical entry out of every rank's leaf of one name.
//
//   sharded tensors        the whole, its pieces from every rank; of those made of several tensors
//                          (8-bit state) one object of whole parts, where its class can be cut so
//   equal on all ranks     one entry; tensors keep a replica per rank
//   different              one entry per rank below the name: "rng.cpu" -> "rng.cpu.rank_0", ...
#include <map>
#include <string>
#include <vector>

#include "lib/format/torch_rank_files/rank_states.h"

namespace tessera::rank_files {

class RankMerger {
 public:
  RankMerger(ArchiveManifestBuilder& builder, ArchiveBytes& bytes)
      : builder_(builder), bytes_(bytes) {}

  /// Adds `entry` to the manifest under `path`.
  void add(const RankEntry& entry, const Path& path);
  void add(const RankEntry& entry) { add(entry, entry.path); }

  /// Adds a note where entries differed from rank to rank.
  void note_rank_local(std::vector<Note>& notes) const;

 private:
  void add_sharded(const RankEntry& entry, const Path& path);
  void add_tensor(const RankEntry& entry, const Path& path);
  bool add_packed(const RankEntry& entry, const Path& path);
  bool all_equal(const RankEntry& entry);
  void add_per_rank(const RankEntry& entry, const Path& path);

  ArchiveManifestBuilder& builder_;
  ArchiveBytes& bytes_;
  std::size_t rank_local_ = 0;
};

/// Notes on containers of all ranks. `first_entry`: names of entries -> their numbers in the manifest.
void add_containers(ArchiveManifestBuilder& builder, std::vector<RankContainer>& containers,
                    const std::map<std::string, std::size_t>& first_entry);

}  // namespace tessera::rank_files

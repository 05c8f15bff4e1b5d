#pragma once
// Every rank's file of one part, opened and flattened: the same names with each rank's own piece.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_rank_files/rank_folder.h"
#include "lib/format/torch_rank_files/sharded_value.h"

namespace tessera::rank_files {

/// One leaf of one rank: a sharded tensor, a plain one (TensorRef), or a value.
struct RankLeaf {
  std::int64_t rank = 0;
  std::uint32_t file = 0;
  Value value;  // kTensor: a plain tensor of the archive
  const ShardedValue* sharded = nullptr;
};

/// The leaves of one name, in order of ranks; ranks that lack it are left out.
struct RankEntry {
  Path path;  // the part's key included
  std::string name;
  std::vector<RankLeaf> leaves;

  bool is_sharded() const { return leaves.front().sharded != nullptr; }
};

struct RankContainer {
  ContainerNote note;
  std::uint32_t file = 0;
  std::string before;  // name of the entry it stands before, "" = at the end
};

/// All parts of all ranks. Values refer to nodes that the builder's archives own.
struct RankStates {
  RankFolder folder;
  std::vector<RankEntry> entries;  // in the first rank's order; what only later ones have follows
  std::vector<RankContainer> containers;
  std::vector<std::string> missing;  // files that should be there, as they would be named
  std::vector<std::int64_t> missing_ranks;
  std::vector<std::unique_ptr<ShardedValue>> sharded;
};

/// Opens every file. A missing one, or one that cannot be read, is a finding. Throws kCorrupt when
/// the files come from saves of different world sizes.
RankStates open_ranks(RankFolder folder, ArchiveManifestBuilder& builder, Findings& findings);

}  // namespace tessera::rank_files

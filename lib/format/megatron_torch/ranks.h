#pragma once
// The open rank files of one megatron-torch checkpoint, and which bytes of two of them are equal
// (by the CRC-32 that zip archives keep: no tensor byte is read).
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/megatron_torch/args.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera::megatron_torch {

struct RankFile {
  GridRank rank;
  std::string path;  // of model_optim_rng.pt
  std::uint32_t file = 0;
};

/// Which set of parts a rank's part belongs to, and its place there.
struct SetPlace {
  std::int64_t set = 0;  // sets hold the same content
  std::size_t slot = 0, slots = 1;
};

/// Everything the parts of the reader share. References stay valid while reading.
struct Ranks {
  const Directory& directory;
  ArchiveManifestBuilder& builder;
  Findings& findings;
  Args args;
  RankGrid grid;
  std::vector<RankFile> files;                  // those present, by (pp, ep, tp)
  bool gated = false;                           // first MLP matrices are pairs [gate; up]
  bool assume_plain = false;                    // kAssumePlainFlag
  std::map<std::string, bool> plain_rows = {};  // FQNs without a rule: cut in rows, or whole
  std::set<std::string> uncompared = {};        // FQNs of replicas that CRCs cannot compare

  /// Ranks numbered as folders are sorted: stages, then expert ranks, then tensor-parallel ones.
  std::int64_t number(const GridRank& rank) const {
    return (rank.pp * grid.ep + rank.ep) * grid.tp + rank.tp;
  }
  /// One set for each stage and expert-parallel rank, with a part of every tensor-parallel rank; of
  /// packed experts one for each stage, expert ranks behind each other.
  SetPlace place(const GridRank& rank, bool packed) const {
    const auto at = static_cast<std::size_t>(rank.tp), size = static_cast<std::size_t>(grid.tp);
    if (!packed) return {rank.pp * grid.ep + rank.ep, at, size};
    return {rank.pp * grid.ep, static_cast<std::size_t>(rank.ep) * size + at,
            static_cast<std::size_t>(grid.ep) * size};
  }
  const Value& root(const RankFile& file) const { return builder.archive(file.file).root; }
  const ArchiveTensor& tensor(std::uint32_t file, std::uint32_t index) const {
    return builder.archive(file).tensors[index];
  }
};

/// Values of two archives, tensors inside compared by known_equal(); unknown counts as different.
bool same_value(const TorchArchive& a, const Value& x, const TorchArchive& b, const Value& y);

}  // namespace tessera::megatron_torch

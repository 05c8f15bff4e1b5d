#pragma once
// Which files of a folder are one rank's each, by their names.
//
//   rank0.pt rank1.pt ...               one part, the whole
//   pytorch_model_fsdp_rank0.bin ...    accelerate's local state dict: one part
//   model_world_size_4_rank_0.pt,
//     optim_..., extra_state_...        verl: parts of one state, each under its own key
//   model_rank_0.pt, optim_rank_0.pt    the same without the world size
//
// Ranks are numbers: rank 10 comes after rank 9.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::rank_files {

inline constexpr std::int64_t kMaxRank = 1 << 20;

/// One rank's file by its name: what is left without rank and world size is the label.
struct RankName {
  std::string label;  // "model", "" for a bare "rank0.pt"
  std::int64_t rank = 0;
  std::optional<std::int64_t> world_size;  // where the name has it
};
/// nullopt for a name of another kind (DeepSpeed's and Megatron's mp_rank_NN among them).
std::optional<RankName> parse_rank_name(std::string_view name);

struct RankPart {
  std::string label;
  std::string key;                 // where its root stands in the whole, "" = it is the whole
  std::vector<std::string> files;  // by rank; "" where there is none
  std::string sample;              // one of them
  bool is_item = false;            // named "<label>_<rank>.pt"
  std::string name_of(std::int64_t rank) const;  // the name a missing file would have
};

struct RankFolder {
  std::vector<RankPart> parts;      // model first, then optimizer, then others by label
  std::int64_t world_size = 0;      // the most any part shows
  std::vector<std::string> others;  // torch.save files that are no rank's
  std::vector<FileInfo> unusable;   // named like a rank's, but links, folders or devices
  bool declared = false;            // the names give the world size
};

/// nullopt when no file is named like a rank's. Throws kCorrupt when names of one part give several
/// world sizes or one rank twice, or speak of far more ranks than there are files.
std::optional<RankFolder> find_rank_files(const Directory& directory);

}  // namespace tessera::rank_files

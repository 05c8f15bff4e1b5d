#pragma once
// The traces of all ranks put together: which collective was the first that the ranks did not do
// alike, and who is missing. No LibTorch; the command fsdp-trace-merge is made of it.
//
// Ranks write `rank<N>.json` when a collective fails or times out (WorldOptions::trace_folder,
// TESSERA_TRACE_DIR). A rank that was killed, or that hangs outside of collectives, writes nothing.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::fsdp {

struct TraceSummary {
  enum class Kind : std::uint8_t {
    kAlike,       // every group's ranks did the same, and all of it is done
    kDiffer,      // ranks issued different collectives
    kBehind,      // some ranks never issued what others did
    kIncomplete,  // all that wrote issued it, and it did not end: somebody is missing, or was late
  };
  /// What one rank has at the place of the divergence.
  struct Side {
    int rank = 0;
    bool issued = false;
    std::string call;    // issued: the collective; else the last one it has, or ""
    std::string error;   // what its call failed with; may be empty
    double after_s = 0;  // issued: seconds after the first rank, by the ranks' own clocks
  };

  Kind kind = Kind::kAlike;
  std::string group;           // its name
  std::uint64_t sequence = 0;  // of the collective within the group
  std::vector<Side> sides;     // by rank
  std::vector<int> ranks;      // that wrote
  std::vector<int> missing;    // members of some group that did not

  /// Several lines for people.
  std::string to_string() const;
};

/// Reads every `rank<N>.json` of the folder. Throws kNotFound without any, kCorrupt for one that is
/// no trace.
TraceSummary merge_traces(const std::filesystem::path& folder);

}  // namespace tessera::fsdp

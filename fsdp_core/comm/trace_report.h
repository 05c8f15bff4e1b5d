#pragma once
// What a rank was doing, as a file: the records of all its groups as JSON, `rank<N>.json` in the
// trace folder. trace_merge.h reads the files of all ranks.
//
//   {"format": "tessera-trace", "version": 1, "rank": 1, "written_us": ..,
//    "groups": [{"name": "world", "ranks": [0, 1], "error": "", "records":
//      [{"sequence": 0, "op": "all-gather", "phase": "forward", "unit": "layers.0",
//        "dtype": "Float", "numel": 64, "done": true, "issued_us": ..}]}]}
#include <tessera/fsdp/communicator.h>

#include <filesystem>
#include <string_view>

namespace tessera::fsdp {

/// The communicators of this process that have a trace folder. Any thread may add and remove; the
/// records written are those of the caller's own rank, whose one thread issues its calls.
class TraceBoard {
 public:
  static void add(const Communicator& comm);
  static void remove(const Communicator& comm);
  /// All groups of `global_rank` with that folder, the newest of each name. Errors are printed on
  /// stderr.
  static void write(const Communicator& failing, int global_rank,
                    const std::filesystem::path& folder, std::string_view reason) noexcept;
};

}  // namespace tessera::fsdp

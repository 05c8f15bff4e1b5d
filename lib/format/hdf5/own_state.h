#pragma once
// The state dict behind an HDF5 file of our own writing. The file is a plain tree that anybody
// reads; what a tree of datasets cannot say stands in one JSON dataset, `tessera.state`:
//
//   {"values": {"epoch": 3, "optim.param_groups.0.lr": {"__attribute__": ["optim/param_groups/0",
//               "lr"]}, "...betas": {"__attribute__": [group, name, "tuple"]}},
//    "state": ...,                                 order, paths and kinds of containers (as
//                                                  safetensors' tessera.state)
//    "names": {"model/a%2Fb": "model.a/b"},        datasets whose name is not their path
//    "aliases": {"lm_head.weight": "wte.weight"}}  tied tensors that were left out
//
// A value stands in one place only: as an attribute where HDF5 has a type for it, else here.
#include <tessera/format/format_driver.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/hdf5/report.h"

namespace tessera::h5 {

class OwnState {
 public:
  /// nullopt: the file is somebody else's. Throws kUnsupported for a later version of ours,
  /// kCorrupt for JSON that is none of ours.
  static std::optional<OwnState> read(const Report& report, const Directory& directory,
                                      const std::string& file, std::uint64_t memory_limit_bytes);

  bool is_state_dataset(const std::string& path) const;
  std::string name_of(const std::string& dataset_path) const;
  /// `names`: of the tensors, in manifest order. Sets `embedded[i]` for those inside values.
  StateDict restore(const Report& report, const std::vector<std::string>& names,
                    std::vector<bool>& embedded) const;
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

 private:
  Value values_, state_;  // JSON
  std::map<std::string, std::string> names_, aliases_;
};

}  // namespace tessera::h5

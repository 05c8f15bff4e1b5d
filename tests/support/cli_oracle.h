#pragma once
// What the commands print, held against expected.json of a sample.
#include <tessera/state/value.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// JSON text of a command (its own output, not limited as untrusted text is).
Value parsed(const std::string& json);

/// A case of sample_checkpoints: "dcp/fsdp2_w4".
struct OracleCase {
  std::string name;
  std::string path;  // what the commands get
  Value expected;
  bool refuse = false;    // must_refuse: exit 4 or 5 is right, and so is reading it exactly
  bool nameless = false;  // flat buffers without names: no other world size
};
/// Every case of the groups, per-rank files left out.
std::vector<OracleCase> oracle_cases(const std::vector<std::string>& groups);

/// Differences between `ckpt-inspect hash` of `path` and the case's tensors; a failed run is one
/// line.
std::vector<std::string> tensor_differences(const OracleCase& oracle, const std::string& path);
/// The same for the values `ckpt-inspect ls` prints: only keys the oracle has.
std::vector<std::string> value_differences(const OracleCase& oracle, const std::string& path);

}  // namespace tessera::testing

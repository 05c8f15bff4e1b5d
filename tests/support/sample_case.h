#pragma once
// The sample checkpoints and their oracles, as tests compare them.
#include <tessera/format/format_driver.h>
#include <tessera/state/manifest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::testing {

/// One opened sample: sample_checkpoints/<name>, its checkpoint folder (or a folder below it).
struct SampleCase {
  std::string name;  // "dcp/fsdp2_w4"
  std::unique_ptr<Directory> directory;
  Value expected;  // expected.json; None when the sample has none

  explicit SampleCase(const std::string& name, const std::string& folder = "checkpoint");
  Place place() const { return {directory.get(), "", name}; }
};

/// Names of the cases below sample_checkpoints/<group>, sorted: "dcp/fsdp1_hsdp_mesh_2x2", ...
std::vector<std::string> sample_names(const std::string& group);

/// "float32 [4,5] <sha256>" by tensor name: leaf tensors of a located manifest.
std::map<std::string, std::string> content_of(const Manifest& manifest, const Directory& directory);
/// The same from expected.json.
std::map<std::string, std::string> expected_content(const Value& expected);

/// Every value as canonical JSON by name; tuples are lists. Tensors inside: their hashes.
std::map<std::string, std::string> values_of(const Manifest& manifest, const Directory& directory);
std::map<std::string, std::string> expected_values(const Value& expected);

/// Indices of all tensors, embedded ones included.
std::vector<std::uint32_t> all_tensors(const Manifest& manifest);

/// "name offset sizes" of every chunk of every leaf tensor, sorted. `with_empty`: zero-size ones
/// too.
std::vector<std::string> chunk_set(const Manifest& manifest, bool with_empty = true);

}  // namespace tessera::testing

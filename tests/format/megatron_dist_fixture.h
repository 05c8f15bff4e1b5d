#pragma once
// What tests of dist_checkpointing's folders share: a folder in memory that a script fills.
#include <tessera/format/megatron_dist.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/archive_gather.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::testing {

inline constexpr std::string_view kTorchDistConfig =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
/// A folder in memory with the files every torch_dist save leaves.
struct DistFolder {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;

  DistFolder() { fs.make_directories("/c"); }
  void config(std::string_view text) { fs.write_file("/c/metadata.json", as_bytes(text)); }
  void common(const Value& value) { fs.write_file("/c/common.pt", value_item(value)); }
  /// Items one after the other in __0_0.distcp.
  void data(BuiltMetadata& metadata, const std::vector<Bytes>& items) {
    Bytes file;
    for (std::size_t i = 0; i < items.size(); ++i) {
      metadata.items[i].offset = static_cast<std::int64_t>(file.size());
      metadata.items[i].length = static_cast<std::int64_t>(items[i].size());
      file.insert(file.end(), items[i].begin(), items[i].end());
    }
    fs.write_file("/c/__0_0.distcp", file);
    fs.write_file("/c/.metadata", build_metadata(metadata));
  }
  Place place() {
    directory = fs.open_directory("/c");
    return {directory.get(), "", "c"};
  }
  Manifest read(const ReadOptions& options = {}) {
    return read_all(megatron_dist_driver(), place(), options);
  }
  std::vector<float> floats(const Manifest& manifest, std::string_view name) {
    const auto index = static_cast<std::uint32_t>(manifest.find(name) - manifest.tensors.data());
    const std::int64_t numel = manifest.tensors[index].spec.shape.numel();
    Bytes bytes(static_cast<std::size_t>(numel) * 4);
    TensorReader(manifest, *directory, {}).read(index, 0, numel, bytes);
    std::vector<float> out(static_cast<std::size_t>(numel));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  Code failure(std::string& message) {
    return test::code_of([&] { read(); }, &message);
  }
};

/// Where it lies is filled in by DistFolder::data().
inline BuiltItem dist_item(std::string name, std::optional<Numbers> origin) {
  BuiltItem made;
  made.name = std::move(name);
  made.origin = std::move(origin);
  return made;
}

}  // namespace tessera::testing

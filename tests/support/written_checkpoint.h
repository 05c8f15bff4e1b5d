#pragma once
// What a writer made, as a place that drivers can read: the plan executed the obvious way, into
// memory.
#include <tessera/format/format_driver.h>
#include <tessera/format/registry.h>
#include <tessera/storage/memory_file_system.h>

#include <map>
#include <memory>
#include <string>

#include "tests/support/execute_plan.h"
#include "tests/support/sample_case.h"

namespace tessera::testing {

struct WrittenCheckpoint {
  MemoryFileSystem fs;
  OutputPlan plan;
  std::map<std::string, Bytes> files;
  std::unique_ptr<Directory> directory;
  std::string file;  // the one file's name, "" for a folder

  /// `source` must be located.
  WrittenCheckpoint(const FormatDriver& driver, const Manifest& source, const Directory& from,
                    const TargetRequest& request = {})
      : plan(driver.output_plan(source, request)) {
    files = execute_plan(source, from, plan);
    if (plan.single_file) file = "result";
    for (const auto& [path, content] : files)
      fs.write_file("/out/" + (path.empty() ? file : path), content);
    directory = fs.open_directory("/out");
  }
  Place place() const { return {directory.get(), file, "result"}; }
};

/// Puts a made-up checkpoint into `fs` as one file of torch.save. Returns its path.
inline std::string save_made(MemoryFileSystem& fs, const Manifest& made) {
  fs.make_directories("/none");
  TargetRequest request;
  request.single_file = true;
  const WrittenCheckpoint written(*find_format("torch-save"), made, *fs.open_directory("/none"),
                                  request);
  fs.write_file("/made.pt", written.files.begin()->second);
  return "/made.pt";
}

/// A located manifest of everything at `place`.
inline Manifest read_all(const FormatDriver& driver, const Place& place,
                         const ReadOptions& options = {}) {
  Manifest manifest = driver.manifest(place, options);
  driver.locate(place, manifest, all_tensors(manifest), options);
  return manifest;
}

}  // namespace tessera::testing

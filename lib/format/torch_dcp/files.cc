#include "lib/format/torch_dcp/files.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

/// Writers make plain names in the checkpoint's own folder; anything else wants out of it.
void require_plain_name(const std::string& path) {
  const bool plain = !path.empty() && path != "." && path != ".." &&
                     path.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain) {
    fail(
        Code::kCorrupt,
        fmt::format("relative_path \"{}\" is no file name inside the checkpoint; refused as unsafe",
                    printable(path)));
  }
}

/// The highest rank among the files that take part: those .metadata names, and empty ones, which
/// ranks without items leave. Full ones without a name are left from another save.
void set_world_size(Manifest& manifest, const std::set<std::string_view>& names) {
  std::int64_t world_size = 0;
  for (const std::string_view name : names) {
    const auto rank = rank_of_data_file(name);
    if (!rank) return;
    world_size = std::max(world_size, *rank + 1);
  }
  if (names.empty()) return;
  manifest.world_size = world_size;
  manifest.world_size_source =
      fmt::format("rank numbers in {} file name{}", names.size(), names.size() == 1 ? "" : "s");
}

}  // namespace

std::vector<bool> check_files(const Place& place, const DcpMetadata& metadata, Manifest& manifest,
                              Findings& findings) {
  std::map<std::string, FileInfo> present;
  for (FileInfo& info : place.directory->list()) {
    std::string name = info.name;
    present.emplace(std::move(name), std::move(info));
  }
  std::vector<bool> missing(metadata.files.size(), false);
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < metadata.files.size(); ++i) {
    const std::string& path = metadata.files[i];
    require_plain_name(path);
    names.insert(path);
    StoredFile file{path, 0, 0};
    const auto found = present.find(path);
    if (found == present.end()) {
      missing[i] = true;
      findings.error(Finding::kMissingFile, "the file is missing, .metadata names it", path, {});
    } else if (found->second.type != FileType::kRegular) {
      missing[i] = true;
      findings.error(Finding::kMissingFile, std::string(no_regular_file(found->second.type)), path,
                     {});
    } else {
      file.size_bytes = found->second.size_bytes;
      file.mtime_ns = found->second.mtime_ns;
    }
    manifest.files.push_back(std::move(file));
  }
  for (const auto& [name, info] : present) {
    const bool is_metadata = name == kMetadataFile || rank_of_metadata_file(name).has_value();
    if (is_metadata) manifest.files.push_back({name, info.size_bytes, info.mtime_ns});
    if (!rank_of_data_file(name) || names.contains(name)) continue;
    if (info.size_bytes == 0) {
      names.insert(name);
      manifest.files.push_back({name, 0, info.mtime_ns});
    } else {
      findings.note(Finding::kStaleFile, Severity::kWarning,
                    "no item of .metadata lies in this file: left from another save, ignored",
                    name);
    }
  }
  set_world_size(manifest, names);
  return missing;
}

}  // namespace tessera::dcp

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>

#include "lib/format/torchsnapshot/parts.h"

namespace tessera::snapshot {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;

Bytes read_metadata(const Directory& directory, Manifest& manifest) {
  const std::string name(kMetadataFile);
  return in_file(name, [&] {
    const std::optional<FileInfo> info = directory.stat(name);
    if (!info)
      fail(Code::kCorrupt, "incomplete: no .snapshot_metadata (interrupted save)",
           "the data files alone do not say what they hold; use an earlier snapshot");
    const auto file = directory.open(name);
    manifest.files.push_back({name, file->size_bytes(), info->mtime_ns});
    Bytes text(file->size_bytes());
    file->read_at(0, text);
    return text;
  });
}

/// Names follow from the tree: of leaves, and of what leaves embed.
void name_tensors(Manifest& manifest) {
  for (const StateEntry& entry : manifest.state.entries)
    for_each_tensor(entry.value,
                    [&](std::uint32_t index) { manifest.tensors[index].name = entry.name; });
  for (StoredTensor& tensor : manifest.tensors) tensor.embedded = true;
  for (const StateEntry& entry : manifest.state.entries)
    if (entry.value.is_tensor()) manifest.tensors[entry.value.tensor_index()].embedded = false;
}

/// What follows the last tensor of a slab is nothing that the snapshot knows. Files of one tensor
/// are looked at where their chunk is made.
void note_slab_ends(const Metadata& metadata, const Manifest& manifest, Findings& findings) {
  std::map<std::string, std::uint64_t> ends;
  for (const Entry& entry : metadata.entries)
    for (const TensorPart& part : entry.parts)
      if (part.part.range) {
        std::uint64_t& end = ends[part.part.location];
        end = std::max(end, part.part.range->second);
      }
  for (const StoredFile& file : manifest.files) {
    const auto slab = ends.find(file.path);
    if (slab == ends.end() || file.size_bytes <= slab->second) continue;
    findings.note(Finding::kTrailingBytes,
                  findings.tolerate() ? Severity::kError : Severity::kWarning,
                  fmt::format("{} bytes follow the slab's last tensor, which ends at {}",
                              file.size_bytes - slab->second, slab->second),
                  file.path);
  }
}

/// Ranks' copies of one chunk are said once, not tensor by tensor.
void note_copies(Manifest& manifest) {
  std::size_t tensors = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    const bool copied =
        tensor.chunk_count > 1 && manifest.chunk(tensor, 0) == manifest.chunk(tensor, 1);
    tensors += copied;
  }
  if (tensors == 0) return;
  manifest.notes.push_back(
      {Finding::kReplicas, Severity::kInfo,
       fmt::format("ranks stored copies of {} tensors that were not declared replicated", tensors),
       "", ""});
}

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  Manifest manifest;
  const Bytes text = read_metadata(*place.directory, manifest);
  const Metadata metadata =
      in_file(std::string(kMetadataFile), [&] { return parse_metadata(text); });
  manifest.format = "torchsnapshot";
  manifest.dialect = fmt::format("torchsnapshot {}, {} metadata", printable(metadata.version),
                                 metadata.yaml ? "YAML" : "JSON");
  manifest.provenance["torchsnapshot"] = metadata.version;
  manifest.world_size = metadata.world_size;
  manifest.world_size_source = "world_size in .snapshot_metadata";
  Findings findings(options.tolerate_damage, manifest.notes);
  LeafMaker leaves(*place.directory, options, manifest, findings);
  const MergedRanks root = merge_ranks(metadata, leaves, findings);
  ValueBudget budget(kMaxLeaves);
  manifest.state = flatten(root.tree, budget);
  for (StateEntry& entry : manifest.state.entries)
    if (const auto own = root.own.find(entry.path.empty() ? "" : entry.path[0].key);
        own != root.own.end())
      entry.rank = own->second;
  keep_entries(manifest, std::vector<bool>(manifest.state.entries.size(), true));
  name_tensors(manifest);
  note_copies(manifest);
  note_slab_ends(metadata, manifest, findings);
  return manifest;
}

}  // namespace tessera::snapshot

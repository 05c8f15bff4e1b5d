#include "lib/ops/open/losses.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/layout/coverage.h>

#include <cstdint>

namespace tessera {
namespace {

bool is_there(const Manifest& manifest, const Source& source) {
  if (source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill) return true;
  const std::uint64_t size = manifest.files[source.file].size_bytes;
  return source.offset <= size && source.length <= size - source.offset;
}

/// One chunk is all of it: the common case, cheap.
bool is_whole(const Manifest& manifest, const StoredTensor& tensor) {
  if (tensor.spec.shape.numel() == 0) return true;
  return tensor.chunk_count == 1 &&
         manifest.chunk(tensor, 0) == Chunk::whole_of(Box::whole(tensor.spec.shape));
}

/// What missing and short files take along: elements that no other copy holds.
void list_lost(const Manifest& manifest, std::vector<Note>& findings) {
  for (const StoredTensor& tensor : manifest.tensors) {
    std::vector<std::uint32_t> gone;
    std::set<std::string> sound;
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (!is_there(manifest, manifest.source(tensor, c))) gone.push_back(c);
    if (gone.empty()) continue;
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (is_there(manifest, manifest.source(tensor, c)))
        sound.insert(manifest.chunk(tensor, c).to_string());
    std::int64_t lost = 0;
    std::uint32_t first = 0;
    for (std::uint32_t c : gone) {
      const Chunk chunk = manifest.chunk(tensor, c);
      if (!sound.insert(chunk.to_string()).second) continue;  // another copy is whole, or counted
      if (lost == 0) first = c;
      lost += chunk.numel();
    }
    if (lost == 0) continue;
    findings.push_back({Finding::kLost, Severity::kError,
                        fmt::format("lost: {} of {}, from {} on", lost,
                                    with_noun(tensor.spec.shape.numel(), "element"),
                                    manifest.chunk(tensor, first).box.to_string()),
                        manifest.files[manifest.source(tensor, first).file].path, tensor.name});
  }
}

/// What missing ranks take along where nothing else remembers them: elements that no chunk holds.
void list_holes(const Manifest& manifest, const std::set<std::string>& damaged,
                std::vector<Note>& findings) {
  for (const StoredTensor& tensor : manifest.tensors) {
    if (damaged.contains(tensor.name) || is_whole(manifest, tensor)) continue;
    std::vector<Chunk> chunks;
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (const Chunk chunk = manifest.chunk(tensor, c); chunk.numel() > 0) chunks.push_back(chunk);
    const CoverageReport report = check_coverage(tensor.spec.shape, chunks);
    if (report.missing_numel == 0) continue;
    const std::string where =
        report.first_hole ? ", the first at " + report.first_hole->to_string() : std::string();
    findings.push_back({Finding::kLost, Severity::kError,
                        fmt::format("lost: {} of {} elements are in no file{}",
                                    report.missing_numel, tensor.spec.shape.numel(), where),
                        "", tensor.name});
  }
}

}  // namespace

std::vector<Note> find_losses(const Manifest& manifest, const std::set<std::string>& damaged) {
  std::vector<Note> findings;
  list_lost(manifest, findings);
  list_holes(manifest, damaged, findings);
  return findings;
}

}  // namespace tessera

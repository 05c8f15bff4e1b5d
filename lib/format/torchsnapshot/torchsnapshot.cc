#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/torchsnapshot.h>

#include <algorithm>
#include <map>
#include <string>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torchsnapshot/snapshot_parts.h"

namespace tessera {
namespace snapshot {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

/// Compares two copies of a chunk, block by block.
void require_equal(const Directory& directory, const Manifest& manifest, const Source& a,
                   const Source& b) {
  const auto left = directory.open(manifest.files[a.file].path);
  const auto right = directory.open(manifest.files[b.file].path);
  Bytes x(std::min(kBlockBytes, a.length));
  Bytes y(x.size());
  for (std::uint64_t at = 0; at < a.length; at += kBlockBytes) {
    const auto length = std::min(kBlockBytes, a.length - at);
    left->read_at(a.offset + at, MutableBytes(x).first(length));
    right->read_at(b.offset + at, MutableBytes(y).first(length));
    if (x == y) continue;
    fail(Code::kUnsupported,
         fmt::format("ranks hold different values of it ({} and {}), and the snapshot does not say "
                     "which one counts",
                     manifest.files[a.file].path, manifest.files[b.file].path),
         "leave it out (--exclude), or take what is whole (--salvage)");
  }
}

void compare_copies(const Directory& directory, const Manifest& manifest,
                    const StoredTensor& tensor) {
  std::map<std::string, Source> firsts;  // by place in the tensor
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const Source& source = manifest.source(tensor, c);
    if (source.kind != Source::Kind::kExtent || source.side != 0) continue;
    const auto [first, is_first] = firsts.emplace(manifest.chunk(tensor, c).to_string(), source);
    if (is_first || first->second.length != source.length) continue;
    in_tensor(tensor.name, [&] { require_equal(directory, manifest, first->second, source); });
  }
}

}  // namespace

void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
            const ReadOptions& options) {
  locate_archives(*place.directory, manifest, tensors, options);
  if (options.tolerate_damage) return;
  for (const std::uint32_t t : tensors)
    compare_copies(*place.directory, manifest, manifest.tensors[t]);
}

}  // namespace snapshot

namespace {

/// "batched/<uuid>" is what every snapshot of several small tensors leaves, whole or not.
bool has_slabs(const Directory& directory) {
  const auto batched = directory.stat("batched");
  if (!batched || batched->type != FileType::kDirectory) return false;
  constexpr std::size_t kUuidLength = 36;
  return std::ranges::any_of(directory.list("batched"), [](const FileInfo& info) {
    return info.name.size() == kUuidLength && info.name[8] == '-' && info.name[13] == '-';
  });
}

class TorchsnapshotDriver final : public FormatDriver {
 public:
  std::string_view id() const override { return "torchsnapshot"; }
  Capabilities capabilities() const override { return {.writes = false}; }

  ProbeResult probe(const Place& place) const override {
    using Answer = ProbeResult::Answer;
    if (!place.file.empty()) return {};
    if (place.directory->stat(snapshot::kMetadataFile))
      return {Answer::kYes, "has .snapshot_metadata"};
    if (has_slabs(*place.directory))
      return {Answer::kMaybe, "has slabs of torchsnapshot, but no .snapshot_metadata"};
    return {};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return snapshot::read_manifest(place, options);
  }
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    snapshot::locate(place, manifest, tensors, options);
  }
  OutputPlan output_plan(const Manifest&, const TargetRequest&) const override {
    fail(Code::kUnsupported, "torchsnapshot is read, not written", "use --to torch-dcp");
  }
};

}  // namespace

const FormatDriver& torchsnapshot_driver() {
  static const TorchsnapshotDriver driver;
  return driver;
}

}  // namespace tessera

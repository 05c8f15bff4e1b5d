#include <tessera/base/error.h>
#include <tessera/format/torchsnapshot.h>

#include <algorithm>
#include <string>

#include "lib/format/torch_files/archive_driver.h"
#include "lib/format/torchsnapshot/parts.h"

namespace tessera {
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

class TorchsnapshotDriver final : public CopiedArchiveDriver {
 public:
  std::string_view id() const override { return "torchsnapshot"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kFolderFiles[] = {snapshot::kMetadataFile};
    return {.writes = false, .lists_contents = true, .folder_files = kFolderFiles};
  }

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

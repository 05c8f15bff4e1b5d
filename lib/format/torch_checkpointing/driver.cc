#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_checkpointing.h>

#include <algorithm>

#include "lib/format/probe_errors.h"
#include "lib/format/torch_checkpointing/items.h"
#include "lib/format/torch_checkpointing/metadata.h"
#include "lib/format/torch_checkpointing/parts.h"
#include "lib/format/torch_files/archive_driver.h"
#include "lib/format/torch_files/peek_root.h"
#include "lib/state/fields.h"

namespace tessera {
namespace {

using namespace checkpointing;
using Answer = ProbeResult::Answer;

/// Its last key is "version", after "world_size".
bool ends_like_metadata(const Directory& directory) {
  constexpr std::uint64_t kTail = 96;
  const auto info = directory.stat(kMetadataFile);
  if (!info || info->type != FileType::kRegular) return false;
  const auto file = directory.open(kMetadataFile);
  const std::uint64_t length = std::min(kTail, file->size_bytes());
  Bytes tail(length);
  file->read_at(file->size_bytes() - length, tail);
  return as_text(tail).find("world_size") != std::string_view::npos;
}

/// A DTensor that was pickled as itself, among the values of a dict or one dict below.
bool holds_dtensor(const Value& value, int depth = 0) {
  constexpr int kDepth = 4;
  if (value.kind() == Value::Kind::kOpaque) {
    const OpaqueObject& object = value.as_opaque();
    return object.module == "torch._tensor" && object.name.starts_with("_rebuild_from_type");
  }
  if (!value.is_dict() || depth == kDepth) return false;
  return std::ranges::any_of(
      value.as_dict(), [&](const auto& entry) { return holds_dtensor(entry.second, depth + 1); });
}

/// Each item is there on each rank, from 0 on.
bool is_complete(const ItemFiles& files) {
  if (files.empty()) return false;
  const std::size_t ranks = files.begin()->second.size();
  for (const auto& [item, by_rank] : files)
    if (item.ends_with("rank") ||  // other frameworks' words for a rank
        by_rank.size() != ranks || by_rank.begin()->first != 0 ||
        by_rank.rbegin()->first != static_cast<std::int64_t>(ranks) - 1)
      return false;
  return true;
}

/// Without metadata.pkl names alone mean nothing ("epoch_0.pt"): one of the items holds DTensors.
bool holds_dtensors(const Place& place, const ItemFiles& files) {
  return std::ranges::any_of(files, [&](const auto& item) {
    try {
      const auto root = peek_archive_root(*place.directory, item.second.begin()->second,
                                          place.pickle_limit_bytes);
      return root && holds_dtensor(*root);
    } catch (const Error& error) {
      rethrow_unless_of_content(error);
      return false;
    }
  });
}

class TorchCheckpointingDriver final : public CopiedArchiveDriver {
 public:
  std::string_view id() const override { return "torch-checkpointing"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kFolderFiles[] = {kMetadataFile};
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag, &kPlacementsFlag,
                                                      &kReplicateFlag, &kMetadataVersionFlag};
    return {.many_ranks = true,
            .keeps_opaque = true,
            .keeps_containers = true,
            .loses_dict_kinds = true,  // the top is no file but the folder of its items
            .folder_files = kFolderFiles,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    if (!place.file.empty()) return {};
    if (ends_like_metadata(*place.directory))
      return {Answer::kYes, "has metadata.pkl of torch_checkpointing", kAboutRankFiles};
    const ItemFiles files = find_item_files(*place.directory);
    if (!is_complete(files)) return {};
    const std::string items = fmt::format("{} and so on, an item's file for each rank",
                                          files.begin()->second.begin()->second);
    if (holds_dtensors(place, files)) return {Answer::kYes, "has " + items, kAboutRankFiles};
    if (!place.directory->stat(kMetadataFile)) return {};
    return {Answer::kMaybe, fmt::format("has {} beside {}", kMetadataFile, items), kAboutRankFiles};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return checkpointing::read_manifest(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return checkpointing::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& torch_checkpointing_driver() {
  static const TorchCheckpointingDriver driver;
  return driver;
}

}  // namespace tessera

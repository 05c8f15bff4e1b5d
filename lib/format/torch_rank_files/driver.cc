#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/torch_rank_files.h>

#include <utility>

#include "lib/format/probe_errors.h"
#include "lib/format/torch_files/archive_driver.h"
#include "lib/format/torch_files/peek_root.h"
#include "lib/format/torch_rank_files/parts.h"
#include "lib/format/torch_rank_files/rank_folder.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

/// Any framework's files may be named by rank: formats that know them by content count first.
ProbeResult by_names(Answer answer, std::string reason) {
  return {answer, std::move(reason), kAboutRankFiles, ProbeResult::Knows::kNames};
}

class TorchRankFilesDriver : public CopiedArchiveDriver {
 public:
  std::string_view id() const override { return "torch-rank-files"; }
  Capabilities capabilities() const override {
    static constexpr const FormatOption* kReads[] = {&kFlatLayoutFlag};
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag, &kPlacementsFlag,
                                                      &kReplicateFlag};
    return {.many_ranks = true,
            .keeps_opaque = true,
            .keeps_containers = true,
            .is_loose_files = true,
            .joins_optimizer = true,
            .reads_with = kReads,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    if (!place.file.empty()) return {};  // one rank's file alone: a torch.save file
    try {
      return probe_folder(place);
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt && error.code() != Code::kUnsupported) throw;
      // Names alone are enough to say what it is; the reader says what is wrong.
      return by_names(Answer::kMaybe, "has files named by rank: " + error.status().message);
    }
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return rank_files::read_manifest(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return rank_files::plan_output(source, request);
  }
  bool is_one_of_several(const Place& place) const override {
    return rank_in_file_name(place.file).has_value();
  }

 private:
  static ProbeResult probe_folder(const Place& place) {
    const auto found = rank_files::find_rank_files(*place.directory);
    if (!found) return {};
    std::size_t files = 0;
    std::string first;
    for (const rank_files::RankPart& part : found->parts)
      for (const std::string& file : part.files) {
        if (file.empty()) continue;
        if (first.empty()) first = file;
        ++files;
      }
    const std::string reason = fmt::format("has {} file{} named by rank, {} and so on", files,
                                           files == 1 ? "" : "s", first);
    return probe_files(place, *found, reason);
  }

  /// By the first file that can be read: a damaged one is the reader's to name.
  static ProbeResult probe_files(const Place& place, const rank_files::RankFolder& folder,
                                 const std::string& reason) {
    constexpr int kTries = 4;
    int tries = 0;
    ProbeResult damaged;
    for (const rank_files::RankPart& part : folder.parts)
      for (const std::string& file : part.files) {
        if (file.empty()) continue;
        if (++tries > kTries) return damaged;
        try {
          const auto root = peek_archive_root(*place.directory, file, place.pickle_limit_bytes);
          if (root && !root->is_dict()) return {};
          if (root) return by_names(Answer::kYes, reason);
        } catch (const Error& error) {
          rethrow_unless_of_content(error);
          damaged = by_names(Answer::kMaybe, reason + "; " + error.status().message);
        }
      }
    return damaged;
  }
};

}  // namespace

const FormatDriver& torch_rank_files_driver() {
  static const TorchRankFilesDriver driver;
  return driver;
}

std::optional<std::int64_t> rank_in_file_name(std::string_view name) {
  const auto parsed = rank_files::parse_rank_name(name);
  return parsed ? std::optional(parsed->rank) : std::nullopt;
}

}  // namespace tessera

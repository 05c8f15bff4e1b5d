#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/nanotron.h>

#include "lib/format/nanotron/reader.h"

namespace tessera {
namespace {

class NanotronDriver final : public FormatDriver {
 public:
  std::string_view id() const override { return "nanotron"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kFolderFiles[] = {nanotron::kMetadataFile};
    return {.writes = false,
            .pointer = {.name = "latest.txt", .numbered = {}},
            .folder_files = kFolderFiles};
  }

  ProbeResult probe(const Place& place) const override {
    if (!place.file.empty()) return {};
    const auto model = place.directory->stat(nanotron::kModelFolder);
    if (!model || model->type != FileType::kDirectory ||
        !place.directory->stat(nanotron::kMetadataFile))
      return {};
    return {ProbeResult::Answer::kYes,
            fmt::format("has {} and a folder {}", nanotron::kMetadataFile, nanotron::kModelFolder)};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return nanotron::read_manifest(place, options);
  }
  /// The headers give every offset: nothing is pending.
  void locate(const Place&, Manifest&, std::span<const std::uint32_t>,
              const ReadOptions&) const override {}
  OutputPlan output_plan(const Manifest&, const TargetRequest&) const override {
    fail(Code::kUnsupported, "nanotron is read, not written", "use --to torch-dcp, or --to hf");
  }
};

}  // namespace

const FormatDriver& nanotron_driver() {
  static const NanotronDriver driver;
  return driver;
}

}  // namespace tessera

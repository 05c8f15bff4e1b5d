#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/olmo_local.h>

#include "lib/format/olmo_local/reader.h"
#include "lib/format/torch_files/archive_driver.h"
#include "lib/format/torch_files/peek_root.h"
#include "lib/state/fields.h"

namespace tessera {
namespace {

/// A list of FSDP modules, each with its flat parameters.
bool has_handles(const Value& root) {
  const ValueList& modules = list_in(root, "modules");
  return !modules.empty() && modules[0].find("handles") != nullptr;
}

class OlmoLocalDriver final : public CopiedArchiveDriver {
 public:
  std::string_view id() const override { return "olmo-local"; }
  Capabilities capabilities() const override {
    return {.writes = false, .keeps_opaque = true, .keeps_containers = true};
  }

  ProbeResult probe(const Place& place) const override {
    if (!place.file.empty()) return {};
    const std::string first(olmo_local::kFirstModelFile);
    const auto info = place.directory->stat(first);
    if (!info || info->type != FileType::kRegular) return {};
    const auto root = peek_archive_root(*place.directory, first, place.pickle_limit_bytes);
    if (!root || !has_handles(*root)) return {};
    return {ProbeResult::Answer::kYes,
            fmt::format("has flat parameters with their names in {}", first)};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return olmo_local::read_manifest(place, options);
  }
  OutputPlan output_plan(const Manifest&, const TargetRequest&) const override {
    fail(Code::kUnsupported, "olmo-local is read, not written", "use --to torch-dcp, or --to hf");
  }
};

}  // namespace

const FormatDriver& olmo_local_driver() {
  static const OlmoLocalDriver driver;
  return driver;
}

}  // namespace tessera

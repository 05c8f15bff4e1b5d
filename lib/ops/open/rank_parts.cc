#include "lib/ops/open/rank_parts.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>

#include "lib/format/torch_rank_files/parts.h"
#include "lib/ops/open/part_folders.h"

namespace tessera {
namespace {

constexpr std::string_view kModelFile = "pytorch_model_fsdp_";
constexpr std::string_view kRankWord = "rank";
constexpr std::string_view kOptimizerKey = "optimizer";

/// "0" of pytorch_model_fsdp_rank3.bin, "1" of pytorch_model_fsdp_1_rank3.bin, "" of others.
std::string model_number(std::string_view name) {
  if (!name.starts_with(kModelFile) || !rank_in_file_name(name)) return "";
  name.remove_prefix(kModelFile.size());
  if (name.starts_with(kRankWord)) return "0";
  const std::string_view number = name.substr(0, name.find('_'));
  return is_decimal(number) ? std::string(number) : "";
}

class RankFilesWithOptimizer : public FormatDriver {
 public:
  std::string_view id() const override { return files().id(); }
  Capabilities capabilities() const override { return files().capabilities(); }
  ProbeResult probe(const Place& place) const override { return files().probe(place); }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return files().manifest(place, options);
  }
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    std::vector<std::uint32_t> in_files, in_folder;
    for (const std::uint32_t tensor : tensors)
      (lies_below(manifest, manifest.tensors[tensor]) ? in_folder : in_files).push_back(tensor);
    if (!in_files.empty()) files().locate(place, manifest, in_files, options);
    if (!in_folder.empty()) optimizer_folder_driver().locate(place, manifest, in_folder, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return files().output_plan(source, request);
  }

 private:
  static const FormatDriver& files() { return torch_rank_files_driver(); }
  static bool lies_below(const Manifest& manifest, const StoredTensor& tensor) {
    if (tensor.chunk_count == 0 || manifest.files.empty()) return false;
    const std::uint32_t file = manifest.source(tensor, 0).file;
    return manifest.files.at(file).path.find('/') != std::string::npos;
  }
};

}  // namespace

std::string find_optimizer_folder(const Directory& parent) {
  std::set<std::string> models, optimizers;
  for (const FileInfo& info : parent.list()) {
    const bool folder = info.type == FileType::kDirectory;
    if (folder && info.name.starts_with(kOptimizerFolder))
      optimizers.insert(info.name.substr(kOptimizerFolder.size()));
    if (const std::string number = folder ? "" : model_number(info.name); !number.empty())
      models.insert(number);
  }
  return models.size() == 1 && optimizers == models
             ? std::string(kOptimizerFolder) + *optimizers.begin()
             : "";
}

bool are_model_and_optimizer(const Manifest& model, const Manifest& optimizer) {
  const std::string root = std::string(kOptimizerKey) + ".";
  return find_roles(model.state).optimizers.empty() &&
         std::ranges::all_of(optimizer.state.entries,
                             [&](const StateEntry& entry) { return entry.name.starts_with(root); });
}

void become_model(PartManifest& part) {
  part.key = "model";
  // A result has one set of files with both halves, and cuts them alike.
  for (const std::string_view key :
       {rank_files::kFlavour, rank_files::kParts, rank_files::kFlatLayout})
    part.manifest.provenance.erase(std::string(key));
}

const FormatDriver& optimizer_folder_driver() { return torch_dcp_driver(); }

const FormatDriver& rank_files_with_optimizer_driver() {
  static const RankFilesWithOptimizer driver;
  return driver;
}

}  // namespace tessera

#pragma once
// Assets: the files beside a model that are no checkpoint: configuration, tokenizer, chat template.
#include <tessera/ops/seal.h>
#include <tessera/storage/file_system.h>
#include <tessera/storage/stage.h>

#include <string>
#include <vector>

namespace tessera {

struct AssetList {
  std::string directory;
  std::vector<FileInfo> copied;  // regular files that match the list
  std::vector<std::string>
      others;  // other regular files that are no part of the checkpoint: left, and told
  std::vector<std::string> links;  // would be assets, and are symbolic links: left, and told
};

/// `part_of_checkpoint`: names that the source's manifest or the new plan owns. Hidden files are
/// never assets.
AssetList find_assets(const Directory& directory,
                      const std::vector<std::string>& part_of_checkpoint);

/// Copies one file into the stage; synced and closed; its sums for the seal.
SealedFile copy_asset(const Directory& directory, const FileInfo& asset, Stage& stage);

}  // namespace tessera

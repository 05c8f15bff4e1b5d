#pragma once
// Assets: the files beside a model that are no checkpoint: configuration, tokenizer, chat template.
#include <tessera/ops/seal.h>
#include <tessera/storage/file_system.h>
#include <tessera/storage/stage.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A copied file that gets another text: config.json names the type of the weights.
struct RewrittenAsset {
  std::string text;
  std::string change;  // "torch_dtype float32 -> bfloat16"
};

struct AssetList {
  std::string directory;
  std::vector<FileInfo> copied;  // regular files that match the list
  std::vector<std::string>
      others;  // other regular files that are no part of the checkpoint: left, and listed
  std::map<std::string, RewrittenAsset> rewritten;  // by name
  std::vector<std::string> links;  // would be assets, but are symbolic links: left, and listed
};

/// `part_of_checkpoint`: names that the source's manifest or the new plan owns. Hidden files are
/// never assets.
AssetList find_assets(const Directory& directory,
                      const std::vector<std::string>& part_of_checkpoint);

/// config.json among the copied ones names `dtype` (PyTorch's name) wherever it names the type of
/// the weights: "torch_dtype", in newer files "dtype". What else it says stays to the byte.
void rewrite_dtype(const Directory& directory, AssetList& assets, std::string_view dtype);

/// config.json among the copied ones loses what it says of quantization, and files that say nothing
/// else (hf_quant_config.json, quantize_config.json) are not copied: their names are returned.
std::vector<std::string> drop_quantization(const Directory& directory, AssetList& assets);

/// config.json among the copied ones says `quantization` (JSON) of the weights, and nothing else of
/// it. False where none is copied.
bool add_quantization(const Directory& directory, AssetList& assets,
                      const std::string& quantization);

/// Copies one file into the stage; synced and closed; its sums for the seal.
SealedFile copy_asset(const Directory& directory, const FileInfo& asset, const AssetList& assets,
                      Stage& stage);

}  // namespace tessera

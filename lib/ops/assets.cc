#include "lib/ops/assets.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <array>
#include <set>

namespace tessera {

namespace {

// Names that Hugging Face libraries read beside the weights.
constexpr std::array<std::string_view, 14> kAssetGlobs{
    "config.json",
    "*_config.json",
    "configuration_*.py",
    "modeling_*.py",
    "tokenizer*",
    "tokenization_*.py",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.txt",
    "*.model",
    "chat_template*",
    "*.jinja",
};
// Weights and their indices are never assets, whatever they are called.
constexpr std::array<std::string_view, 9> kWeightGlobs{
    "*.safetensors", "*.bin",  "*.pt",         "*.pth",          "*.distcp",
    "*.h5",          "*.ckpt", "*.index.json", "*.tessera.json",
};

template <class Globs>
bool matches(const Globs& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(),
                     [name](std::string_view glob) { return glob_match(glob, name); });
}

}  // namespace

AssetList find_assets(const Directory& directory,
                      const std::vector<std::string>& part_of_checkpoint) {
  std::set<std::string_view> owned(part_of_checkpoint.begin(), part_of_checkpoint.end());
  owned.insert(kSealName);
  AssetList list;
  list.directory = directory.path();
  for (FileInfo& entry : directory.list()) {
    const bool link = entry.type == FileType::kSymlink;
    if ((entry.type != FileType::kRegular && !link) || entry.name.starts_with('.')) continue;
    if (owned.contains(entry.name) || matches(kWeightGlobs, entry.name)) continue;
    if (link) {
      if (matches(kAssetGlobs, entry.name)) list.links.push_back(std::move(entry.name));
    } else if (matches(kAssetGlobs, entry.name)) {
      list.copied.push_back(std::move(entry));
    } else {
      list.others.push_back(std::move(entry.name));
    }
  }
  return list;
}

SealedFile copy_asset(const Directory& directory, const FileInfo& asset, Stage& stage) {
  return in_file(asset.name, [&] {
    std::unique_ptr<ReadFile> from = directory.open(asset.name);
    SealedFile sealed{asset.name, from->size_bytes(), {}};
    std::unique_ptr<WriteFile> to = stage.create(asset.name, IoMode::kBuffered);
    to->allocate(sealed.size_bytes);
    Bytes block;
    for (std::uint64_t at = 0; at < sealed.size_bytes; at += block.size()) {
      block.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kMiB, sealed.size_bytes - at)));
      from->read_at(at, block);
      to->write_at(at, block);
      sealed.crc32_per_mib.push_back(crc32(0, block));
    }
    to->sync();
    to->close();
    return sealed;
  });
}

}  // namespace tessera

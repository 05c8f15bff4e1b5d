#include "lib/ops/seal/asset_names.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>

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

bool is_weights_name(std::string_view name) { return matches(kWeightGlobs, name); }

bool is_asset_name(std::string_view name) {
  return matches(kAssetGlobs, name) && !is_weights_name(name);
}

}  // namespace tessera

#include "lib/ops/convert/assets.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lib/ops/seal/asset_names.h"

namespace tessera {

AssetList find_assets(const Directory& directory,
                      const std::vector<std::string>& part_of_checkpoint) {
  std::set<std::string_view> owned(part_of_checkpoint.begin(), part_of_checkpoint.end());
  owned.insert(kSealName);
  AssetList list;
  list.directory = directory.path();
  for (FileInfo& entry : directory.list()) {
    const bool link = entry.type == FileType::kSymlink;
    if ((entry.type != FileType::kRegular && !link) || entry.name.starts_with('.')) continue;
    if (owned.contains(entry.name) || is_weights_name(entry.name)) continue;
    if (link) {
      if (is_asset_name(entry.name)) list.links.push_back(std::move(entry.name));
    } else if (is_asset_name(entry.name)) {
      list.copied.push_back(std::move(entry));
    } else {
      list.others.push_back(std::move(entry.name));
    }
  }
  return list;
}

namespace {

/// Where the text of the type begins that a member `key` names, at or after `at`; npos: nowhere.
std::size_t find_type(std::string_view text, std::string_view key, std::size_t at) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::string quoted = fmt::format("\"{}\"", key);
  for (at = text.find(quoted, at); at != text.npos; at = text.find(quoted, at + 1)) {
    std::size_t next = text.find_first_not_of(kBlank, at + quoted.size());
    if (next == text.npos || text[next] != ':') continue;
    next = text.find_first_not_of(kBlank, next + 1);
    if (next != text.npos && text[next] == '"') return next + 1;
  }
  return text.npos;
}

bool is_float_name(std::string_view name) {
  for (const std::string_view known :
       {"float16", "bfloat16", "float32", "float64", "half", "float", "double"})
    if (name == known) return true;
  return false;
}

/// The text of config.json as it would be copied now; nullopt: it is not copied.
std::optional<std::string> config_text(const Directory& directory, const AssetList& assets) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  const auto config = std::ranges::find(assets.copied, "config.json", &FileInfo::name);
  if (config == assets.copied.end() || config->size_bytes > kMostBytes) return std::nullopt;
  if (const auto known = assets.rewritten.find(config->name); known != assets.rewritten.end())
    return known->second.text;
  const std::unique_ptr<ReadFile> file = directory.open(config->name);
  Bytes bytes(static_cast<std::size_t>(file->size_bytes()));
  file->read_at(0, bytes);
  return std::string(as_text(bytes));
}

void set_config(AssetList& assets, std::string text, std::string change) {
  const auto config = std::ranges::find(assets.copied, "config.json", &FileInfo::name);
  config->size_bytes = text.size();
  RewrittenAsset& rewritten = assets.rewritten[config->name];
  rewritten.text = std::move(text);
  rewritten.change += (rewritten.change.empty() ? "" : ", ") + change;
}

/// Where the first member `key` of an object at `level` (1: the outermost) begins and ends, one
/// comma included; an empty range where there is none. `text` is JSON.
std::pair<std::size_t, std::size_t> find_member(std::string_view text, std::string_view key,
                                                int level) {
  const std::string quoted = fmt::format("\"{}\"", key);
  std::size_t begin = text.npos, comma = text.npos;
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      if (depth == level && begin == text.npos && text.substr(at).starts_with(quoted)) {
        const std::size_t colon = text.find_first_not_of(" \t\r\n", at + quoted.size());
        if (colon != text.npos && text[colon] == ':') begin = at;
      }
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
      continue;
    }
    const bool ends = depth == level && begin != text.npos && (c == ',' || c == '}');
    if (ends && c == ',') return {begin, text.find_first_not_of(" \t\r\n", at + 1)};
    if (ends)
      return {comma == text.npos ? begin : comma, text.find_last_not_of(" \t\r\n", at - 1) + 1};
    if (depth == level && c == ',') comma = at;
    if ((c == '{' || c == '[') && ++depth == level) comma = text.npos;
    if (c == '}' || c == ']') --depth;
  }
  return {0, 0};
}

}  // namespace

void rewrite_dtype(const Directory& directory, AssetList& assets, std::string_view dtype) {
  std::optional<std::string> config = config_text(directory, assets);
  if (!config) return;
  std::string text = std::move(*config), change;
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    for (std::size_t at = find_type(text, key, 0); at != text.npos; at = find_type(text, key, at)) {
      const std::string name = text.substr(at, text.find('"', at) - at);
      if (!is_float_name(name) || name == dtype) continue;
      if (change.empty()) change = fmt::format("{} {} -> {}", key, name, dtype);
      text.replace(at, name.size(), dtype);
    }
  }
  if (!change.empty()) set_config(assets, std::move(text), std::move(change));
}

std::vector<std::string> drop_quantization(const Directory& directory, AssetList& assets) {
  if (std::optional<std::string> text = config_text(directory, assets)) {
    for (const std::string_view key : {"quantization_config", "compression_config"}) {
      bool found = false;
      for (const int level : {1, 2}) {  // text_config has one of its own
        for (;;) {
          const auto [begin, end] = find_member(*text, key, level);
          if (begin == end || end == text->npos) break;
          text->erase(begin, end - begin);
          found = true;
        }
      }
      if (found) set_config(assets, *text, fmt::format("without {}", key));
    }
  }
  std::vector<std::string> dropped;
  std::erase_if(assets.copied, [&](const FileInfo& asset) {
    const bool gone = asset.name == "hf_quant_config.json" ||
                      asset.name == "quantize_config.json" || asset.name == "quant_config.json";
    if (gone) dropped.push_back(asset.name);
    return gone;
  });
  return dropped;
}

bool add_quantization(const Directory& directory, AssetList& assets,
                      const std::string& quantization) {
  std::optional<std::string> text = config_text(directory, assets);
  if (!text) return false;
  const std::size_t open = text->find('{');
  if (open == text->npos) return false;
  const std::size_t next = text->find_first_not_of(" \t\r\n", open + 1);
  const bool is_empty = next != text->npos && (*text)[next] == '}';
  text->insert(open + 1, fmt::format("\n  \"quantization_config\": {}{}", quantization,
                                     is_empty ? "\n" : ","));
  set_config(assets, std::move(*text), "with quantization_config");
  return true;
}

SealedFile copy_asset(const Directory& directory, const FileInfo& asset, const AssetList& assets,
                      Stage& stage) {
  return in_file(asset.name, [&] {
    const auto rewritten = assets.rewritten.find(asset.name);
    const bool as_is = rewritten == assets.rewritten.end();
    std::unique_ptr<ReadFile> from;
    if (as_is) from = directory.open(asset.name);
    SealedFile sealed{asset.name, as_is ? from->size_bytes() : rewritten->second.text.size(), {}};
    std::unique_ptr<WriteFile> to = stage.create(asset.name, IoMode::kBuffered);
    to->allocate(sealed.size_bytes);
    Bytes block;
    for (std::uint64_t at = 0; at < sealed.size_bytes; at += block.size()) {
      block.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kMiB, sealed.size_bytes - at)));
      if (as_is) {
        from->read_at(at, block);
      } else {
        const ByteView part = as_bytes(rewritten->second.text).subspan(at, block.size());
        std::ranges::copy(part, block.begin());
      }
      to->write_at(at, block);
      sealed.crc32_per_mib.push_back(crc32(0, block));
    }
    to->sync();
    to->close();
    return sealed;
  });
}

}  // namespace tessera

#include "lib/format/safetensors/shard_set.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "lib/format/safetensors/names.h"

namespace tessera::st {

ShardSet find_shards(const Place& place, const ReadOptions& options, Findings& findings) {
  const Directory& directory = *place.directory;
  const bool names_index = place.file.ends_with(kIndexSuffix);
  if (!place.file.empty() && !names_index) return {{place.file}, std::nullopt};
  const auto read_index = [&](const std::string& file) {
    return read_or_guess_index(directory, file, kNaming, options, findings);
  };
  if (auto read = names_index ? read_index(place.file) : std::nullopt)
    return shards_of_index(directory, kNaming, std::move(*read), findings);

  ShardSet set;
  std::vector<FileInfo> unusable;
  bool has_sharded_folder = false;
  for (const FileInfo& info : directory.list()) {
    if (is_shard_file(info, kNaming)) set.files.push_back(info.name);
    if (is_unusable_shard(info, kNaming)) unusable.push_back(info);
    has_sharded_folder |= info.type == FileType::kDirectory && info.name == "sharded";
  }
  if (has_sharded_folder)
    findings.note(Finding::kStaleFile, Severity::kInfo,
                  "ignored: the shards this checkpoint was consolidated from", "sharded");
  const std::string index = names_index ? "" : only_shard_index(directory, kNaming);
  if (auto read = index.empty() ? std::nullopt : read_index(index)) {
    if (std::string file = file_before_index(directory, *read, findings); !file.empty())
      return {{std::move(file)}, std::nullopt};
    return shards_of_index(directory, kNaming, std::move(*read), findings);
  }
  if (set.files.empty()) fail(Code::kNotFound, "no .safetensors file in this folder");
  for (const FileInfo& info : unusable)
    findings.error(Finding::kMissingFile, std::string(no_regular_file(info.type)), info.name);
  // PyTorch's writer leaves rank files without an index; Hugging Face's loaders need one.
  const bool per_rank = std::ranges::any_of(
      set.files, [](const std::string& file) { return shard_rank(file).has_value(); });
  const bool expected = !per_rank && !names_index && index.empty();
  set.incomplete = check_numbered_shards(set.files, kNaming, expected, findings);
  if (set.incomplete.empty() && !unusable.empty()) set.incomplete = unusable.front().name;
  return set;
}

bool is_nanotron_part(const SafetensorsHeader& header) {
  return header.metadata.contains("local_global_slices_pairs") ||
         header.metadata.contains("unsharded_shape");
}

std::optional<std::int64_t> shard_rank(const std::string& file) {
  constexpr std::string_view kPrefix = "shard-";
  std::string_view name = file;
  if (const std::size_t slash = name.rfind('/'); slash != name.npos) name.remove_prefix(slash + 1);
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::size_t dash = name.find('-');
  if (dash == name.npos || !name.substr(dash + 1).starts_with("model-")) return std::nullopt;
  const std::string_view digits = name.substr(0, dash);
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return rank;
}

}  // namespace tessera::st

namespace tessera {

std::string find_shard_index(const Directory& directory) {
  return only_shard_index(directory, st::kNaming);
}

ShardNames read_shard_names(const Directory& directory, const std::string& index) {
  const ShardIndex read = read_shard_index(directory, index);
  for (const std::string& shard : read.shards)
    if (!shard.ends_with(st::kSuffix) || shard == st::kSuffix)
      in_file(index, [&] {
        fail(Code::kCorrupt,
             fmt::format("the index names \"{}\", which is no safetensors file", printable(shard)));
      });
  ShardNames names{index.substr(index.rfind('/') + 1), {}};
  for (const auto& [tensor, shard] : read.weight_map) names.file_of[tensor] = read.shards[shard];
  return names;
}

}  // namespace tessera

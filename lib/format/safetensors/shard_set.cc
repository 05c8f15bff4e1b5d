#include "lib/format/safetensors/shard_set.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lib/format/safetensors/st_names.h"

namespace tessera::st {
namespace {

/// A name that another file gives: it must stay below the folder.
void check_shard_name(const std::string& name) {
  bool safe = !name.empty() && name.front() != '/' && name.find('\0') == name.npos &&
              name.find('\\') == name.npos;
  for (const std::string_view part : split(name, '/'))
    safe = safe && !part.empty() && part != "." && part != "..";
  if (!safe)
    fail(Code::kCorrupt,
         fmt::format("the index names \"{}\", which is no file of this folder", printable(name)));
}

/// {"metadata": {"total_size": n, ...}, "weight_map": {tensor: shard}}, streamed: anything else is
/// skipped.
class IndexHandler : public JsonHandler {
 public:
  explicit IndexHandler(ShardIndex& index) : index_(index) {}
  void begin_object() override {
    if (++depth_ == 1) saw_object_ = true;
    if (depth_ == 2 && field_ == "weight_map") saw_map_ = true;
  }
  void end_object() override { --depth_; }
  void begin_array() override { ++depth_; }
  void end_array() override { --depth_; }
  void key(std::string&& text) override {
    if (depth_ <= 2) (depth_ == 1 ? field_ : name_) = std::move(text);
  }
  void scalar(Value value) override {
    if (depth_ != 2) return;
    if (field_ == "metadata" && name_ == "total_size" && value.is_number())
      index_.total_size = value.is_int()
                              ? value.as_int()
                              : static_cast<std::int64_t>(std::clamp(value.as_real(), -1.0, 1e18));
    if (field_ != "weight_map") return;
    if (!value.is_string())
      fail(Code::kCorrupt, fmt::format("weight_map: \"{}\" names no file", printable(name_)));
    const auto [found, is_new] =
        numbers_.try_emplace(value.as_string(), static_cast<std::uint32_t>(index_.shards.size()));
    if (is_new) {
      check_shard_name(value.as_string());
      index_.shards.push_back(value.as_string());
    }
    index_.weight_map.emplace_back(std::move(name_), found->second);
  }
  void finish() const {
    if (!saw_object_ || !saw_map_) fail(Code::kCorrupt, "the index has no weight_map");
    if (index_.shards.empty()) fail(Code::kCorrupt, "the index' weight_map is empty");
  }

 private:
  ShardIndex& index_;
  std::map<std::string, std::uint32_t> numbers_;
  std::string field_, name_;
  int depth_ = 0;
  bool saw_object_ = false, saw_map_ = false;
};

void sort_shards(ShardIndex& index) {
  std::vector<std::uint32_t> order(index.shards.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return index.shards[a] < index.shards[b]; });
  std::vector<std::uint32_t> rank(order.size());
  std::vector<std::string> sorted;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    rank[order[i]] = i;
    sorted.push_back(std::move(index.shards[order[i]]));
  }
  index.shards = std::move(sorted);
  for (auto& entry : index.weight_map) entry.second = rank[entry.second];
}

bool is_data_file(const FileInfo& info) {
  return info.type == FileType::kRegular && info.name.ends_with(kSuffix) &&
         !info.name.starts_with('.');
}

ShardSet shards_of_index(const Directory& directory, ShardIndex index, Findings& findings) {
  ShardSet set;
  for (const std::string& shard : index.shards) {
    const auto info = directory.stat(shard);
    if (info && info->type == FileType::kRegular)
      set.files.push_back(shard);
    else
      findings.error(kMissingFile,
                     fmt::format("shard \"{}\" is named by {} but {}", printable(shard), index.file,
                                 info ? no_regular_file(info->type) : "missing"),
                     shard);
  }
  for (const FileInfo& info : directory.list())
    if (is_data_file(info) &&
        !std::binary_search(index.shards.begin(), index.shards.end(), info.name))
      findings.note(kStaleFile, "warning",
                    fmt::format("ignored: {} does not name this file", index.file), info.name);
  set.index = std::move(index);
  return set;
}

/// "model-00002-of-00005.safetensors" -> {"model-*-of-00005", 2, 5}
struct NumberedName {
  std::string family;
  std::int64_t number = 0;
  std::int64_t total = 0;
};

std::optional<std::int64_t> parse_number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return value;
}

std::optional<NumberedName> numbered(std::string_view name) {
  name.remove_suffix(kSuffix.size());
  const std::size_t of = name.rfind("-of-");
  if (of == name.npos) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (of == 0 || dash == name.npos) return std::nullopt;
  const auto number = parse_number(name.substr(dash + 1, of - dash - 1));
  const auto total = parse_number(name.substr(of + 4));
  if (!number || !total) return std::nullopt;
  return NumberedName{fmt::format("{}-*{}", name.substr(0, dash), name.substr(of)), *number,
                      *total};
}

/// A link or the like that stands in the place of a numbered shard.
bool is_unusable_shard(const FileInfo& info) {
  return info.type != FileType::kRegular && info.name.ends_with(kSuffix) &&
         !info.name.starts_with('.') && numbered(info.name);
}

/// Without an index, a family of numbered files tells how many it should have.
void check_numbered(const std::vector<std::string>& files, Findings& findings) {
  std::map<std::string, std::pair<std::set<std::int64_t>, std::int64_t>> families;
  for (const std::string& file : files) {
    if (const auto name = numbered(file)) {
      auto& [numbers, total] = families[name->family];
      numbers.insert(name->number);
      total = name->total;
    }
  }
  // PyTorch's writer leaves rank files without an index; Hugging Face's loaders need one.
  const bool per_rank = std::ranges::any_of(
      files, [](const std::string& file) { return shard_rank(file).has_value(); });
  for (const auto& [family, entry] : families) {
    const auto& [numbers, total] = entry;
    if (static_cast<std::int64_t>(numbers.size()) >= total) {
      if (total > 1 && !per_rank)
        findings.note(kNoIndex, findings.tolerate() ? "error" : "warning",
                      fmt::format("{} shards, but no index (*{}) lists them", total, kIndexSuffix),
                      fmt::format("{}{}", family, kSuffix));
      continue;
    }
    std::int64_t first = 1;
    while (numbers.contains(first)) ++first;
    findings.error(
        kMissingFile,
        fmt::format("{} of {} shards are here; number {} is missing", numbers.size(), total, first),
        fmt::format("{}{}", family, kSuffix));
  }
}

void require_one_index(const std::vector<std::string>& indexes) {
  if (indexes.size() > 1)
    fail(Code::kUnsupported,
         fmt::format("{} indexes in one folder: {}", indexes.size(), fmt::join(indexes, ", ")),
         "name one of them");
}

}  // namespace

ShardIndex read_index(const Directory& directory, const std::string& file) {
  return in_file(file, [&] {
    const auto open = directory.open(file);
    if (open->size_bytes() > kMaxSafetensorsHeaderBytes)
      fail(Code::kCorrupt, fmt::format("an index of {} bytes; {} are allowed", open->size_bytes(),
                                       kMaxSafetensorsHeaderBytes));
    const Bytes text = ByteWindow::whole(*open).read(0, open->size_bytes());
    ShardIndex index;
    index.file = file;
    IndexHandler handler(index);
    parse_json_events(text, handler);
    handler.finish();
    sort_shards(index);
    return index;
  });
}

ShardSet find_shards(const Place& place, Findings& findings) {
  const Directory& directory = *place.directory;
  if (place.file.ends_with(kIndexSuffix))
    return shards_of_index(directory, read_index(directory, place.file), findings);
  if (!place.file.empty()) return {{place.file}, std::nullopt};

  ShardSet set;
  std::vector<std::string> indexes;
  std::vector<FileInfo> unusable;
  bool has_sharded_folder = false;
  for (const FileInfo& info : directory.list()) {
    if (is_data_file(info)) set.files.push_back(info.name);
    if (is_unusable_shard(info)) unusable.push_back(info);
    if (info.type == FileType::kRegular && info.name.ends_with(kIndexSuffix))
      indexes.push_back(info.name);
    has_sharded_folder |= info.type == FileType::kDirectory && info.name == "sharded";
  }
  if (has_sharded_folder)
    findings.note(kStaleFile, "info", "ignored: the shards this checkpoint was consolidated from",
                  "sharded");
  require_one_index(indexes);
  if (indexes.size() == 1)
    return shards_of_index(directory, read_index(directory, indexes[0]), findings);
  if (set.files.empty()) fail(Code::kNotFound, "no .safetensors file in this folder");
  for (const FileInfo& info : unusable)
    findings.error(kMissingFile, std::string(no_regular_file(info.type)), info.name);
  check_numbered(set.files, findings);
  return set;
}

std::optional<std::int64_t> shard_rank(const std::string& file) {
  constexpr std::string_view kPrefix = "shard-";
  std::string_view name = file;
  if (const std::size_t slash = name.rfind('/'); slash != name.npos) name.remove_prefix(slash + 1);
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::size_t dash = name.find('-');
  if (dash == name.npos || !name.substr(dash + 1).starts_with("model-")) return std::nullopt;
  return parse_number(name.substr(0, dash));
}

}  // namespace tessera::st

namespace tessera {

std::string find_shard_index(const Directory& directory) {
  std::vector<std::string> indexes;
  for (const FileInfo& info : directory.list())
    if (info.type == FileType::kRegular && info.name.ends_with(st::kIndexSuffix))
      indexes.push_back(info.name);
  st::require_one_index(indexes);
  return indexes.empty() ? "" : indexes[0];
}

ShardNames read_shard_names(const Directory& directory, const std::string& index) {
  const st::ShardIndex read = st::read_index(directory, index);
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

#include "lib/format/shard_index.h"

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
#include <unordered_map>

namespace tessera {
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

/// {"metadata": {"total_size": n, "param_groups": file, ...}, "weight_map": {tensor: shard}}, streamed: anything else is
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
    if (field_ == "metadata" && name_ == "param_groups" && value.is_string()) {
      check_shard_name(value.as_string());
      index_.param_groups = value.as_string();
    }
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
    if (index_.shards.empty()) fail(Code::kCorrupt, "the index's weight_map is empty");
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

std::optional<std::int64_t> parse_number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return value;
}

}  // namespace

ShardIndex read_shard_index(const Directory& directory, const std::string& file) {
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

namespace {

/// All files of that suffix are numbered, and of one set.
bool are_one_numbered_set(const Directory& directory, const ShardNaming& naming) {
  std::set<std::string> families;
  for (const FileInfo& info : directory.list()) {
    if (!is_shard_file(info, naming)) continue;
    const auto numbered = numbered_shard(info.name, naming);
    if (!numbered) return false;
    families.insert(numbered->family);
  }
  return families.size() == 1;
}

}  // namespace

std::optional<ShardIndex> read_or_guess_index(const Directory& directory, const std::string& file,
                                              const ShardNaming& naming, const ReadOptions& options,
                                              Findings& findings) {
  try {
    return read_shard_index(directory, file);
  } catch (const Error& error) {
    const bool guess = options.guess_index && tolerates(options, error.code());
    if (!guess || !are_one_numbered_set(directory, naming)) throw;
    findings.error(Finding::kUnreadableFile,
                   fmt::format("the index cannot be read, and its shards are taken by the numbers "
                               "in their names: {}",
                               error.status().message),
                   file);
    return std::nullopt;
  }
}

std::string only_shard_index(const Directory& directory, const ShardNaming& naming) {
  std::vector<std::string> indexes;
  for (const FileInfo& info : directory.list())
    if (info.type == FileType::kRegular && info.name.ends_with(naming.index_suffix))
      indexes.push_back(info.name);
  if (indexes.size() > 1)
    fail(Code::kUnsupported,
         fmt::format("{} indexes in one folder: {}", indexes.size(), fmt::join(indexes, ", ")),
         "name one of them");
  return indexes.empty() ? "" : indexes[0];
}

std::string file_before_index(const Directory& directory, const ShardIndex& index,
                              Findings& findings) {
  constexpr std::string_view kIndexEnd = ".index.json";
  if (!index.file.ends_with(kIndexEnd)) return "";
  const std::string file = index.file.substr(0, index.file.size() - kIndexEnd.size());
  const auto info = directory.stat(file);
  if (!info || info->type != FileType::kRegular || std::ranges::count(index.shards, file))
    return "";
  findings.note(
      Finding::kStaleFile, Severity::kWarning,
      fmt::format("it and its {} file{} are not used: {} lies beside them, which Hugging "
                  "Face's loaders take first; name the index to read its files",
                  index.shards.size(), index.shards.size() == 1 ? "" : "s", printable(file)),
      index.file);
  return file;
}

ShardSet shards_of_index(const Directory& directory, const ShardNaming& naming, ShardIndex index,
                         Findings& findings) {
  ShardSet set;
  for (const std::string& shard : index.shards) {
    const auto info = directory.stat(shard);
    if (info && info->type == FileType::kRegular)
      set.files.push_back(shard);
    else
      findings.error(Finding::kMissingFile,
                     fmt::format("shard \"{}\" is named by {} but {}", printable(shard), index.file,
                                 info ? no_regular_file(info->type) : "missing"),
                     shard);
  }
  // An adapter of PEFT's is no shard of the model that it stands beside (torchtune saves both).
  constexpr std::string_view kAdapter = "adapter_model.";
  for (const FileInfo& info : directory.list())
    if (is_shard_file(info, naming) && info.name != index.param_groups &&
        !info.name.starts_with(kAdapter) &&
        !std::binary_search(index.shards.begin(), index.shards.end(), info.name))
      findings.note(Finding::kStaleFile, Severity::kWarning,
                    fmt::format("ignored: {} does not name this file", index.file), info.name);
  set.index = std::move(index);
  return set;
}

std::optional<NumberedName> numbered_shard(std::string_view name, const ShardNaming& naming) {
  if (!name.ends_with(naming.suffix)) return std::nullopt;
  name.remove_suffix(naming.suffix.size());
  const std::size_t of = name.rfind("-of-");
  if (of == name.npos || of == 0) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (dash == name.npos) return std::nullopt;
  const auto number = parse_number(name.substr(dash + 1, of - dash - 1));
  const auto total = parse_number(name.substr(of + 4));
  if (!number || !total) return std::nullopt;
  return NumberedName{fmt::format("{}-*{}", name.substr(0, dash), name.substr(of)), *number,
                      *total};
}

bool is_shard_file(const FileInfo& info, const ShardNaming& naming) {
  return info.type == FileType::kRegular && info.name.ends_with(naming.suffix) &&
         !info.name.starts_with('.');
}

bool is_unusable_shard(const FileInfo& info, const ShardNaming& naming) {
  return info.type != FileType::kRegular && !info.name.starts_with('.') &&
         numbered_shard(info.name, naming).has_value();
}

std::string check_numbered_shards(const std::vector<std::string>& files, const ShardNaming& naming,
                                  bool index_expected, Findings& findings) {
  std::string incomplete;
  std::map<std::string, std::pair<std::set<std::int64_t>, std::int64_t>> families;
  for (const std::string& file : files) {
    if (const auto name = numbered_shard(file, naming)) {
      auto& [numbers, total] = families[name->family];
      numbers.insert(name->number);
      total = name->total;
    }
  }
  for (const auto& [family, entry] : families) {
    const auto& [numbers, total] = entry;
    const std::string pattern = fmt::format("{}{}", family, naming.suffix);
    if (static_cast<std::int64_t>(numbers.size()) >= total) {
      if (total > 1 && index_expected)
        findings.note(
            Finding::kNoIndex, findings.tolerate() ? Severity::kError : Severity::kWarning,
            fmt::format("{} shards, but no index (*{}) lists them", total, naming.index_suffix),
            pattern);
      continue;
    }
    std::int64_t first = 1;
    while (numbers.contains(first)) ++first;
    findings.error(
        Finding::kMissingFile,
        fmt::format("{} of {} shards are here; number {} is missing", numbers.size(), total, first),
        pattern);
    if (incomplete.empty()) incomplete = pattern;
  }
  return incomplete;
}

std::vector<std::optional<std::uint32_t>> compare_with_index(
    const ShardSet& set, std::span<const HeldName> held,
    const std::function<bool(std::uint32_t file)>& lost, Findings& findings) {
  const ShardIndex& index = *set.index;
  std::unordered_map<std::string_view, std::size_t> number_of;
  for (std::size_t i = 0; i < held.size(); ++i) number_of.emplace(held[i].name, i);
  std::vector<bool> listed(held.size(), false);
  std::vector<std::optional<std::uint32_t>> takes(held.size());
  for (const auto& [name, shard] : index.weight_map) {
    const std::string& path = index.shards[shard];
    const auto place = std::lower_bound(set.files.begin(), set.files.end(), path);
    const bool missing = place == set.files.end() || *place != path;
    const auto file = static_cast<std::uint32_t>(place - set.files.begin());
    const auto found = number_of.find(name);
    if (found != number_of.end()) listed[found->second] = true;
    if (missing || lost(file)) {
      findings.error(Finding::kLost,
                     missing ? "lost: its shard is missing" : "lost: its shard cannot be read",
                     path, name);
      continue;
    }
    if (found == number_of.end() ||
        std::ranges::find(held[found->second].files, file) == held[found->second].files.end()) {
      findings.error(Finding::kNotInShard,
                     fmt::format("{} places it in this shard, which does not hold it", index.file),
                     path, name);
      continue;
    }
    const HeldName& entry = held[found->second];
    if (entry.files.size() == 1 || entry.in_pieces) continue;
    takes[found->second] = file;
    for (const std::uint32_t other : entry.files)
      if (other != file)
        findings.note(Finding::kStaleCopy, Severity::kWarning,
                      fmt::format("ignored: {} takes it from {}", index.file, path),
                      set.files[other], name);
  }
  for (std::size_t i = 0; i < held.size(); ++i)
    if (!listed[i])
      findings.note(Finding::kUnlistedTensor, Severity::kWarning,
                    fmt::format("{} does not list it", index.file),
                    set.files[held[i].files.front()], held[i].name);
  return takes;
}

void compare_total_size(const ShardIndex& index, std::uint64_t total_bytes, Findings& findings) {
  if (index.total_size && static_cast<std::uint64_t>(*index.total_size) != total_bytes)
    findings.note(
        Finding::kTotalSize, Severity::kInfo,
        fmt::format("total_size is {}; the shards hold {} bytes", *index.total_size, total_bytes),
        index.file);
}

}  // namespace tessera

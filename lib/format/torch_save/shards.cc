#include "lib/format/torch_save/shards.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_save/files.h"

namespace tessera::torch_save {
namespace {

/// The bytes that the tensors of `root` take, each storage counted once, as `total_size` counts.
std::uint64_t tensor_bytes(const TorchArchive& archive) {
  std::set<std::uint32_t> counted;
  std::uint64_t total = 0;
  for (const auto& [key, value] : archive.root.as_dict()) {
    if (!value.is_tensor()) continue;
    const ArchiveTensor& tensor = archive.tensors[value.tensor_index()];
    if (counted.insert(tensor.storage).second)
      total += static_cast<std::uint64_t>(tensor.shape.numel()) *
               static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  }
  return total;
}

/// Shards of a model are dicts by names; ColossalAI's of an optimizer, by the ids of parameters.
enum class KeyKind : std::uint8_t { kNames, kIds, kOther };

KeyKind key_kind(const Value& root) {
  if (!root.is_dict()) return KeyKind::kOther;
  const auto all = [&](auto is) {
    return std::ranges::all_of(root.as_dict(), [&](const auto& entry) { return is(entry.first); });
  };
  if (all([](const Value& key) { return key.is_string(); })) return KeyKind::kNames;
  return all([](const Value& key) { return key.is_int(); }) ? KeyKind::kIds : KeyKind::kOther;
}

std::string key_name(const Value& key) {
  return key.is_int() ? std::to_string(key.as_int()) : key.as_string();
}

class ShardReader {
 public:
  ShardReader(const Place& place, const ReadOptions& options)
      : place_(place),
        options_(options),
        builder_(*place.directory, options),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest read() {
    set_ = find();
    for (const std::string& file : set_.files) numbers_.push_back(open(file));
    gather();
    choose();
    add_shards();
    add_groups();
    return builder_.finish("torch-save", dialect());
  }

 private:
  ShardSet find() {
    const Directory& directory = *place_.directory;
    std::string index = place_.file;
    if (index.empty()) index = only_shard_index(directory, kShardNaming);
    if (index.empty()) note_others(index, "");
    if (!index.empty()) {
      auto read = read_or_guess_index(directory, index, kShardNaming, options_, findings_);
      note_others(index, read ? read->param_groups : "");
      if (read) {
        std::string file;
        if (place_.file.empty()) file = file_before_index(directory, *read, findings_);
        if (!file.empty()) return {{std::move(file)}, std::nullopt};
        return shards_of_index(directory, kShardNaming, std::move(*read), findings_);
      }
    }
    return numbered_shards(index.empty());
  }
  ShardSet numbered_shards(bool index_expected) {
    ShardSet set;
    for (const FileInfo& info : place_.directory->list()) {
      if (is_unusable_shard(info, kShardNaming))
        findings_.error(Finding::kMissingFile, std::string(no_regular_file(info.type)), info.name);
      else if (is_shard_file(info, kShardNaming) && numbered_shard(info.name, kShardNaming))
        set.files.push_back(info.name);
      else if (is_shard_file(info, kShardNaming))
        findings_.note(Finding::kStaleFile, Severity::kWarning, "ignored: it is no numbered shard",
                       info.name);
    }
    std::ranges::sort(set.files);
    check_numbered_shards(set.files, kShardNaming, index_expected, findings_);
    return set;
  }
  /// An optimizer or the like saved beside the shards: not theirs, and named so that nobody thinks
  /// that it came along.
  void note_others(const std::string& index, const std::string& groups) {
    for (const FileInfo& info : place_.directory->list())
      if (info.type == FileType::kRegular && !info.name.starts_with('.') &&
          has_torch_suffix(info.name) && !info.name.ends_with(kShardNaming.suffix) &&
          info.name != groups)
        findings_.note(Finding::kStaleFile, Severity::kInfo,
                       fmt::format("not among the shards{}: name this file to read it",
                                   index.empty() ? "" : " of " + index),
                       info.name);
  }

  /// The archive's number; nullopt where nothing of the shard can be read.
  std::optional<std::uint32_t> open(const std::string& file) {
    Status why;
    const std::optional<std::uint32_t> number = builder_.try_open(file, why);
    if (!number) {
      findings_.error(Finding::kUnreadableFile, unreadable_text("a shard", why), file);
      return std::nullopt;
    }
    const KeyKind kind = key_kind(builder_.archive(*number).root);
    if (kind == KeyKind::kOther || (keys_ && *keys_ != kind))
      in_file(file, [] {
        fail(Code::kUnsupported,
             "neither a shard of a model, a dict by names, nor one of an optimizer, a dict by ids",
             "name this file to read it alone");
      });
    keys_ = kind;
    return number;
  }

  void gather() {
    for (std::uint32_t file = 0; file < set_.files.size(); ++file) {
      if (!numbers_[file]) continue;
      for (const auto& [key, value] : root(file).as_dict()) {
        const auto [found, is_new] = held_number_.try_emplace(key_name(key), held_.size());
        if (is_new) held_.push_back({key_name(key), {}, false});
        held_[found->second].files.push_back(file);
      }
    }
  }
  /// The one file that each name is taken from, in held_[i].files.
  void choose() {
    if (set_.index) {
      const auto lost = [&](std::uint32_t file) { return !numbers_[file]; };
      const auto takes = compare_with_index(set_, held_, lost, findings_);
      for (std::size_t i = 0; i < takes.size(); ++i)
        if (takes[i]) held_[i].files = {*takes[i]};
    }
    for (const HeldName& held : held_)
      if (held.files.size() > 1)
        in_tensor(held.name, [&] {
          fail(Code::kCorrupt,
               fmt::format("stored twice: in {} and in {}", set_.files[held.files[0]],
                           set_.files[held.files[1]]),
               "name the one file you mean, or write an index");
        });
  }
  void add_shards() {
    std::uint64_t total = 0;
    bool complete = true;
    for (std::uint32_t file = 0; file < set_.files.size(); ++file) {
      complete &= numbers_[file].has_value();
      if (!numbers_[file]) continue;
      ValueDict kept;
      for (const auto& [key, value] : root(file).as_dict())
        if (held_[held_number_.at(key_name(key))].files.front() == file)
          kept.emplace_back(key, value);
      in_file(set_.files[file], [&] {
        builder_.add_state(*numbers_[file], Value::dict(std::move(kept)), place_of_shards());
      });
      total += tensor_bytes(builder_.archive(*numbers_[file]));
    }
    if (keys_ == KeyKind::kNames && set_.index && complete &&
        set_.files.size() == set_.index->shards.size())
      compare_total_size(*set_.index, total, findings_);
  }
  /// As an optimizer's state_dict() has it, which is what the shards of ids are pieces of.
  Path place_of_shards() const { return keys_ == KeyKind::kIds ? Path{key_item("state")} : Path{}; }
  void add_groups() {
    if (!set_.index || set_.index->param_groups.empty()) return;
    const std::string& file = set_.index->param_groups;
    Status why;
    const std::optional<std::uint32_t> number = builder_.try_open(file, why);
    if (!number)
      return findings_.error(Finding::kUnreadableFile,
                             unreadable_text("the optimizer's groups", why), file);
    in_file(file, [&] {
      builder_.add_state(*number, builder_.archive(*number).root, {key_item("param_groups")});
    });
  }
  std::string dialect() const {
    const std::size_t count = set_.index ? set_.index->shards.size() : set_.files.size();
    const auto opened = std::ranges::find_if(numbers_, [](const auto& n) { return n.has_value(); });
    const bool legacy = opened != numbers_.end() && builder_.archive(**opened).legacy;
    return fmt::format("torch.save, {}, {} {} shards{}", legacy ? "legacy stream" : "zip", count,
                       keys_ == KeyKind::kIds ? "ColossalAI optimizer" : "Hugging Face",
                       set_.index ? " with index" : "");
  }
  const Value& root(std::uint32_t file) const { return builder_.archive(*numbers_[file]).root; }

  const Place& place_;
  const ReadOptions& options_;
  ArchiveManifestBuilder builder_;
  Findings findings_;
  ShardSet set_;
  std::vector<std::optional<std::uint32_t>> numbers_;  // of each file, in builder_
  std::optional<KeyKind> keys_;
  std::vector<HeldName> held_;
  std::unordered_map<std::string, std::size_t> held_number_;
};

}  // namespace

std::optional<std::string> sign_of_shards(const Place& place) {
  if (place.file.ends_with(kShardNaming.index_suffix)) return place.file;
  if (!place.file.empty()) return std::nullopt;
  if (std::string index = only_shard_index(*place.directory, kShardNaming); !index.empty())
    return index;
  std::optional<std::string> first;
  for (const FileInfo& info : place.directory->list())
    if (is_shard_file(info, kShardNaming) && numbered_shard(info.name, kShardNaming) &&
        (!first || info.name < *first))
      first = info.name;
  return first;
}

Manifest read_shards(const Place& place, const ReadOptions& options) {
  return ShardReader(place, options).read();
}

}  // namespace tessera::torch_save

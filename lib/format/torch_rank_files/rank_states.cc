#include "lib/format/torch_rank_files/rank_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "lib/format/rank_names.h"
#include "lib/format/torch_files/first_reason.h"
#include "lib/state/other_keys.h"

namespace tessera::rank_files {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;
/// Names in a message.
constexpr std::size_t kNamed = 8;

/// A rank's tree with its sharded tensors as tensor references past the archive's own.
class Lifter {
 public:
  Lifter(const TorchArchive& archive, std::int64_t rank,
         std::vector<std::unique_ptr<ShardedValue>>& sharded)
      : archive_(archive), rank_(rank), sharded_(sharded), first_(sharded.size()) {}

  /// Tuples and sets keep their objects: they are values as a whole.
  Value operator()(const Value& value) {
    const void* node = value.node_id();
    if (node == nullptr) return value;
    if (const auto known = done_.find(node); known != done_.end()) return known->second;
    Value out = lift(value);
    done_.emplace(node, out);
    return out;
  }
  /// The sharded tensor behind a reference, nullptr: one of the archive's own.
  const ShardedValue* sharded(std::uint32_t reference) const {
    const std::size_t own = archive_.tensors.size();
    return reference < own ? nullptr : sharded_[first_ + (reference - own)].get();
  }

 private:
  Value lift(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        return Value::dict_of(value.kind(), lift(value.as_dict()), value.attributes());
      case Value::Kind::kList: {
        ValueList items;
        for (const Value& item : value.as_list()) items.push_back((*this)(item));
        return Value::list(std::move(items));
      }
      case Value::Kind::kOpaque: {
        auto found = parse_sharded(value, archive_, rank_);
        if (!found) return value;
        const std::size_t number = archive_.tensors.size() + (sharded_.size() - first_);
        sharded_.push_back(std::make_unique<ShardedValue>(std::move(*found)));
        return Value::tensor(static_cast<std::uint32_t>(number));
      }
      default:
        return value;
    }
  }
  ValueDict lift(const ValueDict& entries) {
    ValueDict out;
    out.reserve(entries.size());
    for (const auto& [key, item] : entries) {
      const std::string name = key.is_string() ? key.as_string() : std::string();
      out.emplace_back(key, in_tensor(name, [&] { return (*this)(item); }));
    }
    return out;
  }

  const TorchArchive& archive_;
  std::int64_t rank_;
  std::vector<std::unique_ptr<ShardedValue>>& sharded_;
  std::size_t first_;
  std::unordered_map<const void*, Value> done_;
};

class Opener {
 public:
  Opener(RankFolder folder, ArchiveManifestBuilder& builder, Findings& findings)
      : builder_(builder), findings_(findings) {
    out_.folder = std::move(folder);
  }

  RankStates run() {
    report_missing();
    for (const RankPart& part : out_.folder.parts)
      for (std::size_t rank = 0; rank < part.files.size(); ++rank)
        if (!part.files[rank].empty()) open(part, static_cast<std::int64_t>(rank));
    if (out_.entries.empty() && out_.containers.empty()) first_.raise_if_any();
    check_world_size();
    return std::move(out_);
  }

 private:
  void report_missing() {
    for (const RankPart& part : out_.folder.parts)
      for (std::size_t rank = 0; rank < part.files.size(); ++rank) {
        if (!part.files[rank].empty()) continue;
        out_.missing.push_back(part.name_of(static_cast<std::int64_t>(rank)));
        out_.missing_ranks.push_back(static_cast<std::int64_t>(rank));
      }
    if (out_.missing.empty()) return;
    fail_missing(out_.folder.world_size, out_.missing);
  }
  void fail_missing(std::int64_t world_size, const std::vector<std::string>& names) {
    const auto shown = std::span(names).first(std::min(names.size(), kNamed));
    std::string message =
        fmt::format("{} of {} rank files {} missing: {}{}; what they held is lost", names.size(),
                    world_size * static_cast<std::int64_t>(out_.folder.parts.size()),
                    names.size() == 1 ? "is" : "are", fmt::join(shown, ", "),
                    names.size() > kNamed ? ", ..." : "");
    const auto& unusable = out_.folder.unusable;
    if (!unusable.empty())
      message += fmt::format(" ({}: {})", printable(unusable.front().name),
                             no_regular_file(unusable.front().type));
    findings_.error(Finding::kMissingFile, std::move(message), names.front());
  }

  /// As if it were not there.
  void lose(const std::string& path, std::int64_t rank, const Status& why) {
    first_.add(why);
    out_.missing.push_back(path);
    out_.missing_ranks.push_back(rank);
    findings_.error(Finding::kUnreadableFile, unreadable_text(fmt::format("rank {}", rank), why),
                    path);
  }

  void open(const RankPart& part, std::int64_t rank) {
    const std::string& path = part.files[static_cast<std::size_t>(rank)];
    Status why;
    const auto opened = builder_.try_open(path, why);
    if (!opened) return lose(path, rank, why);
    const std::uint32_t file = *opened;
    const TorchArchive& archive = builder_.archive(file);
    in_file(path, [&] {
      Lifter lifter(archive, rank, out_.sharded);
      ValueBudget budget(kMaxLeaves);
      StateDict state = flatten(lifter(archive.root), budget);
      Path prefix;
      if (!part.key.empty()) prefix.push_back(key_item(part.key));
      add_entries(state, prefix, rank, file, lifter);
      add_containers(state, prefix, file);
    });
  }

  void add_entries(StateDict& state, const Path& prefix, std::int64_t rank, std::uint32_t file,
                   const Lifter& lifter) {
    for (StateEntry& entry : state.entries) {
      entry.path.insert(entry.path.begin(), prefix.begin(), prefix.end());
      if (!prefix.empty()) entry.name = dotted(entry.path);
      const auto [found, is_new] = by_name_.try_emplace(entry.name, out_.entries.size());
      if (is_new) out_.entries.push_back({entry.path, entry.name, {}});
      RankLeaf leaf{rank, file, std::move(entry.value), nullptr};
      if (leaf.value.is_tensor()) leaf.sharded = lifter.sharded(leaf.value.tensor_index());
      if (leaf.sharded && leaf.sharded->world_size) saw_world_size(*leaf.sharded, file);
      out_.entries[found->second].leaves.push_back(std::move(leaf));
    }
  }
  void add_containers(StateDict& state, const Path& prefix, std::uint32_t file) {
    for (ContainerNote& note : state.containers) {
      note.path.insert(note.path.begin(), prefix.begin(), prefix.end());
      // A dict may have a kind, and keys that are no text.
      if (!containers_.emplace(dotted(note.path), is_of_other_keys(note)).second) continue;
      const std::size_t before = note.entries_before;
      out_.containers.push_back(
          {std::move(note), file,
           before < state.entries.size() ? state.entries[before].name : SharedText()});
    }
  }

  void saw_world_size(const ShardedValue& value, std::uint32_t file) {
    if (!value.is_dtensor()) world_sizes_.emplace(*value.world_size, file);
    most_ = std::max(most_, *value.world_size);
  }
  /// The files' own word on how many ranks there are. Meshes may be parts of the world.
  void check_world_size() {
    std::int64_t& world_size = out_.folder.world_size;
    if (world_sizes_.size() > 1) {
      const auto& [least, a] = *world_sizes_.begin();
      const auto& [most, b] = *world_sizes_.rbegin();
      fail(Code::kCorrupt,
           fmt::format("{} comes from a save of {} ranks, {} from one of {}", path_of(a), least,
                       path_of(b), most),
           "keep the files of one save in the folder");
    }
    if (!world_sizes_.empty() && world_sizes_.begin()->first < world_size)
      fail(Code::kCorrupt,
           fmt::format("there are {} rank files, but {} comes from a save of {} ranks", world_size,
                       path_of(world_sizes_.begin()->second), world_sizes_.begin()->first),
           "files of two saves seem to be mixed");
    if (most_ <= world_size) return;
    if (most_ > most_ranks(builder_.manifest().files.size(), out_.folder.parts.size()))
      fail(Code::kCorrupt, fmt::format("they speak of {} ranks, but {} rank files are here", most_,
                                       builder_.manifest().files.size()));
    std::vector<std::string> names;
    for (RankPart& part : out_.folder.parts) {
      for (std::int64_t rank = world_size; rank < most_; ++rank) {
        names.push_back(part.name_of(rank));
        out_.missing.push_back(names.back());
        out_.missing_ranks.push_back(rank);
      }
      part.files.resize(static_cast<std::size_t>(most_));
    }
    world_size = most_;
    fail_missing(most_, names);
  }
  const std::string& path_of(std::uint32_t file) { return builder_.manifest().files.at(file).path; }

  ArchiveManifestBuilder& builder_;
  Findings& findings_;
  RankStates out_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::set<std::pair<std::string, bool>> containers_;
  std::map<std::int64_t, std::uint32_t> world_sizes_;  // as ShardedTensors say -> a file
  std::int64_t most_ = 0;
  FirstReason first_;
};

}  // namespace

RankStates open_ranks(RankFolder folder, ArchiveManifestBuilder& builder, Findings& findings) {
  return Opener(std::move(folder), builder, findings).run();
}

}  // namespace tessera::rank_files

#include "lib/format/olmo_local/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/olmo_local/flat_handles.h"
#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_rank_files/rank_merge.h"
#include "lib/state/fields.h"

namespace tessera::olmo_local {
namespace {

using rank_files::RankEntry;
using rank_files::RankLeaf;

/// The files "rank<R>.pt" of `folder`, by rank.
rank_files::RankPart part_of(const Directory& directory, std::string_view folder) {
  rank_files::RankPart part;
  part.label = part.key = std::string(folder);
  const auto info = directory.stat(std::string(folder));
  if (!info || info->type != FileType::kDirectory) return part;
  for (const FileInfo& file : directory.list(std::string(folder))) {
    const auto name = rank_files::parse_rank_name(file.name);
    if (file.type != FileType::kRegular || !name || !name->label.empty()) continue;
    const auto rank = static_cast<std::size_t>(name->rank);
    if (rank >= static_cast<std::size_t>(rank_files::kMaxRank)) continue;
    if (part.files.size() <= rank) part.files.resize(rank + 1);
    part.files[rank] = fmt::format("{}/{}", folder, file.name);
    part.sample = part.files[rank];
  }
  return part;
}

class Reader {
 public:
  Reader(const Place& place, const ReadOptions& options)
      : place_(place),
        builder_(*place.directory, options),
        bytes_(*place.directory, builder_),
        merger_(builder_, bytes_),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest run() {
    states_ = rank_files::open_ranks(find_files(), builder_, findings_);
    find_parameters();
    add_parameters();
    name_ids();
    std::vector<rank_files::RankContainer> containers;
    for (rank_files::RankContainer& container : states_.containers)
      if (!is_below(container.note.path, kModel)) containers.push_back(std::move(container));
    for (const RankEntry& entry : states_.entries) {
      if (is_below(entry.path, kModel)) continue;
      first_entry_.emplace(entry.name, builder_.manifest().state.entries.size());
      if (!add_state(entry) && !add_names(entry)) merger_.add(entry);
    }
    rank_files::add_containers(builder_, containers, first_entry_);
    Manifest& manifest = builder_.manifest();
    merger_.note_rank_local(manifest.notes);
    manifest.world_size = states_.folder.world_size;
    manifest.world_size_source =
        fmt::format("rank numbers in {} file names", manifest.files.size());
    return builder_.finish("olmo-local", fmt::format("OLMo's local shards of FSDP1, {} ranks",
                                                     states_.folder.world_size));
  }

 private:
  static bool is_below(const Path& path, std::string_view key) {
    return !path.empty() && is_key(path[0], key);
  }

  rank_files::RankFolder find_files() const {
    rank_files::RankFolder folder;
    for (const std::string_view name : {kModel, kOptim, kTrain})
      if (auto part = part_of(*place_.directory, name); !part.files.empty())
        folder.parts.push_back(std::move(part));
    if (folder.parts.empty() || folder.parts[0].key != kModel)
      fail(Code::kUnsupported, fmt::format("it has no {}", kFirstModelFile));
    for (const auto& part : folder.parts)
      folder.world_size = std::max(folder.world_size, static_cast<std::int64_t>(part.files.size()));
    for (auto& part : folder.parts) part.files.resize(static_cast<std::size_t>(folder.world_size));
    return folder;
  }

  /// From each rank's model file: its runs of the parameters.
  void find_parameters() {
    std::map<std::int64_t, std::uint32_t> files;
    for (const RankEntry& entry : states_.entries) {
      if (!is_below(entry.path, kModel)) continue;
      for (const RankLeaf& leaf : entry.leaves) files.emplace(leaf.rank, leaf.file);
    }
    for (const auto& [rank, file] : files) {
      in_file(builder_.manifest().files[file].path, [&] {
        for (ParameterRun& run : parameter_runs(builder_.archive(file))) {
          const auto [found, fresh] = number_of_.try_emplace(run.fqn, parameters_.size());
          if (fresh) parameters_.push_back({run.fqn, run.spec, {}});
          Parameter& parameter = parameters_[found->second];
          if (parameter.spec != run.spec)
            fail(Code::kCorrupt,
                 fmt::format("\"{}\" is {} here, {} on another rank", printable(run.fqn),
                             run.spec.to_string(), parameter.spec.to_string()));
          if (run.begin < run.end) parameter.runs.emplace(rank, std::pair(file, std::move(run)));
        }
      });
    }
  }

  void add_parameters() {
    for (const Parameter& parameter : parameters_) {
      std::vector<ArchivePiece> pieces;
      for (const auto& [rank, held] : parameter.runs)
        pieces.push_back(piece_of(parameter.spec.shape, held.second, held.first, held.second.tensor,
                                  held.second.first_element));
      Path path = {key_item(std::string(kModel)), key_item(parameter.fqn)};
      const std::uint32_t number = builder_.add_tensor(path, parameter.spec, pieces);
      builder_.tensor(number).always_sharded = parameter.spec.shape.rank() > 0;
      builder_.tensor(number).is_parameter = true;
    }
  }

  static ArchivePiece piece_of(const Shape& shape, const ParameterRun& run, std::uint32_t file,
                               std::uint32_t tensor, std::int64_t first_element) {
    Chunk chunk = Chunk::whole_of(Box::whole(shape));
    chunk.flat_begin = run.begin;
    chunk.flat_end = run.end;
    return {std::move(chunk), file, tensor, first_element};
  }

  /// Groups say what their ids are called: "params" and "param_names".
  void name_ids() {
    std::map<std::string, const Value*> ids, names;
    for (const RankEntry& entry : states_.entries) {
      if (entry.path.size() != 4 || !is_below(entry.path, kOptim)) continue;
      const std::string group = entry.path[2].text();
      if (is_key(entry.path[3], "params")) ids[group] = &entry.leaves.front().value;
      if (is_key(entry.path[3], "param_names")) names[group] = &entry.leaves.front().value;
    }
    for (const auto& [group, list] : ids) {
      const auto named = names.find(group);
      if (named == names.end() || !is_sequence(*list) || !is_sequence(*named->second)) continue;
      const ValueList &numbers = list->as_list(), &texts = named->second->as_list();
      for (std::size_t i = 0; i < std::min(numbers.size(), texts.size()); ++i)
        if (numbers[i].is_int() && texts[i].is_string())
          fqn_of_[numbers[i].as_int()] = without_wrappers(texts[i].as_string());
    }
  }

  /// An array of the optimizer: each rank's run of the parameter that its id means.
  bool add_state(const RankEntry& entry) {
    if (entry.path.size() != 4 || !is_below(entry.path, kOptim) || !is_key(entry.path[1], "state"))
      return false;
    const std::optional<std::int64_t> id = id_of(entry.path[2]);
    const auto name = id ? fqn_of_.find(*id) : fqn_of_.end();
    const auto found = name == fqn_of_.end() ? number_of_.end() : number_of_.find(name->second);
    if (found == number_of_.end()) return false;
    const Parameter& parameter = parameters_[found->second];
    std::vector<ArchivePiece> pieces;
    std::optional<DType> dtype;
    for (const RankLeaf& leaf : entry.leaves) {
      if (!leaf.value.is_tensor()) return false;
      const ArchiveTensor& stored = bytes_.tensor({leaf.file, leaf.value.tensor_index()});
      if (stored.shape.rank() != 1) return false;
      const auto run = parameter.runs.find(leaf.rank);
      const std::int64_t wanted =
          run == parameter.runs.end() ? 0 : run->second.second.end - run->second.second.begin;
      if (stored.shape.numel() != wanted)
        in_tensor(entry.name, [&] {
          fail(Code::kCorrupt,
               fmt::format("rank {} holds {} elements of it, and {} of \"{}\"", leaf.rank,
                           stored.shape.numel(), wanted, printable(parameter.fqn)));
        });
      dtype = stored.dtype;
      if (wanted > 0)
        pieces.push_back(piece_of(parameter.spec.shape, run->second.second, leaf.file,
                                  leaf.value.tensor_index(), 0));
    }
    const std::uint32_t number =
        builder_.add_tensor(entry.path, {*dtype, parameter.spec.shape}, pieces);
    builder_.tensor(number).always_sharded = parameter.spec.shape.rank() > 0;
    return true;
  }
  static std::optional<std::int64_t> id_of(const PathItem& item) {
    if (item.kind == PathItem::Kind::kIntKey) return item.index;
    return std::nullopt;
  }

  /// Names of a group without what FSDP put into them, as OLMo's own unsharding writes them.
  bool add_names(const RankEntry& entry) {
    if (entry.path.size() != 4 || !is_below(entry.path, kOptim) ||
        !is_key(entry.path[3], "param_names") || !is_sequence(entry.leaves.front().value))
      return false;
    ValueList names;
    for (const Value& name : entry.leaves.front().value.as_list())
      names.push_back(name.is_string() ? Value::string(without_wrappers(name.as_string())) : name);
    builder_.add_value(entry.leaves.front().file, entry.path, Value::list(std::move(names)));
    return true;
  }

  struct Parameter {
    std::string fqn;
    TensorSpec spec;
    std::map<std::int64_t, std::pair<std::uint32_t, ParameterRun>> runs;  // by rank: file, run
  };

  const Place& place_;
  ArchiveManifestBuilder builder_;
  ArchiveBytes bytes_;
  rank_files::RankMerger merger_;
  Findings findings_;
  rank_files::RankStates states_;
  std::vector<Parameter> parameters_;
  std::map<std::string, std::size_t> number_of_;
  std::map<std::int64_t, std::string> fqn_of_;  // by id
  std::map<std::string, std::size_t> first_entry_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return Reader(place, options).run();
}

}  // namespace tessera::olmo_local

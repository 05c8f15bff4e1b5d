#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "lib/format/findings.h"
#include "lib/format/rank_names.h"
#include "lib/format/torch_checkpointing/items.h"
#include "lib/format/torch_checkpointing/metadata.h"
#include "lib/format/torch_checkpointing/parts.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_files/root_option.h"
#include "lib/format/torch_rank_files/rank_merge.h"
#include "lib/format/torch_rank_files/rank_states.h"

namespace tessera::checkpointing {
namespace {

using rank_files::RankEntry;
using rank_files::RankLeaf;
using rank_files::RankPart;

constexpr std::string_view kSafetensors = "SafetensorsSerialization";
constexpr std::string_view kJson = "JsonSerialization";
constexpr std::uint64_t kMostJsonBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostLeaves = std::uint64_t{1} << 24;

/// Runs of a box in a tensor's row-major ravel: each as long as the whole of the inner dims is taken.
template <class Add>
void for_each_run(const Shape& shape, const Box& box, const Add& add) {
  if (box.shape.numel() == 0) return;
  int dim = shape.rank();  // dims from here on are taken whole
  while (dim > 0 && box.shape[dim - 1] == shape[dim - 1]) --dim;
  const int outer = std::max(dim - 1, 0);
  std::vector<std::int64_t> at(static_cast<std::size_t>(outer), 0);
  const std::vector<std::int64_t> strides = shape.strides();
  for (;;) {
    Box run = box;
    std::int64_t first = 0;
    for (int d = 0; d < shape.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      if (d < outer) {
        run.origin[i] += at[i];
        run.shape[d] = 1;
      }
      first += run.origin[i] * strides[i];
    }
    add(run, first);
    int d = outer - 1;
    for (; d >= 0; --d) {
      if (++at[static_cast<std::size_t>(d)] < box.shape[d]) break;
      at[static_cast<std::size_t>(d)] = 0;
    }
    if (d < 0) return;
  }
}

/// An item may be one tensor, or one object.
ReadOptions taking_any_root(ReadOptions options) {
  options.own.set(kAnyRoot, true);
  return options;
}

class Reader {
 public:
  Reader(const Place& place, const ReadOptions& options)
      : directory_(*place.directory),
        options_(options),
        builder_(directory_, taking_any_root(options)),
        bytes_(directory_, builder_),
        merger_(builder_, bytes_),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest run() {
    metadata_ = read_metadata(directory_, options_.pickle_limit_bytes);
    add_archives();
    if (metadata_)
      for (const auto& [name, item] : metadata_->items)
        if (!item.layouts.empty()) add_laid_out(name, item);
    add_unlisted_json();
    check_listed();
    describe();
    return builder_.finish("torch-checkpointing", dialect());
  }

 private:
  const Item* item_of(const std::string& name) const {
    if (!metadata_) return nullptr;
    const auto found = metadata_->items.find(name);
    return found == metadata_->items.end() ? nullptr : &found->second;
  }

  rank_files::RankFolder folder() {
    const ItemFiles files = find_item_files(directory_);
    std::size_t count = 0;
    std::int64_t ranks = 0;
    for (const auto& [item, by_rank] : files) {
      count += by_rank.size();
      ranks = std::max(ranks, by_rank.rbegin()->first + 1);
    }
    world_size_ = metadata_ ? metadata_->world_size : ranks;
    if (ranks > world_size_)
      fail(Code::kCorrupt, fmt::format("a file of rank {}, but metadata.pkl is of {} ranks",
                                       ranks - 1, world_size_));
    if (world_size_ > most_ranks(std::max<std::size_t>(count, 1)) && count > 0)
      fail(Code::kCorrupt,
           fmt::format("{} ranks, but {} files of items are here", world_size_, count));
    rank_files::RankFolder out;
    out.world_size = world_size_;
    std::set<std::string> names;
    for (const auto& [item, by_rank] : files) names.insert(item);
    if (metadata_)
      for (const auto& [name, item] : metadata_->items) names.insert(name);
    for (const std::string& name : names) {
      if (const Item* item = item_of(name); item && !item->layouts.empty()) continue;
      RankPart part{name, name, std::vector<std::string>(static_cast<std::size_t>(world_size_)),
                    fmt::format("{}_0.pt", name)};
      part.is_item = true;
      if (const auto found = files.find(name); found != files.end())
        for (const auto& [rank, file] : found->second)
          part.files[static_cast<std::size_t>(rank)] = file;
      out.parts.push_back(std::move(part));
    }
    return out;
  }

  void add_archives() {
    rank_files::RankFolder parts = folder();
    if (parts.parts.empty()) return;
    rank_files::RankStates states = rank_files::open_ranks(std::move(parts), builder_, findings_);
    std::map<std::string, std::size_t> first_entry;
    for (const RankEntry& entry : states.entries) {
      first_entry.emplace(entry.name, builder_.manifest().state.entries.size());
      names_.insert(entry.name);
      in_tensor(entry.name, [&] { add(entry); });
    }
    rank_files::add_containers(builder_, states.containers, first_entry);
  }

  const PathEntry* listed(const RankEntry& entry) const {
    const std::string item = entry.path.front().text();
    const Item* found = item_of(item);
    if (!found) return nullptr;
    const std::string name =
        entry.name.size() > item.size() ? entry.name.substr(item.size() + 1) : "";
    const auto path = found->paths.find(name);
    return path == found->paths.end() ? nullptr : &path->second;
  }

  void add(const RankEntry& entry) {
    const PathEntry* path = listed(entry);
    if (!path) return merger_.add(entry);
    const Group& first = path->groups.front();
    if (!first.layout) return add_geometry(entry, *path);
    for (const RankLeaf& leaf : entry.leaves) {
      if (!leaf.sharded && !leaf.value.is_tensor()) continue;
      const TensorSpec spec = leaf.sharded ? leaf.sharded->spec : spec_of(leaf);
      if (spec != first.spec)
        in_file(builder_.manifest().files[leaf.file].path, [&] {
          fail(Code::kCorrupt, fmt::format("it is {} here, metadata.pkl says {}", spec.to_string(),
                                           first.spec.to_string()));
        });
    }
    merger_.add(entry);
  }
  TensorSpec spec_of(const RankLeaf& leaf) {
    const ArchiveTensor& tensor = bytes_.tensor({leaf.file, leaf.value.tensor_index()});
    return {tensor.dtype, tensor.shape};
  }

  /// Each rank's local tensor holds pieces of the whole, with padding between them.
  void add_geometry(const RankEntry& entry, const PathEntry& path) {
    std::vector<ArchivePiece> pieces;
    for (const RankLeaf& leaf : entry.leaves)
      for (const Group& group : path.groups) {
        if (std::ranges::find(group.ranks, leaf.rank) == group.ranks.end()) continue;
        if (!leaf.value.is_tensor() || leaf.sharded)
          fail(Code::kUnsupported, "pieces of something else than a plain tensor");
        const Shape local = spec_of(leaf).shape;
        for (const Piece& piece : group.pieces) add_piece(leaf, local, piece, pieces);
      }
    builder_.tensor(builder_.add_tensor(entry.path, path.groups.front().spec, pieces))
        .always_sharded = true;
  }
  static void add_piece(const RankLeaf& leaf, const Shape& local, const Piece& piece,
                        std::vector<ArchivePiece>& pieces) {
    bool inside = piece.local.rank() == local.rank();
    for (int d = 0; inside && d < local.rank(); ++d)
      inside = piece.local.shape[d] <= local[d] &&
               piece.local.begin(d) <= local[d] - piece.local.shape[d];
    if (!inside)
      fail(Code::kCorrupt, fmt::format("a piece {} of a local tensor of {}",
                                       piece.local.to_string(), local.to_string()));
    for_each_run(local, piece.local, [&](const Box& run, std::int64_t first) {
      Box whole = run;
      for (int d = 0; d < run.rank(); ++d)
        whole.origin[static_cast<std::size_t>(d)] += piece.whole.begin(d) - piece.local.begin(d);
      pieces.push_back(
          {Chunk::whole_of(std::move(whole)), leaf.file, leaf.value.tensor_index(), first});
    });
  }

  // Items in files of other kinds.

  void add_laid_out(const std::string& name, const Item& item) {
    std::vector<std::pair<std::int64_t, const FileLayout*>> safetensors, json;
    for (const auto& held : item.layouts) {
      const std::int64_t rank = held.first;
      const FileLayout& layout = held.second;
      if (layout.serialization == kSafetensors)
        safetensors.emplace_back(rank, &layout);
      else if (layout.serialization == kJson)
        json.emplace_back(rank, &layout);
      else
        in_file(layout.file, [&] {
          fail(Code::kUnsupported, fmt::format("item \"{}\" is serialized by {}", printable(name),
                                               printable(layout.serialization)));
        });
    }
    if (!safetensors.empty() && !json.empty())
      fail(Code::kUnsupported,
           fmt::format("item \"{}\" is serialized in two ways", printable(name)));
    json.empty() ? add_safetensors(name, item, safetensors) : add_json(name, json);
  }

  /// nullopt: a finding says why.
  std::optional<std::uint32_t> take_file(const std::string& path) {
    const auto info = directory_.stat(path);
    if (!info || info->type != FileType::kRegular) {
      findings_.error(Finding::kMissingFile,
                      info ? std::string(no_regular_file(info->type)) : "the file is missing",
                      path);
      return std::nullopt;
    }
    Manifest& manifest = builder_.manifest();
    manifest.files.push_back({path, info->size_bytes, info->mtime_ns});
    return static_cast<std::uint32_t>(manifest.files.size() - 1);
  }

  struct Shards {
    std::uint32_t file = 0;
    std::int64_t rank = 0;
    SafetensorsHeader header;
  };
  void add_safetensors(const std::string& name, const Item& item,
                       const std::vector<std::pair<std::int64_t, const FileLayout*>>& ranks) {
    std::vector<Shards> files;
    for (const auto& held : ranks) {
      const std::int64_t rank = held.first;
      const FileLayout* layout = held.second;
      const auto file = take_file(layout->file);
      if (!file) continue;
      in_file(layout->file, [&] {
        const auto open = directory_.open(layout->file);
        files.push_back(
            {*file, rank, read_safetensors_header(ByteWindow::whole(*open), findings_.tolerate())});
        if (files.back().header.missing_bytes > 0)
          findings_.error(
              Finding::kShortFile,
              fmt::format("the file ends {} bytes early", files.back().header.missing_bytes),
              layout->file);
        for (const SafetensorsTensor& tensor : files.back().header.tensors)
          if (!item.paths.contains(tensor.name))
            in_tensor(tensor.name, [] {
              fail(Code::kUnsupported, "metadata.pkl does not say whether it is a part or whole");
            });
      });
    }
    for (const auto& held : item.paths) {
      const std::string full = held.first.empty() ? name : name + "." + held.first;
      in_tensor(full, [&] { add_shards(name, full, held.second, files); });
    }
  }
  void add_shards(const std::string& item, const std::string& full, const PathEntry& path,
                  const std::vector<Shards>& files) {
    Manifest& manifest = builder_.manifest();
    StoredTensor tensor;
    tensor.name = full;
    tensor.spec = path.groups.front().spec;
    tensor.first_chunk = manifest.chunks.size();
    for (const Shards& shards : files)
      for (const Group& group : path.groups) {
        if (std::ranges::find(group.ranks, shards.rank) == group.ranks.end()) continue;
        in_file(manifest.files[shards.file].path,
                [&] { add_local(shards, path.stored_name, group, tensor); });
      }
    if (tensor.chunk_count == 0) return;  // check_listed() says so
    names_.insert(full);
    Path place = path.path;
    place.insert(place.begin(), key_item(item));
    const auto number = static_cast<std::uint32_t>(manifest.tensors.size());
    manifest.state.entries.push_back({full, std::move(place), Value::tensor(number)});
    manifest.tensors.push_back(std::move(tensor));
  }
  void add_local(const Shards& shards, const std::string& name, const Group& group,
                 StoredTensor& tensor) {
    const auto stored = std::ranges::find_if(
        shards.header.tensors,
        [&](const SafetensorsTensor& each) { return std::string_view(each.name) == name; });
    if (stored == shards.header.tensors.end())
      return findings_.error(Finding::kLost, "metadata.pkl lists it here, and the file lacks it",
                             builder_.manifest().files[shards.file].path, name);
    if (!group.layout) fail(Code::kUnsupported, "pieces in a safetensors file");
    const std::vector<Chunk> chunks = chunks_on(group, shards.rank);
    std::int64_t numel = 0;
    for (const Chunk& chunk : chunks) numel += chunk.numel();
    const bool one = chunks.size() == 1;
    const bool rows = std::ranges::all_of(chunks, [&](const Chunk& chunk) {
      return one || (chunk.box.rank() > 0 &&
                     chunk.box.shape.inner_numel(0) == group.spec.shape.inner_numel(0));
    });
    if (!rows)
      fail(Code::kUnsupported, "an uneven strided placement of a dim that is not the first");
    if (stored->spec.dtype != group.spec.dtype || stored->spec.shape.numel() != numel ||
        (one && stored->spec.shape != chunks[0].box.shape))
      fail(Code::kCorrupt,
           fmt::format("the rank's part is {}, metadata.pkl gives it {} elements of {}",
                       stored->spec.to_string(), numel, group.spec.to_string()));
    std::uint64_t at = shards.header.data_offset + stored->begin;
    for (const Chunk& chunk : chunks) {
      Source source;
      source.kind = Source::Kind::kExtent;
      source.file = shards.file;
      source.offset = at;
      source.length = static_cast<std::uint64_t>(
          TensorSpec{group.spec.dtype, Shape{chunk.numel()}}.size_bytes());
      at += source.length;
      if (chunk.numel() == 0 && group.spec.shape.numel() > 0) continue;
      builder_.manifest().chunks.add(chunk, source);
      ++tensor.chunk_count;
    }
    tensor.always_sharded |=
        group.ranks.size() > 1 && chunks.size() == 1 && chunks[0].box.shape != group.spec.shape;
  }

  void add_json(const std::string& name,
                const std::vector<std::pair<std::int64_t, const FileLayout*>>& ranks) {
    std::vector<std::pair<std::int64_t, std::string>> files;
    for (const auto& held : ranks) files.emplace_back(held.first, held.second->file);
    add_json_files(name, files);
  }
  /// metadata.pkl has no items without tensors: their files show them.
  void add_unlisted_json() {
    if (!metadata_) return;
    for (const auto& found : find_item_files(directory_, ".json")) {
      if (item_of(found.first)) continue;
      add_json_files(found.first, {found.second.begin(), found.second.end()});
    }
  }
  void add_json_files(const std::string& name,
                      const std::vector<std::pair<std::int64_t, std::string>>& files) {
    std::vector<std::pair<std::int64_t, Value>> values;
    for (const auto& held : files) {
      if (!take_file(held.second)) continue;
      in_file(held.second, [&] {
        const auto file = directory_.open(held.second);
        if (file->size_bytes() > kMostJsonBytes) fail(Code::kCorrupt, "it is far too large");
        Bytes text(file->size_bytes());
        file->read_at(0, text);
        values.emplace_back(held.first, parse_json(text));
      });
    }
    if (values.empty()) return;
    const bool same = std::ranges::all_of(
        values, [&](const auto& value) { return value.second == values.front().second; });
    if (same) return add_value(name, values.front().second, std::nullopt);
    for (const auto& [rank, value] : values) add_value(name, value, rank);
  }
  void add_value(const std::string& name, Value value, std::optional<std::int64_t> rank) {
    if (rank)
      value = Value::dict({{Value::string(fmt::format("rank_{}", *rank)), std::move(value)}});
    ValueBudget budget(kMostLeaves);
    StateDict state = flatten(Value::dict({{Value::string(name), std::move(value)}}), budget);
    StateDict& out = builder_.manifest().state;
    for (ContainerNote& note : state.containers) {
      note.entries_before =
          out.entries.size() + std::min(note.entries_before, state.entries.size());
      out.containers.push_back(std::move(note));
    }
    for (StateEntry& entry : state.entries) {
      entry.rank = rank;
      out.entries.push_back(std::move(entry));
    }
  }

  /// What metadata.pkl lists is somewhere; inside of a value that is one leaf here, or by itself.
  void check_listed() {
    if (!metadata_) return;
    for (const auto& [item, held] : metadata_->items)
      for (const auto& [stored, path] : held.paths) {
        const std::string name = stored.empty() ? item : item + "." + stored;
        bool found = names_.contains(name);
        for (std::size_t dot = name.rfind('.'); !found && dot != name.npos && dot > 0;
             dot = name.rfind('.', dot - 1))
          found = names_.contains(name.substr(0, dot));
        if (!found)
          findings_.error(Finding::kLost, "metadata.pkl lists it, and no rank's file holds it",
                          kMetadataFile, name);
      }
  }

  void describe() {
    Manifest& manifest = builder_.manifest();
    if (metadata_)
      if (const auto info = directory_.stat(kMetadataFile))
        manifest.files.push_back({std::string(kMetadataFile), info->size_bytes, info->mtime_ns});
    if (metadata_) manifest.provenance.emplace(kVersion, metadata_->version);
    if (metadata_ && !metadata_->device_type.empty())
      manifest.provenance.emplace(kDeviceType, metadata_->device_type);
    manifest.world_size = world_size_;
    manifest.world_size_source = metadata_ ? "world_size of metadata.pkl" : "ranks in file names";
    merger_.note_rank_local(manifest.notes);
  }
  std::string dialect() const {
    return metadata_ ? fmt::format("torch_checkpointing, metadata {}", metadata_->version)
                     : "torch_checkpointing without metadata.pkl";
  }

  const Directory& directory_;
  const ReadOptions& options_;
  ArchiveManifestBuilder builder_;
  ArchiveBytes bytes_;
  rank_files::RankMerger merger_;
  Findings findings_;
  std::optional<Metadata> metadata_;
  std::int64_t world_size_ = 0;
  std::unordered_set<std::string> names_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return Reader(place, options).run();
}

}  // namespace tessera::checkpointing

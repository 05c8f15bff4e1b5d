// `.metadata` and the sizes of files -> Manifest.
#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/codec.h>
#include <tessera/layout/coverage.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lib/format/torch_dcp/chunk_match.h"
#include "lib/format/torch_dcp/files.h"
#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/plain_metadata.h"
#include "lib/format/torch_dcp/reader.h"
#include "lib/format/torch_dcp/regrouped_chunk.h"
#include "lib/format/torch_dcp/value_items.h"
#include "lib/state/tensor_wrapper.h"
#include "lib/state/wrapper_rows.h"

namespace tessera::dcp {
namespace {

/// The archive of a plain tensor is longer than its elements by less than the first, and by about as
/// much in all items of a checkpoint: what differs by more than the second may hold something else.
constexpr std::uint64_t kMostOverhead = 2048, kOverheadVaries = 256;

Bytes read_whole(const Directory& directory, const std::string& name) {
  return in_file(name, [&] {
    const auto file = directory.open(name);
    const ByteWindow window = ByteWindow::whole(*file);
    return window.read(0, window.length);
  });
}

std::optional<DcpMetadata> read_plain(const Directory& directory, const std::string& name) {
  return in_file(name, [&] {
    const auto file = directory.open(name);
    return read_plain_metadata(ByteWindow::whole(*file), name);
  });
}

/// Ranks with metadata of their own, ascending.
std::vector<std::int64_t> metadata_ranks(const Directory& directory) {
  std::vector<std::int64_t> ranks;
  for (const FileInfo& info : directory.list()) {
    if (info.type != FileType::kRegular) continue;
    if (const auto rank = rank_of_metadata_file(info.name)) ranks.push_back(*rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

/// Transforms that files may name are DCP's stream extensions; slices are ours alone.
void require_known_codecs(const DcpMetadata& metadata) {
  for (const auto& chain : metadata.codecs) {
    for (const std::string& codec : chain) {
      if (codec.starts_with("stream.") && has_codec(codec)) continue;
      fail(Code::kUnsupported,
           fmt::format("items are stored by the transform \"{}\", which is not "
                       "known",
                       printable(codec)),
           "stream.zstd/1 and stream.rot13/1 can be read");
    }
  }
}

class Builder {
 public:
  Builder(const Place& place, const ReadOptions& options, DcpMetadata metadata)
      : place_(place),
        options_(options),
        metadata_(std::move(metadata)),
        findings_(options.tolerate_damage, manifest_.notes) {}

  Manifest build() {
    manifest_.format = "torch-dcp";
    manifest_.names_own_bytes = true;
    manifest_.dialect = metadata_.dialect;
    manifest_.notes = std::move(metadata_.notes);
    manifest_.provenance = std::move(metadata_.provenance);
    for (GlobalUse& use : metadata_.globals) add_global(std::move(use));
    require_known_codecs(metadata_);
    manifest_.codecs = metadata_.codecs;
    missing_ = check_files(place_, metadata_, manifest_, findings_);
    set_world_size();
    note_orphans();
    check_ends();
    grouped_ = group_items(metadata_);
    decode_all_values();
    manifest_.chunks.reserve(metadata_.storage.size(), metadata_.coordinates.size());
    manifest_.state.entries.reserve(metadata_.entries.size());
    manifest_.tensors.reserve(
        static_cast<std::size_t>(std::ranges::count_if(metadata_.entries, &DcpEntry::is_tensor)));
    for (std::uint32_t e = 0; e < metadata_.entries.size(); ++e) {
      if (metadata_.entries[e].is_tensor) {
        add_tensor(e);
      } else {
        add_value(e);
      }
    }
    return std::move(manifest_);
  }

 private:
  void add_global(GlobalUse use) {
    if (globals_.insert(use.name).second) manifest_.globals.push_back(std::move(use));
  }

  /// Ranks without items leave no file, but Megatron-core keeps the plan of each.
  void set_world_size() {
    if (metadata_.plan_count <= manifest_.world_size.value_or(0)) return;
    manifest_.world_size = metadata_.plan_count;
    manifest_.world_size_source =
        fmt::format("{} plans in all_local_plans of .metadata", metadata_.plan_count);
  }

  void note_orphans() {
    const std::set<std::string> names(metadata_.orphans.begin(), metadata_.orphans.end());
    for (const std::string& name : names) {
      findings_.note(Finding::kUnusedEntry, Severity::kWarning,
                     "storage_data has an item of a name that state_dict_metadata lacks", {}, name);
    }
  }

  /// Writers put one item behind the other: nothing follows the last.
  void check_ends() {
    std::vector<std::uint64_t> ends(metadata_.files.size(), 0);
    for (const DcpStorage& item : metadata_.storage)
      if (const auto end = checked_add(item.offset, item.length))
        ends[item.file] = std::max(ends[item.file], *end);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const std::uint64_t size = manifest_.files[i].size_bytes;
      if (missing_[i] || size <= ends[i]) continue;
      findings_.note(
          Finding::kTrailingBytes, findings_.tolerate() ? Severity::kError : Severity::kWarning,
          fmt::format("{} bytes follow the last item", size - ends[i]), metadata_.files[i]);
    }
  }

  std::span<const std::uint32_t> items_of(std::uint32_t entry) const {
    return std::span(grouped_.items)
        .subspan(grouped_.first[entry], grouped_.first[entry + 1] - grouped_.first[entry]);
  }

  /// True when the item lies inside its file; else a finding says what is wrong.
  bool is_present(const DcpStorage& item, const std::string& name) {
    if (missing_[item.file]) return false;  // one finding per file is enough
    const std::uint64_t size = manifest_.files[item.file].size_bytes;
    if (item.offset <= size && item.length <= size - item.offset) return true;
    findings_.error(Finding::kShortFile,
                    fmt::format("its item of {} bytes at offset {} ends past the file's end ({} "
                                "bytes)",
                                item.length, item.offset, size),
                    metadata_.files[item.file], name);
    return false;
  }

  void decode_all_values() {
    first_value_.assign(metadata_.entries.size() + 1, 0);
    std::vector<ValueItem> items;
    for (std::uint32_t e = 0; e < metadata_.entries.size(); ++e) {
      const DcpEntry& entry = metadata_.entries[e];
      if (!entry.is_tensor) {
        const auto own = items_of(e);
        if (own.empty()) {
          findings_.error(Finding::kUnplaced, "the value has no entry in storage_data", {},
                          entry.name);
        }
        const auto is_lost = [&](std::uint32_t i) { return missing_[metadata_.storage[i].file]; };
        if (!own.empty() && std::ranges::all_of(own, is_lost)) {
          findings_.error(Finding::kLost, "lost: its file is missing",
                          metadata_.files[metadata_.storage[own[0]].file], entry.name);
        }
        for (const std::uint32_t i : own) {
          const DcpStorage& item = metadata_.storage[i];
          if (!is_present(item, entry.name)) continue;
          items.push_back({{item.file, item.codecs, item.offset, item.length}, entry.name});
        }
      }
      first_value_[e + 1] = static_cast<std::uint32_t>(items.size());
    }
    values_ = decode_values(*place_.directory, manifest_, items, options_, findings_);
  }

  void add_value(std::uint32_t e) {
    DcpEntry& entry = metadata_.entries[e];
    std::size_t first = first_value_[e];
    const std::size_t end = first_value_[e + 1];
    while (first < end && values_[first].damaged) ++first;
    if (first == end) return;  // missing or damaged: a finding says so
    DecodedValue& kept = values_[first].decoded;
    for (std::size_t other = first + 1; other < end; ++other) {
      if (values_[other].damaged || values_[other].decoded.value == kept.value) continue;
      findings_.note(Finding::kDifferentValues, Severity::kWarning,
                     "ranks stored different values; the lowest rank's is used", {}, entry.name);
      break;
    }
    if (kept.raw) {
      findings_.note(Finding::kRawValue, Severity::kInfo,
                     "its item is no torch archive; kept as raw bytes", {}, entry.name);
    }
    Value value = adopt(std::move(kept), entry.name);
    manifest_.state.entries.push_back({entry.name, std::move(entry.path), std::move(value)});
  }

  /// The value, with its tensors and globals taken into the manifest.
  Value adopt(DecodedValue decoded, const std::string& name) {
    for (GlobalUse& use : decoded.globals) add_global(std::move(use));
    if (decoded.tensors.empty()) return std::move(decoded.value);
    std::vector<std::uint32_t> numbers;
    for (EmbeddedTensor& tensor : decoded.tensors)
      numbers.push_back(add_embedded(manifest_, tables_, name, std::move(tensor)));
    return remap_tensors(decoded.value, numbers);
  }

  /// An item that is not as long as one of the elements that .metadata promises is no plain tensor:
  /// a subclass that wraps several (8-bit optimizer state). It is a value of the state then, as in a
  /// file of torch.save. What several ranks saved of it is joined by rows, where its class can be
  /// cut so; else it is a value for each rank, in blocks of its own.
  bool add_wrapped(const DcpEntry& entry, const std::vector<MatchedChunk>& matched) {
    const std::vector<std::uint32_t> items = odd_items(entry, matched);
    std::vector<DecodedValue> found;
    for (const std::uint32_t i : items) {
      found.push_back(look_into(metadata_.storage[i]));
      if (!wrapper_class(found.back().value).empty()) continue;
      if (found.back().value.is_tensor()) {  // plain after all
        const auto plain = static_cast<std::uint64_t>(found.back().tensors.at(0).spec.size_bytes());
        overhead_ = std::max(metadata_.storage[i].length, plain) - plain;
      }
      return false;
    }
    if (add_joined(entry, matched, found)) return true;
    for (std::size_t k = 0; k < found.size(); ++k) {
      StateEntry made{entry.name, entry.path, {}};
      if (found.size() > 1) {
        const auto rank =
            rank_of_data_file(metadata_.files[metadata_.storage[items[k]].file]).value_or(k);
        const std::string item = fmt::format("rank_{}", rank);
        if (!made.path.empty()) made.path.push_back(key_item(item));
        made.name = entry.name + "." + item;
        made.rank = rank;
      }
      made.value = adopt(std::move(found[k]), made.name);
      manifest_.state.entries.push_back(std::move(made));
    }
    return !found.empty();
  }

  /// One object out of each rank's rows.
  bool add_joined(const DcpEntry& entry, const std::vector<MatchedChunk>& matched,
                  std::vector<DecodedValue>& found) {
    std::vector<WrapperShard> shards;
    std::vector<std::size_t> order(found.size());
    const auto box_of = [&](std::size_t k) {
      const auto& chunk = matched[k].chunk;
      return ChunkView(metadata_.origin(entry, chunk), metadata_.sizes(entry, chunk)).box();
    };
    for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
    if (entry.spec.shape.rank() == 0) return false;
    std::ranges::sort(order, {}, [&](std::size_t k) { return box_of(k).begin(0); });
    for (const std::size_t k : order) {
      const Box box = box_of(k);
      const auto spec_of = [&found, k](std::uint32_t tensor) {
        return found[k].tensors[tensor].spec;
      };
      shards.push_back({{box.begin(0), box.begin(0) + box.shape[0]}, found[k].value, spec_of});
    }
    const auto place = [&](std::size_t shard, std::uint32_t tensor) -> const LocatedChunk& {
      return found[order[shard]].tensors[tensor].chunk;
    };
    const auto same = [&](std::size_t shard, std::uint32_t tensor, std::uint32_t first) {
      const auto &a = place(shard, tensor).record, &b = place(0, first).record;
      return a && b && a->crc32 == b->crc32 && a->length == b->length;
    };
    auto joined = join_rows(shards, entry.spec, same);
    if (!joined) return false;
    for (DecodedValue& decoded : found)
      for (GlobalUse& use : decoded.globals) add_global(std::move(use));
    std::vector<std::uint32_t> numbers;
    for (const JoinedWrapper::Part& part : joined->parts) {
      std::vector<EmbeddedPiece> pieces;
      for (const JoinedWrapper::Piece& piece : part.pieces) {
        EmbeddedTensor& stored = found[order[piece.shard]].tensors[piece.tensor];
        Box box = Box::whole(stored.spec.shape);
        box.origin[0] = piece.first_row;
        pieces.push_back({Chunk::whole_of(std::move(box)), std::move(stored.chunk)});
      }
      numbers.push_back(add_embedded(manifest_, tables_, entry.name, part.spec, std::move(pieces)));
    }
    manifest_.state.entries.push_back(
        {entry.name, entry.path, remap_tensors(joined->value, numbers)});
    return true;
  }

  /// The entry's items if none is as long as a plain one, and each is another file's; else none.
  std::vector<std::uint32_t> odd_items(const DcpEntry& entry,
                                       const std::vector<MatchedChunk>& matched) {
    std::vector<std::uint32_t> items;
    std::set<std::uint32_t> files;
    for (const MatchedChunk& match : matched) {
      if (match.item == MatchedChunk::kNoItem) return {};
      const DcpStorage& item = metadata_.storage[match.item];
      const ChunkView chunk(metadata_.origin(entry, match.chunk),
                            metadata_.sizes(entry, match.chunk));
      const TensorSpec stored{entry.spec.dtype, chunk.box().shape};
      const std::uint64_t size = manifest_.files[item.file].size_bytes;
      const bool is_there =
          !missing_[item.file] && item.offset <= size && item.length <= size - item.offset;
      if (item.codecs != 0 || !is_there ||
          is_as_plain(item.length, static_cast<std::uint64_t>(stored.size_bytes())) ||
          !files.insert(item.file).second)
        return {};
      items.push_back(match.item);
    }
    return items;
  }

  bool is_as_plain(std::uint64_t length, std::uint64_t elements) {
    if (length < elements) return false;
    const std::uint64_t overhead = length - elements;
    if (!overhead_ && overhead <= kMostOverhead) overhead_ = overhead;
    return overhead_ &&
           std::max(overhead, *overhead_) - std::min(overhead, *overhead_) <= kOverheadVaries;
  }

  /// What the item holds; nothing where it cannot be read, which whoever reads the tensor reports.
  DecodedValue look_into(const DcpStorage& stored) const {
    try {
      const Item item{stored.file, stored.codecs, stored.offset, stored.length};
      ItemReader reader(*place_.directory, manifest_, options_);
      return decode_value(manifest_, item, reader.open(item, item.offset + item.length), options_);
    } catch (const Error&) {
      return {};
    }
  }

  void add_tensor(std::uint32_t e) {
    DcpEntry& entry = metadata_.entries[e];
    const std::vector<MatchedChunk> matched =
        match_chunks(metadata_, entry, items_of(e), findings_);
    const auto whole = metadata_.regrouped.find(e);
    const bool is_regrouped = whole != metadata_.regrouped.end();
    if (!is_regrouped && add_wrapped(entry, matched)) return;
    StoredTensor tensor;
    tensor.first_chunk = manifest_.chunks.size();
    for (const MatchedChunk& match : matched) {
      if (match.item == MatchedChunk::kNoItem) continue;
      const DcpStorage& item = metadata_.storage[match.item];
      is_present(item, entry.name);  // the chunk stays, so that coverage is judged on its own
      Source source;
      source.file = item.file;
      source.offset = item.offset;
      source.length = item.length;
      source.side = item.codecs;
      const ChunkView stored(metadata_.origin(entry, match.chunk),
                             metadata_.sizes(entry, match.chunk));
      if (!is_regrouped) {
        manifest_.chunks.add(stored, source);
        continue;
      }
      source.view = kRegrouped;
      in_tensor(entry.name, [&] {
        manifest_.chunks.add(regrouped_chunk(entry.spec.shape, whole->second, stored.box()),
                             source);
      });
    }
    if (is_regrouped) entry.spec.shape = whole->second;
    tensor.name = entry.name;
    tensor.spec = entry.spec;
    tensor.requires_grad = entry.requires_grad;
    tensor.chunk_count = static_cast<std::uint32_t>(manifest_.chunks.size() - tensor.first_chunk);
    check_chunks(entry, manifest_.chunks_of(tensor));
    manifest_.state.entries.push_back(
        {entry.name, std::move(entry.path),
         Value::tensor(static_cast<std::uint32_t>(manifest_.tensors.size()))});
    manifest_.tensors.push_back(std::move(tensor));
  }

  void check_chunks(const DcpEntry& entry, ChunkSlice chunks) {
    const CoverageReport report = check_coverage(entry.spec.shape, chunks);
    if (report.complete) return;
    if (!report.out_of_bounds.empty()) {
      const Box box = chunks[report.out_of_bounds[0]].box();
      findings_.error(Finding::kOutOfBounds,
                      fmt::format("chunk {} leaves its tensor of shape {}", box.to_string(),
                                  entry.spec.shape.to_string()),
                      {}, entry.name);
    }
    if (report.first_overlap) {
      findings_.error(Finding::kOverlap, report.to_string(), {}, entry.name);
    }
    if (report.missing_numel > 0 || report.first_hole) {
      findings_.error(Finding::kHole, fmt::format("coverage hole: {}", report.to_string()), {},
                      entry.name);
    }
  }

  const Place& place_;
  const ReadOptions& options_;
  DcpMetadata metadata_;
  Manifest manifest_;
  Findings findings_;
  SideTables tables_{manifest_};
  std::set<std::string> globals_;
  std::vector<bool> missing_;
  std::optional<std::uint64_t> overhead_;  // of plain tensors' items, once one was seen
  ItemsByEntry grouped_;
  std::vector<std::uint32_t> first_value_;  // per entry: its items in values_
  std::vector<DecodedItem> values_;
};

}  // namespace

DcpMetadata read_metadata(const Place& place, bool list_globals) {
  const Directory& directory = *place.directory;
  if (directory.stat(kMetadataFile)) {
    const std::string name(kMetadataFile);
    if (!list_globals) {
      if (auto plain = read_plain(directory, name)) return std::move(*plain);
    }
    return parse_metadata(read_whole(directory, name), name, list_globals);
  }
  std::vector<DcpMetadata> ranks;
  for (const std::int64_t rank : metadata_ranks(directory)) {
    const std::string name = fmt::format("__{}{}", rank, kRankMetadataSuffix);
    ranks.push_back(parse_metadata(read_whole(directory, name), name, list_globals));
  }
  if (ranks.empty()) {
    fail(Code::kCorrupt, "incomplete: no .metadata (interrupted save)",
         "the data files alone do not say what they hold; use an earlier checkpoint");
  }
  return merge_rank_local(std::move(ranks));
}

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  // What contradicts itself, and names no other file, is .metadata.
  return in_file(kMetadataFile, [&] {
    return Builder(place, options, read_metadata(place, options.list_globals)).build();
  });
}

}  // namespace tessera::dcp

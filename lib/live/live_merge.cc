#include "lib/live/live_merge.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/layout/coverage.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lib/live/live_entry.h"

namespace tessera {

namespace {

/// A chunk that some ranks hold. There are as many as ranks have pieces of tensors: most have one
/// holder.
struct HeldChunk {
  struct Holder {
    int rank = 0;
    std::uint32_t piece = 0;
  };
  std::size_t chunk = 0;       // in Merger::pieces_
  Holder first;                // and then the one that was elected
  std::vector<Holder> others;  // ascending ranks
};

/// An entry of the merged state and who has it.
struct MergedEntry {
  LiveEntry first;  // as its first rank sent it
  int first_rank = 0;
  int last_rank = 0;                // so far
  int ranks = 0;                    // how many have it
  std::uint32_t mine = UINT32_MAX;  // in this rank's dict
  std::uint32_t place = 0;          // of this rank's first piece, in its structure
  bool replicated = true;           // every rank that holds it says so
  std::vector<HeldChunk> held;
  std::vector<std::pair<int, Bytes>> own_values;  // kPerRank: rank, pickle
};

bool chunk_before(const ChunkView& a, const ChunkView& b) {
  const auto compare = [](std::span<const std::int64_t> x, std::span<const std::int64_t> y) {
    return std::lexicographical_compare_three_way(x.begin(), x.end(), y.begin(), y.end());
  };
  if (const auto order = compare(a.origin, b.origin); order != 0) return order < 0;
  if (const auto order = compare(a.extents, b.extents); order != 0) return order < 0;
  return std::pair(a.flat_begin, a.flat_end) < std::pair(b.flat_begin, b.flat_end);
}

class Merger {
 public:
  Merger(std::span<const LiveDescription> all, int rank, const LiveState& mine)
      : all_(all), rank_(rank), mine_(mine), load_(all.size(), 0) {}

  MergedState run() {
    for (std::size_t r = 0; r < all_.size(); ++r) collect(static_cast<int>(r));
    index_.clear();  // its names are going to move
    check_agreements();
    for (MergedEntry& entry : entries_) in_tensor(entry.first.name, [&] { check(entry); });
    for (MergedEntry& entry : entries_) in_tensor(entry.first.name, [&] { elect(entry); });
    elect_shared();
    reserve();
    for (MergedEntry& entry : entries_) {
      in_tensor(entry.first.name, [&] { emit(entry); });
      entry = {};  // all of them together are larger than what is kept
    }
    check_unique();
    check_places();
    merged_.manifest.format = "live";
    merged_.manifest.world_size = static_cast<std::int64_t>(all_.size());
    merged_.manifest.world_size_source = "the ranks that save";
    return std::move(merged_);
  }

 private:
  void collect(int rank) {
    std::uint32_t next = 0;
    read_description(all_[static_cast<std::size_t>(rank)],
                     [&](LiveEntry&& entry) { collect(rank, next++, std::move(entry)); });
  }

  /// `number`: of the entry, in the rank's dict.
  void collect(int rank, std::uint32_t number, LiveEntry&& entry) {
    const auto found = index_.find(entry.name);
    MergedEntry& merged = found != index_.end() ? entries_[found->second] : entries_.emplace_back();
    if (found != index_.end()) in_tensor(entry.name, [&] { agree(merged, entry, rank); });
    merged.last_rank = rank;
    ++merged.ranks;
    if (rank == rank_) {
      merged.mine = number;
      merged.place = places_;
      places_ += static_cast<std::uint32_t>(entry.chunks.size());
    }
    for (std::uint32_t p = 0; p < entry.chunks.size(); ++p) {
      if (entry.chunks[p].numel() == 0) continue;
      merged.replicated = merged.replicated && entry.replicated;
      merged.held.push_back({pieces_.size(), {rank, p}, {}});
      pieces_.push_back(entry.chunks[p]);
    }
    if (entry.kind == LiveEntry::Kind::kPerRank)
      merged.own_values.emplace_back(rank, std::move(entry.pickle));
    if (found != index_.end()) return;
    merged.first_rank = rank;
    merged.first = std::move(entry);
    merged.first.chunks = {};
    index_.emplace(merged.first.name, entries_.size() - 1);
  }

  ChunkView chunk_of(const HeldChunk& held) const { return pieces_[held.chunk]; }

  void check_agreements() const {
    std::unordered_map<std::string, std::pair<std::string, std::size_t>>
        first_values;  // value, rank
    for (std::size_t r = 0; r < all_.size(); ++r)
      for (const Agreement& each : read_agreements(all_[r])) {
        const auto& [value, rank] =
            first_values.try_emplace(each.name, each.value, r).first->second;
        if (value == each.value) continue;
        in_tensor(each.name, [&] {
          fail(Code::kInvalidArgument,
               fmt::format("ranks disagree: expected {} as on rank {}, found {} on rank {}", value,
                           rank, each.value, r),
               each.hint);
        });
      }
  }

  /// What ranks must agree on. The first rank's word is what is expected.
  static void agree(const MergedEntry& merged, const LiveEntry& entry, int rank) {
    const LiveEntry& first = merged.first;
    const auto differ = [&](std::string_view what, const std::string& expected,
                            const std::string& found) {
      fail(Code::kInvalidArgument,
           fmt::format("ranks disagree on its {}: expected {} as on rank {}, found {} on rank {}",
                       what, expected, merged.first_rank, found, rank));
    };
    if (merged.last_rank == rank)
      fail(Code::kCorrupt, fmt::format("a message of rank {} has it twice", rank));
    if (entry.kind != first.kind) differ("kind", kind_text(first.kind), kind_text(entry.kind));
    if (entry.path != first.path)
      differ("place", fmt::format("{} levels", first.path.size()),
             fmt::format("{} levels", entry.path.size()));
    if (entry.spec != first.spec)
      differ("type and shape", first.spec.to_string(), entry.spec.to_string());
    if (entry.digest != first.digest) differ("value", first.text, entry.text);
  }

  static std::string kind_text(LiveEntry::Kind kind) {
    switch (kind) {
      case LiveEntry::Kind::kTensor:
        return "a tensor";
      case LiveEntry::Kind::kShared:
        return "a value";
      default:
        return "a value of each rank";
    }
  }

  void check(MergedEntry& entry) const {
    if (entry.first.kind == LiveEntry::Kind::kShared &&
        entry.ranks != static_cast<int>(all_.size())) {
      fail(Code::kInvalidArgument,
           fmt::format("{} of {} ranks have this value, rank {} does; shared values stand on all",
                       entry.ranks, all_.size(), entry.first_rank),
           "give it to every rank, or make it one of each rank (ValueScope::kPerRank)");
    }
    if (entry.first.kind != LiveEntry::Kind::kTensor) return;
    join_equal(entry);
    PackedChunks chunks;
    for (const HeldChunk& held : entry.held) chunks.push_back(chunk_of(held));
    const Shape& shape = entry.first.spec.shape;
    const bool whole =
        chunks.size() == 1 && chunks[0] == ChunkView(Chunk::whole_of(Box::whole(shape)));
    if (whole || (shape.numel() == 0 && chunks.empty())) return;
    const CoverageReport report = check_coverage(shape, chunks);
    if (!report.complete) refuse(entry, report);
  }

  /// Equal pieces of several ranks become one with several holders.
  void join_equal(MergedEntry& entry) const {
    std::ranges::stable_sort(entry.held, [&](const HeldChunk& a, const HeldChunk& b) {
      return chunk_before(chunk_of(a), chunk_of(b));
    });
    std::vector<HeldChunk> joined;
    for (HeldChunk& held : entry.held) {
      if (!joined.empty() && chunk_of(joined.back()) == chunk_of(held)) {
        HeldChunk& equal = joined.back();
        if (!entry.replicated)
          fail(Code::kInvalidArgument,
               fmt::format("ranks {} and {} both hold {}, and it is not replicated",
                           equal.others.empty() ? equal.first.rank : equal.others.back().rank,
                           held.first.rank, chunk_of(held).to_string()),
               "mark the tensor as replicated where ranks hold equal copies");
        equal.others.push_back(held.first);
        continue;
      }
      joined.push_back(std::move(held));
    }
    entry.held = std::move(joined);
  }

  [[noreturn]] void refuse(const MergedEntry& entry, const CoverageReport& report) const {
    const std::string spec = entry.first.spec.to_string();
    if (report.first_overlap) {
      const HeldChunk& a = entry.held[report.first_overlap->first];
      const HeldChunk& b = entry.held[report.first_overlap->second];
      fail(Code::kInvalidArgument,
           fmt::format("{} of rank {} and {} of rank {} overlap without being equal ({})",
                       chunk_of(a).to_string(), a.first.rank, chunk_of(b).to_string(), b.first.rank,
                       spec));
    }
    std::int64_t held = 0;
    for (const HeldChunk& each : entry.held) held += chunk_of(each).numel();
    fail(Code::kInvalidArgument,
         fmt::format("the pieces of {} ranks do not make up {}: expected {} elements, found {}; {}",
                     all_.size(), spec, entry.first.spec.shape.numel(), held, report.to_string()));
  }

  /// Pieces of one rank count first; each replicated one then goes to the holder with the fewest
  /// bytes so far.
  void elect(MergedEntry& entry) {
    for (HeldChunk& held : entry.held) {
      if (held.others.empty() || entry.first.of_first_rank)
        load_[static_cast<std::size_t>(held.first.rank)] += bytes_of(entry, held);
      else
        shared_.push_back({&entry, &held});
    }
  }

  std::uint64_t bytes_of(const MergedEntry& entry, const HeldChunk& held) const {
    return byte_size(chunk_of(held).numel(), entry.first.spec.dtype);
  }

  void elect_shared() {
    for (auto& [entry, held] : shared_) {
      for (const HeldChunk::Holder& other : held->others)
        if (load(other.rank) < load(held->first.rank)) held->first = other;
      load_[static_cast<std::size_t>(held->first.rank)] += bytes_of(*entry, *held);
    }
    shared_.clear();
  }
  std::uint64_t load(int rank) const { return load_[static_cast<std::size_t>(rank)]; }

  /// Room for what is known to come, as all of it is kept.
  void reserve() {
    std::size_t tensors = 0, values = 0, chunks = 0, numbers = 0, empty = 0;
    for (const MergedEntry& entry : entries_) {
      const bool is_tensor = entry.first.kind == LiveEntry::Kind::kTensor;
      tensors += is_tensor ? 1 : 0;
      values += is_tensor ? 0 : std::max<std::size_t>(1, entry.own_values.size());
      empty += is_tensor && entry.held.empty() ? 1 : 0;
      chunks += entry.held.size();
      for (const HeldChunk& held : entry.held)
        numbers += 2 * static_cast<std::size_t>(chunk_of(held).rank()) +
                   (chunk_of(held).is_whole_box() ? 0 : 2);
    }
    merged_.manifest.tensors.reserve(tensors);
    merged_.manifest.chunks.reserve(chunks, numbers);
    merged_.manifest.state.entries.reserve(tensors + values);
    merged_.parts.parts.reserve(chunks + empty + values);  // and more boxes of ranges
    merged_.parts.boxes.reserve(chunks + empty + values, numbers);
  }

  void emit(MergedEntry& entry) {
    if (entry.first.kind == LiveEntry::Kind::kTensor) return emit_tensor(entry);
    if (entry.first.kind == LiveEntry::Kind::kShared) {
      merged_.values.push_back({entry.mine, next_entry()});
      add_value(std::move(entry.first.name), std::move(entry.first.path),
                mine_.dict().entries[entry.mine].value, 0);
      return;
    }
    for (const auto& [rank, pickle] : entry.own_values) {
      const PickleGraph graph = read_pickle(pickle);
      const Value value = decode_pickle(
          graph, graph.root(), [](const PickleGraph&, PickleGraph::Node) { return std::nullopt; });
      if (rank == rank_) merged_.values.push_back({entry.mine, next_entry()});
      add_value(rank_value_name(entry.first.name, rank),
                below(entry.first.path, fmt::format("rank_{}", rank)),
                rank == rank_ ? mine_.dict().entries[entry.mine].value : value, rank);
    }
  }

  std::uint32_t next_entry() const {
    return static_cast<std::uint32_t>(merged_.manifest.state.entries.size());
  }

  void add_value(std::string name, Path path, Value value, int rank) {
    merged_.parts.add(next_entry(), rank);
    merged_.manifest.state.entries.push_back({std::move(name), std::move(path), std::move(value)});
  }

  void emit_tensor(MergedEntry& entry) {
    Manifest& manifest = merged_.manifest;
    StoredTensor tensor;
    tensor.name = entry.first.name;  // a copy: errors name it
    tensor.spec = entry.first.spec;
    tensor.first_chunk = manifest.chunks.size();
    tensor.is_parameter = entry.first.is_parameter;
    std::size_t boxes = 0;
    for (const HeldChunk& held : entry.held) {
      const HeldChunk::Holder& holder = held.first;
      const ChunkView chunk = chunk_of(held);
      if (holder.rank == rank_) own(entry, holder.piece);
      Source source;
      source.kind = Source::Kind::kMemory;
      source.length = bytes_of(entry, held);
      manifest.chunks.add(chunk, source);
      ++tensor.chunk_count;
      for (const ChunkPiece& piece : decompose(chunk.chunk())) {
        merged_.parts.add(next_entry(), holder.rank, piece.box);
        ++boxes;
      }
    }
    if (boxes == 0)  // no elements: its shape is stored
      merged_.parts.add(next_entry(), entry.first_rank, Box::whole(tensor.spec.shape));
    if (boxes > 1) merged_.sharded.push_back(tensor.name);
    manifest.state.entries.push_back(
        {tensor.name, std::move(entry.first.path),
         Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()))});
    manifest.tensors.push_back(std::move(tensor));
  }

  /// The next chunk is stored by this rank, which holds it as that piece.
  void own(const MergedEntry& entry, std::uint32_t piece) {
    const OwnPiece made{merged_.manifest.chunks.size(), entry.mine, piece, entry.place + piece};
    merged_.own.push_back(made);
    const std::uint32_t tensor = mine_.dict().entries[entry.mine].value.tensor_index();
    if (!mine_.tensors()[tensor].pieces[piece].strides.empty()) merged_.strided.push_back(made);
  }

  /// A rank's own value "a" and another one named "a.rank_0".
  void check_unique() const {
    std::vector<std::string_view> names;
    for (const StateEntry& entry : merged_.manifest.state.entries) names.push_back(entry.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end())
      fail(Code::kInvalidArgument,
           fmt::format("two entries would be stored as \"{}\"", printable(*twice)),
           "values of each rank are stored as <name>.rank_<r>");
  }

  /// No load could put back a value where others need a container, nor a list that is a dict too.
  void check_places() const {
    const auto in_order = [](const StateEntry* a, const StateEntry* b) {
      return std::ranges::lexicographical_compare(
          a->path, b->path, [](const PathItem& x, const PathItem& y) {
            return std::tie(x.kind, x.index, x.key) < std::tie(y.kind, y.index, y.key);
          });
    };
    std::vector<const StateEntry*> entries;
    for (const StateEntry& entry : merged_.manifest.state.entries) entries.push_back(&entry);
    std::ranges::sort(entries, in_order);
    for (std::size_t e = 1; e < entries.size(); ++e) {
      const Path &a = entries[e - 1]->path, &b = entries[e]->path;
      const auto [of_a, of_b] = std::ranges::mismatch(a, b);
      const bool stands_in_the_way = of_a == a.end();
      const auto is_index = [](const PathItem& item) {
        return item.kind == PathItem::Kind::kIndex;
      };
      if (!stands_in_the_way && is_index(*of_a) == is_index(*of_b)) continue;
      const std::string first = printable(entries[e - 1]->name),
                        second = printable(entries[e]->name);
      fail(Code::kInvalidArgument,
           stands_in_the_way
               ? fmt::format("\"{}\" stands where \"{}\" has its place", first, second)
               : fmt::format("\"{}\" is of a list, and \"{}\" of a dict at the same place", first,
                             second),
           "no load could restore both: give one of them another path");
    }
  }

  std::span<const LiveDescription> all_;
  int rank_;
  const LiveState& mine_;
  std::deque<MergedEntry> entries_;
  PackedChunks pieces_;
  std::uint32_t places_ = 0;                                 // this rank's pieces so far
  std::unordered_map<std::string_view, std::size_t> index_;  // in entries_, by their names
  std::vector<std::uint64_t> load_;                          // bytes, by rank
  std::vector<std::pair<MergedEntry*, HeldChunk*>> shared_;
  MergedState merged_;
};

}  // namespace

std::string rank_value_name(const std::string& name, int rank) {
  return fmt::format("{}.rank_{}", name, rank);
}

MergedState merge_states(std::span<const LiveDescription> all, int rank, const LiveState& mine) {
  MergedState merged = Merger(all, rank, mine).run();
  merged.manifest.state.containers = mine.dict().containers;
  return merged;
}

void bind_sources(MergedState& merged, const LiveState& state, std::span<void* const> memory) {
  for (const OwnPiece& own : merged.own)
    merged.manifest.chunks.source(own.chunk).offset =
        reinterpret_cast<std::uint64_t>(memory[own.place]);
  merged.manifest.strides.clear();
  for (const OwnPiece& own : merged.strided) {
    const LiveTensor& tensor =
        state.tensors()[state.dict().entries[own.entry].value.tensor_index()];
    const LivePiece& piece = tensor.pieces[own.piece];
    std::int64_t reach = 1;
    for (int d = 0; d < piece.chunk.box.rank(); ++d)
      reach += (piece.chunk.box.shape[d] - 1) * piece.strides[static_cast<std::size_t>(d)];
    merged.manifest.strides.push_back(piece.strides);
    Source& source = merged.manifest.chunks.source(own.chunk);
    source.side = static_cast<std::uint32_t>(merged.manifest.strides.size());
    source.length = byte_size(reach, tensor.spec.dtype);
  }
}

}  // namespace tessera

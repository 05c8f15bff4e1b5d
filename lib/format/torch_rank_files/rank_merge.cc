#include "lib/format/torch_rank_files/rank_merge.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lib/state/tensor_wrapper.h"
#include "lib/state/wrapper_rows.h"

namespace tessera::rank_files {
namespace {

using Answer = ArchiveBytes::Answer;

TensorRef ref_of(const RankLeaf& leaf) { return {leaf.file, leaf.value.tensor_index()}; }

}  // namespace

void RankMerger::add(const RankEntry& entry, const Path& path) {
  in_tensor(entry.name, [&] {
    const bool sharded = std::ranges::any_of(
        entry.leaves, [](const RankLeaf& leaf) { return leaf.sharded != nullptr; });
    if (sharded) return add_sharded(entry, path);
    if (add_packed(entry, path)) return;
    if (!all_equal(entry)) return add_per_rank(entry, path);
    if (entry.leaves.front().value.is_tensor()) return add_tensor(entry, path);
    builder_.add_value(entry.leaves.front().file, path, entry.leaves.front().value);
  });
}

void RankMerger::add_sharded(const RankEntry& entry, const Path& path) {
  std::vector<ArchivePiece> pieces, empty;
  const ShardedValue* first = nullptr;
  bool split = false, parameter = false, grad = false;
  for (const RankLeaf& leaf : entry.leaves) {
    if (!leaf.sharded)
      fail(Code::kCorrupt, fmt::format("sharded on some ranks, not on rank {}", leaf.rank));
    if (!first) first = leaf.sharded;
    if (leaf.sharded->spec != first->spec)
      fail(Code::kCorrupt,
           fmt::format("it is {} on rank {} and {} on rank {}", first->spec.to_string(),
                       entry.leaves.front().rank, leaf.sharded->spec.to_string(), leaf.rank));
    split = split || leaf.sharded->is_split();
    parameter = parameter || leaf.sharded->is_parameter;
    grad = grad || leaf.sharded->requires_grad;
    for (const LocalPiece& piece : leaf.sharded->pieces)
      (piece.chunk.numel() > 0 ? pieces : empty)
          .push_back({piece.chunk, leaf.file, piece.tensor, piece.first_element});
  }
  if (pieces.empty() && !empty.empty()) pieces.push_back(empty.front());
  const std::uint32_t number = builder_.add_tensor(path, first->spec, pieces);
  StoredTensor& tensor = builder_.tensor(number);
  tensor.always_sharded = split && first->spec.shape.rank() > 0;
  tensor.is_parameter = parameter;
  tensor.requires_grad = grad;
}

/// Rows of a tensor that is made of several, from every rank: one object. Ranks of a replicated
/// dim of the mesh hold copies.
bool RankMerger::add_packed(const RankEntry& entry, const Path& path) {
  if (wrapper_class(entry.leaves.front().value).empty()) return false;
  std::vector<WrapperShard> shards;
  std::vector<const RankLeaf*> owners;
  std::optional<TensorSpec> spec;
  std::map<std::int64_t, std::pair<PackedRows, const RankLeaf*>> by_row;
  for (const RankLeaf& leaf : entry.leaves) {
    const TorchArchive& archive = builder_.archive(leaf.file);
    const auto packed = parse_packed(leaf.value, archive, leaf.rank);
    if (!packed || (spec && *spec != packed->spec)) return false;
    spec = packed->spec;
    const auto [known, fresh] = by_row.try_emplace(packed->rows.begin, *packed, &leaf);
    if (!fresh && bytes_.same(known->second.second->file, known->second.first.local, leaf.file,
                              packed->local) != Answer::kEqual)
      return false;
  }
  for (const auto& [row, owned] : by_row) {
    const TorchArchive& archive = builder_.archive(owned.second->file);
    const auto spec_of = [&archive](std::uint32_t tensor) {
      return TensorSpec{archive.tensors[tensor].dtype, archive.tensors[tensor].shape};
    };
    shards.push_back({owned.first.rows, owned.first.local, spec_of});
    owners.push_back(owned.second);
  }
  const auto same = [&](std::size_t shard, std::uint32_t tensor, std::uint32_t first) {
    return bytes_.same({owners[shard]->file, tensor}, {owners[0]->file, first}) == Answer::kEqual;
  };
  auto joined = join_rows(shards, *spec, same);
  if (!joined) return false;
  std::vector<std::uint32_t> numbers;
  for (const JoinedWrapper::Part& part : joined->parts) {
    std::vector<ArchivePiece> pieces;
    for (const JoinedWrapper::Piece& piece : part.pieces) {
      Box box = Box::whole(shards[piece.shard].spec_of(piece.tensor).shape);
      box.origin[0] = piece.first_row;
      pieces.push_back(
          {Chunk::whole_of(std::move(box)), owners[piece.shard]->file, piece.tensor, 0});
    }
    numbers.push_back(builder_.add_tensor(path, part.spec, pieces));
    builder_.tensor(numbers.back()).embedded = true;
    builder_.manifest().state.entries.pop_back();  // the object is the entry
  }
  builder_.manifest().state.entries.push_back(
      {dotted(path), path, remap_tensors(joined->value, numbers)});
  return true;
}

void RankMerger::add_tensor(const RankEntry& entry, const Path& path) {
  const TensorRef first = ref_of(entry.leaves.front());
  const ArchiveTensor& stored = bytes_.tensor(first);
  const Chunk whole = Chunk::whole_of(Box::whole(stored.shape));
  const bool plain = stored.layout == ArchiveTensor::Layout::kStrided && stored.quant < 0;
  std::vector<ArchivePiece> pieces;
  for (const RankLeaf& leaf : entry.leaves) {
    pieces.push_back({whole, leaf.file, leaf.value.tensor_index(), 0});
    if (!plain) break;  // sparse and quantized ones: one copy
  }
  const std::uint32_t number =
      builder_.add_tensor(path, TensorSpec{stored.dtype, stored.shape}, pieces);
  builder_.tensor(number).is_parameter = stored.is_parameter;
  builder_.tensor(number).requires_grad = stored.requires_grad;
}

bool RankMerger::all_equal(const RankEntry& entry) {
  const RankLeaf& first = entry.leaves.front();
  return std::ranges::all_of(entry.leaves, [&](const RankLeaf& leaf) {
    if (&leaf == &first) return true;
    if (leaf.value.is_tensor() != first.value.is_tensor()) return false;
    // Large ones without checksums of their own count as copies: verify compares those.
    const Answer answer = leaf.value.is_tensor()
                              ? bytes_.same(ref_of(first), ref_of(leaf))
                              : bytes_.same(first.file, first.value, leaf.file, leaf.value);
    return answer != Answer::kDifferent;
  });
}

void RankMerger::note_rank_local(std::vector<Note>& notes) const {
  if (rank_local_ == 0) return;
  notes.push_back({Finding::kRankEntries, Severity::kInfo,
                   fmt::format("{} entr{} differ from rank to rank; each rank's own is listed",
                               rank_local_, rank_local_ == 1 ? "y" : "ies"),
                   "", ""});
}

void RankMerger::add_per_rank(const RankEntry& entry, const Path& path) {
  ++rank_local_;
  for (const RankLeaf& leaf : entry.leaves) {
    Path own = path;
    own.push_back(key_item(fmt::format("rank_{}", leaf.rank)));
    RankEntry alone{own, dotted(own), {leaf}};
    if (leaf.value.is_tensor())
      add_tensor(alone, own);
    else
      builder_.add_value(leaf.file, own, leaf.value);
    builder_.manifest().state.entries.back().rank = leaf.rank;
  }
}

void add_containers(ArchiveManifestBuilder& builder, std::vector<RankContainer>& containers,
                    const std::map<std::string, std::size_t>& first_entry) {
  StateDict& state = builder.manifest().state;
  std::set<std::string> used;  // every proper prefix of an entry's name
  for (const StateEntry& entry : state.entries)
    for (std::size_t dot = entry.name.find('.'); dot != entry.name.npos;
         dot = entry.name.find('.', dot + 1))
      used.insert(entry.name.substr(0, dot));
  for (RankContainer& container : containers) {
    ContainerNote note = std::move(container.note);
    // Empty on one rank, not on another.
    if (note.kind == Value::Kind::kDict && note.attributes.is_none() &&
        (note.path.empty() ? !state.entries.empty() : used.contains(dotted(note.path))))
      continue;
    note.attributes = builder.adopt(container.file, note.attributes, dotted(note.path));
    const auto before = first_entry.find(container.before);
    note.entries_before = container.before.empty() || before == first_entry.end()
                              ? state.entries.size()
                              : before->second;
    state.containers.push_back(std::move(note));
  }
}

}  // namespace tessera::rank_files

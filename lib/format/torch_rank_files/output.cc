#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>
#include <tessera/state/sharding_rule.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/format/dtype_refusal.h"
#include "lib/format/torch_dcp/save_plan.h"
#include "lib/format/torch_files/archive_draft.h"
#include "lib/format/torch_rank_files/local_output.h"
#include "lib/format/torch_rank_files/parts.h"
#include "lib/format/torch_rank_files/rank_folder.h"
#include "lib/format/torch_rank_files/rank_output.h"
#include "lib/format/torch_rank_files/sharded_pickle.h"
#include "lib/format/value_policy.h"
#include "lib/state/tensor_wrapper.h"
#include "lib/state/wrapper_rows.h"

namespace tessera::rank_files {
namespace {

/// A file per rank and part: "{R}" and "{W}" in its name.
struct PartTemplate {
  std::string key;
  std::string name;
};

/// Where an entry stands: in which part, and at which path of its file.
struct PartPlace {
  std::size_t part = kNone;
  Path path;
  static constexpr std::size_t kNone = ~std::size_t{0};
};

Mesh target_mesh(const TargetRequest& request) {
  const std::int64_t size =
      request.mesh ? request.mesh->world_size() : request.world_size.value_or(1);
  if (size < 1 || size > kMaxRank)
    fail(Code::kInvalidArgument, fmt::format("world size {} is not in 1 .. {}", size, kMaxRank));
  if (request.world_size && *request.world_size != size)
    fail(Code::kInvalidArgument, fmt::format("mesh {} has {} ranks, the world size is {}",
                                             request.mesh->to_string(), size, *request.world_size));
  return request.mesh ? *request.mesh : Mesh::one_dim(size);
}

std::string filled(std::string name, std::int64_t rank, std::int64_t world_size) {
  const auto fill = [&](std::string_view field, std::int64_t value) {
    if (const std::size_t at = name.find(field); at != name.npos)
      name.replace(at, field.size(), std::to_string(value));
  };
  fill("{R}", rank);
  fill("{W}", world_size);
  return name;
}

class PlanMaker {
 public:
  /// `items`: nullptr for torch-rank-files.
  PlanMaker(const Manifest& source, const TargetRequest& request, const ItemForm* items)
      : source_(source),
        request_(request),
        items_(items),
        format_(items ? items->format : "torch-rank-files"),
        mesh_(target_mesh(request)),
        world_size_(mesh_.world_size()),
        builder_(source),
        policy_(request, {.opaque = true, .bytes_io = false}, format_, builder_.notes(),
                builder_.left_out()),
        sharded_(sharded_tensors(source, request.replicate)) {}

  OutputPlan run() {
    choose_entries();
    items_ ? choose_items() : choose_parts();
    find_own_entries();
    refuse_packed();
    std::unique_ptr<LocalOutput> local;
    if (!items_) local = LocalOutput::make(source_, request_, mesh_, kept_, builder_.notes());
    for (std::int64_t rank = 0; rank < world_size_; ++rank)
      for (std::size_t part = 0; part < parts_.size(); ++part) add_file(part, rank, local.get());
    if (local) builder_.add_literal(std::string(kFlatRecordFile), local->record_text());
    if (items_) items_->finish(mesh_, tensors_, builder_);
    return builder_.finish(std::string(format_));
  }

 private:
  void choose_entries() {
    for (const StateEntry& entry : source_.state.entries) {
      kept_.push_back(entry.value.is_tensor() || policy_.keeps(entry));
      // A part of a tensor is one that the draft makes, so that it cannot say whose type it is.
      if (entry.value.is_tensor())
        if (const StoredTensor& tensor = source_.tensors[entry.value.tensor_index()];
            is_sub_byte(tensor.spec.dtype))
          refuse_dtype(tensor, format_);
    }
    // Files that hold anything else are no rank files to any reader.
    for (std::size_t e = 0; e < kept_.size(); ++e)
      if (const Path& path = source_.state.entries[e].path;
          kept_[e] && (path.empty() || path.front().kind == PathItem::Kind::kIndex))
        fail(Code::kUnsupported,
             fmt::format("{} holds a dict, and this state is no dict at its top", format_),
             "write torch-save or torch-dcp");
    for (const ContainerNote& note : source_.state.containers)
      keeps_attributes_.push_back(policy_.keeps_attributes(note));
  }

  /// The source's own names when everything has a place in them; else one file per rank.
  void choose_parts() {
    std::vector<PartTemplate> stored;
    if (const auto found = source_.provenance.find(std::string(kParts));
        found != source_.provenance.end())
      for (const std::string_view line : split(found->second, '\n'))
        if (const std::size_t at = line.find('='); at != line.npos)
          stored.push_back({std::string(line.substr(0, at)), std::string(line.substr(at + 1))});
    choose_stored(stored);
    for (const StateEntry& entry : source_.state.entries) places_.push_back(place_of(entry.path));
    for (const ContainerNote& note : source_.state.containers)
      container_places_.push_back(place_of(note.path));
  }
  void choose_stored(const std::vector<PartTemplate>& stored) {
    if (stored.size() == 1 && stored[0].key.empty()) {
      parts_ = stored;
      return;
    }
    std::set<std::string> used;
    for (std::size_t e = 0; e < kept_.size(); ++e) {
      const Path& path = source_.state.entries[e].path;
      if (kept_[e]) used.insert(path.empty() ? "" : path[0].key);
    }
    for (const PartTemplate& part : stored)
      if (used.erase(part.key) > 0) parts_.push_back(part);
    if (!used.empty() || parts_.size() < 2) parts_ = {{"", "rank{R}.pt"}};
  }
  PartPlace place_of(const Path& path) const {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const bool whole = parts_[p].key.empty();
      if (whole || (!path.empty() && path[0].key == parts_[p].key))
        return {p, Path(path.begin() + (whole ? 0 : 1), path.end())};
    }
    return {};
  }

  /// A part for each item, in the order of the source. What is at the very top belongs to none.
  void choose_items() {
    std::map<std::string, std::size_t> known;
    const auto place = [&](const Path& path) {
      auto [item, below] = items_->split(path);
      const auto [found, is_new] = known.emplace(item, parts_.size());
      if (is_new) parts_.push_back({std::move(item), ""});
      return PartPlace{found->second, std::move(below)};
    };
    for (std::size_t e = 0; e < kept_.size(); ++e)
      places_.push_back(kept_[e] ? place(source_.state.entries[e].path) : PartPlace{});
    for (const ContainerNote& note : source_.state.containers)
      container_places_.push_back(note.path.empty() ? PartPlace{} : place(note.path));
  }

  /// "rng.rank_0" .. "rng.rank_<W-1>", where the reader found each rank's own "rng".
  void find_own_entries() {
    const bool from_rank_files = source_.provenance.contains(std::string(kFlavour));
    std::map<std::string, std::map<std::int64_t, std::size_t>> groups;
    for (std::size_t e = 0; e < kept_.size(); ++e) {
      const StateEntry& entry = source_.state.entries[e];
      const Path& path = entry.path;
      const bool own = entry.rank || from_rank_files;
      if (!kept_[e] || !own || path.size() < 2 || !path.back().key.starts_with("rank_")) continue;
      const std::string digits = path.back().key.substr(5);
      if (!is_decimal(digits) || digits.size() > 7) continue;
      groups[dotted(Path(path.begin(), path.end() - 1))].emplace(std::stoll(digits), e);
    }
    for (const auto& [name, members] : groups) {
      const bool all = static_cast<std::int64_t>(members.size()) == world_size_ &&
                       members.rbegin()->first == world_size_ - 1 && world_size_ > 1;
      for (const auto& [rank, e] : members)
        if (all) own_.emplace(e, rank);
    }
  }

  /// Codes and scales in blocks of a whole tensor: no rank's part can be made of them, and the whole
  /// beside parts of the weight is what no optimizer reads.
  void refuse_packed() const {
    for (std::size_t e = 0; e < kept_.size() && world_size_ > 1; ++e) {
      const StateEntry& entry = source_.state.entries[e];
      const std::string wrapper = wrapper_class(entry.value);
      if (!kept_[e] || wrapper.empty() || own_.contains(e) || is_replicated(entry) ||
          rows_of(entry))
        continue;
      const auto placements = dcp::placements_of(mesh_, request_, entry.name);
      if (std::ranges::all_of(
              placements, [](const Placement& p) { return p.kind == Placement::Kind::kReplicate; }))
        continue;
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is an object of class {}, of which no part can be made",
                       printable(entry.name), printable(wrapper)),
           "--to torch-dcp keeps it whole; --exclude leaves it out");
    }
  }

  void add_file(std::size_t part, std::int64_t rank, LocalOutput* local) {
    ArchiveDraft archive(source_, {.format = format_, .quantized = true});
    mesh_value_ = Value();
    StateDict state;
    std::vector<std::size_t> kept_before;
    const auto depth = static_cast<std::ptrdiff_t>(parts_[part].key.empty() ? 0 : 1);
    for (std::size_t e = 0; e < kept_.size(); ++e) {
      kept_before.push_back(state.entries.size());
      if (!kept_[e] || places_[e].part != part) continue;
      const StateEntry& entry = source_.state.entries[e];
      Path path = places_[e].path;
      if (const auto own = own_.find(e); own != own_.end()) {
        if (own->second != rank) continue;
        path.pop_back();
      }
      in_tensor(entry.name, [&] {
        if (local && local->add(e, rank, depth, archive, state)) return;
        std::string name = dotted(path);
        if (items_ && rank == 0) list_tensors(part, path, entry);
        state.entries.push_back({std::move(name), path, value_of(entry, rank, archive)});
      });
    }
    for (std::size_t c = 0; c < source_.state.containers.size(); ++c) {
      if (container_places_[c].part != part) continue;
      ContainerNote note = source_.state.containers[c];
      note.path = container_places_[c].path;
      note.attributes = keeps_attributes_[c] ? archive.take(note.attributes) : Value();
      if (note.entries_before < kept_before.size())
        note.entries_before = kept_before[note.entries_before];
      state.containers.push_back(std::move(note));
    }
    const std::string name = items_ ? items_->file_name(parts_[part].key, rank)
                                    : filled(parts_[part].name, rank, world_size_);
    const std::string prefix(items_ ? items_->archive
                                    : std::string_view(name).substr(0, name.rfind('.')));
    builder_.add(archive.finish(name, unflatten(state), prefix));
  }

  void list_tensors(std::size_t part, const Path& path, const StateEntry& entry) {
    if (!entry.value.is_tensor()) return list_inside(part, path, entry.value);
    const std::uint32_t index = entry.value.tensor_index();
    ItemTensor made{parts_[part].key, path, source_.tensors[index].spec, {}};
    if (is_dtensor(index)) made.placements = dcp::placements_of(mesh_, request_, entry.name);
    tensors_.push_back(std::move(made));
  }
  /// Tensors of a tuple, and of tuples inside.
  void list_inside(std::size_t part, const Path& path, const Value& value) {
    if (value.is_tensor()) {
      tensors_.push_back({parts_[part].key, path, source_.tensors[value.tensor_index()].spec, {}});
    } else if (value.kind() == Value::Kind::kTuple) {
      budget_.spend(value.as_list().size());
      for (std::size_t i = 0; i < value.as_list().size(); ++i)
        list_inside(part, below(path, {index_item(static_cast<std::int64_t>(i))}),
                    value.as_list()[i]);
    }
  }
  bool is_dtensor(std::uint32_t tensor) const {
    return sharded_[tensor] && source_.tensors[tensor].quant < 0;
  }

  Value value_of(const StateEntry& entry, std::int64_t rank, ArchiveDraft& archive) {
    if (!entry.value.is_tensor()) {
      const auto wrapper = rows_of(entry);
      return wrapper ? dtensor(entry, *wrapper, rank, archive) : archive.take(entry.value);
    }
    const std::uint32_t index = entry.value.tensor_index();
    if (!is_dtensor(index)) return archive.whole(index);
    return dtensor(entry.name, index, rank, archive);
  }

  bool is_replicated(const StateEntry& entry) const {
    return std::ranges::any_of(
        request_.replicate, [&](const std::string& glob) { return glob_match(glob, entry.name); });
  }

  /// A tensor that is made of several and cut by rows. The metadata of items lists plain ones alone.
  std::optional<RowWrapper> rows_of(const StateEntry& entry) const {
    if (items_ != nullptr || is_replicated(entry)) return std::nullopt;
    return row_wrapper(entry.value,
                       [this](std::uint32_t index) { return source_.tensors[index].spec; });
  }

  /// The object of this rank's rows.
  Value dtensor(const StateEntry& entry, const RowWrapper& wrapper, std::int64_t rank,
                ArchiveDraft& archive) {
    const Shape& shape = wrapper.spec.shape;
    const Layout layout(mesh_, dcp::placements_of(mesh_, request_, entry.name));
    const std::vector<Chunk> chunks = layout.chunks_of(rank, shape);
    const bool is_run = chunks.size() == 1 && chunks[0].is_whole_box() &&
                        chunks[0].box.shape.inner_numel(0) == shape.inner_numel(0);
    const Box box = is_run ? chunks[0].box : Box::whole(shape);
    const RowRange rows{box.begin(0), box.begin(0) + box.shape[0]};
    if (!is_run || box.empty() || !wrapper.can_cut(rows))
      refuse_rows(entry.name, entry.value, is_run, rows);
    std::vector<std::uint32_t> numbers;
    for (const RowPart& part : wrapper.parts) {
      const RowRange own = *part.rows(shape, rows);
      Box of = Box::whole(part.spec.shape);
      of.origin[0] = own.begin;
      of.shape[0] = own.end - own.begin;
      StoragePiece piece;
      piece.tensor = part.tensor;
      const TensorSpec spec{part.spec.dtype, of.shape};
      piece.chunk = Chunk::whole_of(std::move(of));
      std::vector<StoragePiece> pieces;
      pieces.push_back(std::move(piece));
      if (numbers.size() <= part.tensor) numbers.resize(part.tensor + 1, kNoTensor);
      numbers[part.tensor] = archive.add(spec, std::move(pieces)).tensor_index();
    }
    return dtensor_value(wrapper.spec, layout, mesh_value(rank, archive),
                         with_rows(entry.value, box.shape[0], numbers));
  }

  Value dtensor(const std::string& name, std::uint32_t index, std::int64_t rank,
                ArchiveDraft& archive) {
    const TensorSpec& spec = source_.tensors[index].spec;
    const Layout layout(mesh_, dcp::placements_of(mesh_, request_, name));
    std::vector<StoragePiece> pieces;
    Shape local;
    for (Chunk& chunk : layout.chunks_of(rank, spec.shape)) {
      if (!chunk.is_whole_box()) fail(Code::kUnsupported, "a DTensor's part is a box, not a run");
      if (pieces.empty()) {
        local = chunk.box.shape;
      } else if (chunk.box.shape.inner_numel(0) == spec.shape.inner_numel(0)) {
        local[0] += chunk.box.shape[0];
      } else {
        fail(Code::kUnsupported, "an uneven strided placement of a dim that is not the first");
      }
      StoragePiece piece;
      piece.tensor = index;
      piece.chunk = std::move(chunk);
      pieces.push_back(std::move(piece));
    }
    Value part = archive.add({spec.dtype, local}, std::move(pieces));
    return dtensor_value(spec, layout, mesh_value(rank, archive), std::move(part));
  }
  const Value& mesh_value(std::int64_t rank, ArchiveDraft& archive) {
    if (mesh_value_.is_none()) {
      StoragePiece ranks;
      ranks.tensor = StoragePiece::kBytes;
      ranks.bytes.resize(static_cast<std::size_t>(world_size_) * 4);
      for (std::int64_t r = 0; r < world_size_; ++r)
        store_le<std::int32_t>(reinterpret_cast<std::byte*>(ranks.bytes.data()) + 4 * r,
                               static_cast<std::int32_t>(r));
      const std::uint32_t map =
          archive.add({DType::kInt32, Shape{world_size_}}, {std::move(ranks)}).tensor_index();
      mesh_value_ = device_mesh_value(mesh_, rank, map);
    }
    return mesh_value_;
  }

  const Manifest& source_;
  const TargetRequest& request_;
  const ItemForm* items_;
  std::string_view format_;
  Mesh mesh_;
  std::int64_t world_size_;
  ArchivePlanBuilder builder_;
  ValuePolicy policy_;
  std::vector<bool> sharded_;
  std::vector<bool> kept_;
  std::vector<bool> keeps_attributes_;
  std::vector<PartTemplate> parts_;
  std::vector<PartPlace> places_;            // by entry
  std::vector<PartPlace> container_places_;  // by container
  std::vector<ItemTensor> tensors_;
  ValueBudget budget_{kMaxWalkedValues};
  std::map<std::size_t, std::int64_t> own_;  // entry -> the one rank that gets it
  Value mesh_value_;                         // of the file that is being made
};

}  // namespace

OutputPlan plan_output(const Manifest& source, const TargetRequest& request) {
  return PlanMaker(source, request, nullptr).run();
}
OutputPlan plan_items(const Manifest& source, const TargetRequest& request, const ItemForm& form) {
  return PlanMaker(source, request, &form).run();
}

}  // namespace tessera::rank_files

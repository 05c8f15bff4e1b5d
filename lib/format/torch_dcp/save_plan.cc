#include "lib/format/torch_dcp/save_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/base/text.h>
#include <tessera/state/sharding_rule.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lib/state/wrapper_rows.h"

namespace tessera::dcp {
namespace {

constexpr std::int64_t kMaxWorldSize = 1 << 20;

Mesh target_mesh(const TargetRequest& request) {
  if (!request.mesh) {
    const std::int64_t size = request.world_size.value_or(1);
    if (size < 1 || size > kMaxWorldSize) {
      fail(Code::kInvalidArgument,
           fmt::format("world size {} is not in 1 .. {}", size, kMaxWorldSize));
    }
    return Mesh::one_dim(size);
  }
  const std::int64_t size = request.mesh->world_size();
  if (request.world_size && *request.world_size != size) {
    fail(Code::kInvalidArgument, fmt::format("mesh {} has {} ranks, the world size is {}",
                                             request.mesh->to_string(), size, *request.world_size));
  }
  if (size > kMaxWorldSize) {
    fail(Code::kInvalidArgument,
         fmt::format("mesh {} has more than {} ranks", request.mesh->to_string(), kMaxWorldSize));
  }
  return *request.mesh;
}

/// A part of the state before its rank is chosen.
struct Candidate {
  static constexpr std::uint32_t kEveryRank = 0xffffffff;
  static constexpr std::uint32_t kNone = 0xffffffff;

  PlannedItem item;
  std::uint32_t first_rank = 0;
  std::uint32_t holder = kEveryRank;  // the first one
  std::uint32_t more = kNone;         // the others: place in Planner::holders_
};

/// Positions of `values`, by value (each below `limit`), equal ones in their order.
template <class Key>
std::vector<std::uint32_t> by_number(std::size_t count, std::size_t limit, Key&& key) {
  std::vector<std::uint32_t> next(limit + 1, 0);
  for (std::size_t i = 0; i < count; ++i) ++next[key(i) + 1];
  for (std::size_t v = 0; v < limit; ++v) next[v + 1] += next[v];
  std::vector<std::uint32_t> order;
  reserve_large(order, count);
  order.resize(count);
  for (std::size_t i = 0; i < count; ++i) order[next[key(i)]++] = static_cast<std::uint32_t>(i);
  return order;
}

class Planner {
 public:
  Planner(const Manifest& source, const TargetRequest& request, const PlacementRule& rule)
      : source_(source),
        request_(request),
        rule_(rule),
        mesh_(target_mesh(request)),
        world_size_(mesh_.world_size()),
        sharded_(sharded_tensors(source, request.replicate)) {}

  SavePlan run(const std::vector<bool>& keep) {
    reserve_large(candidates_, expected_parts(keep));
    for (std::uint32_t e = 0; e < source_.state.entries.size(); ++e) {
      if (!keep[e]) continue;
      const StateEntry& entry = source_.state.entries[e];
      in_tensor(entry.name, [&] { add(e, entry); });
    }
    if (candidates_.size() >= Candidate::kNone)
      fail(Code::kUnsupported, "more than 2^32 - 2 items in one checkpoint");
    const auto ranks = static_cast<std::size_t>(world_size_);
    const std::vector<std::uint32_t> order = by_number(
        candidates_.size(), ranks, [this](std::size_t i) { return candidates_[i].first_rank; });
    choose_ranks(order);
    SavePlan plan;
    plan.world_size = world_size_;
    for (const Box& box : boxes_)
      plan.made_boxes.push_back(ChunkView(box.origin, box.shape.extents()));
    reserve_large(plan.items, order.size());
    for (const std::uint32_t place : by_number(
             order.size(), ranks, [&](std::size_t i) { return candidates_[order[i]].item.rank; }))
      plan.items.push_back(candidates_[order[place]].item);
    sort_each_rank(plan.items);
    return plan;
  }

 private:
  /// Values first, then tensors, each in the source's order. Mostly they are so already.
  static void sort_each_rank(std::vector<PlannedItem>& items) {
    const auto less = [](const PlannedItem& a, const PlannedItem& b) { return key(a) < key(b); };
    if (std::ranges::is_sorted(items, less)) return;
    for (auto first = items.begin(); first != items.end();) {
      const auto last = std::find_if(
          first, items.end(), [&](const PlannedItem& item) { return item.rank != first->rank; });
      std::stable_sort(first, last, less);
      first = last;
    }
  }
  static std::tuple<std::uint32_t, bool, std::uint32_t> key(const PlannedItem& item) {
    return {item.rank, item.tensor != kValueTensor, item.entry};
  }

  /// How many candidates there will be where one dim of each tensor is cut.
  std::size_t expected_parts(const std::vector<bool>& keep) const {
    std::size_t parts = 0;
    for (std::size_t e = 0; e < keep.size(); ++e) {
      if (!keep[e]) continue;
      const Value& value = source_.state.entries[e].value;
      const bool cut = value.is_tensor() && sharded_[value.tensor_index()];
      // The empty parts of the last ranks are one.
      if (cut)
        parts += static_cast<std::size_t>(std::clamp<std::int64_t>(
            source_.tensors[value.tensor_index()].spec.shape.numel(), 0, world_size_ - 1));
      ++parts;
    }
    return parts;
  }

  void add(std::uint32_t e, const StateEntry& entry) {
    Candidate whole;
    whole.item.entry = e;
    if (entry.value.is_tensor()) {
      const std::uint32_t index = entry.value.tensor_index();
      const Shape& shape = source_.tensors[index].spec.shape;
      whole.item.tensor = index;
      if (sharded_[index] && world_size_ > 1)
        return add_parts(whole, layout_of(entry.name, shape), shape);
    } else if (world_size_ > 1 && !is_replicated(entry.name)) {
      const auto spec_of = [this](std::uint32_t index) { return source_.tensors[index].spec; };
      if (const auto wrapper = row_wrapper(entry.value, spec_of))
        return add_parts(whole, layout_of(entry.name, wrapper->spec.shape), wrapper->spec.shape);
    }
    candidates_.push_back(whole);
  }

  bool is_replicated(const SharedText& name) const {
    return std::ranges::any_of(request_.replicate,
                               [&](const std::string& glob) { return glob_match(glob, name); });
  }

  Layout layout_of(const std::string& name, const Shape& shape) const {
    if (rule_) {
      if (auto asked = asked_placements(mesh_, request_, name)) return Layout(mesh_, *asked);
      return Layout(mesh_, rule_(mesh_, name, shape));
    }
    return Layout(mesh_, placements_of(mesh_, request_, name));
  }

  /// One candidate per distinct part; parts of several ranks share one.
  void add_parts(const Candidate& whole, const Layout& layout, const Shape& shape) {
    const std::vector<Placement>& placements = layout.placements();
    const bool plain = placements.size() == 1 && placements[0].kind == Placement::Kind::kShard &&
                       placements[0].dim < shape.rank();
    if (plain) return add_slices(whole, placements[0].dim, shape);
    std::map<std::vector<std::int64_t>, std::size_t> known;  // origin -> candidate
    for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
      for (Chunk& chunk : layout.chunks_of(rank, shape)) {
        if (!chunk.is_whole_box()) {
          fail(Code::kUnsupported, "torch-dcp stores boxes; a flat placement has other parts");
        }
        const auto [found, fresh] = known.emplace(chunk.box.origin, candidates_.size());
        if (fresh) {
          add_listed(whole, std::move(chunk.box), rank);
        } else {
          share(candidates_[found->second], std::move(chunk.box), rank);
        }
      }
    }
  }

  /// What chunks_of() says of one mesh dim that cuts one dim, without a box for each part: the
  /// empty ones of the last ranks are one.
  void add_slices(const Candidate& whole, int dim, const Shape& shape) {
    const std::int64_t extent = shape[dim];
    for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
      const RowRange rows = chunk_rows(extent, world_size_, rank);
      const bool empty = rows.begin == rows.end;
      if (empty && whole.item.tensor == kValueTensor) continue;  // no object has no rows
      if (empty && rank > 0 &&
          chunk_rows(extent, world_size_, rank - 1).end ==
              chunk_rows(extent, world_size_, rank - 1).begin) {
        add_holder(candidates_.back(), rank);
        continue;
      }
      Candidate part = whole;
      part.item.dim = dim;
      part.item.begin = empty ? extent : rows.begin;
      part.item.end = empty ? extent : rows.end;
      part.first_rank = part.holder = rank;
      candidates_.push_back(part);
    }
  }

  void add_listed(const Candidate& whole, Box box, std::uint32_t rank) {
    Candidate part = whole;
    part.item.dim = PlannedItem::kListed;
    part.item.begin = static_cast<std::int64_t>(boxes_.size());
    part.first_rank = part.holder = rank;
    boxes_.push_back(std::move(box));
    candidates_.push_back(part);
  }

  void add_holder(Candidate& candidate, std::uint32_t rank) {
    if (candidate.more == Candidate::kNone) {
      candidate.more = static_cast<std::uint32_t>(holders_.size());
      holders_.emplace_back();
    }
    holders_[candidate.more].push_back(rank);
  }

  /// Two parts with one origin would have one key; only an empty one can share it, and gives way.
  void share(Candidate& candidate, Box box, std::uint32_t rank) {
    Box& known = boxes_[static_cast<std::size_t>(candidate.item.begin)];
    if (known.shape == box.shape) return add_holder(candidate, rank);
    if (box.empty()) return;
    TESSERA_CHECK(known.empty());
    known = std::move(box);
    candidate.holder = rank;
    if (candidate.more != Candidate::kNone) holders_[candidate.more].clear();
  }

  /// In `order`: the holder with the least bytes so far, the first of them where several have.
  void choose_ranks(const std::vector<std::uint32_t>& order) {
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size_), 0);
    for (const std::uint32_t place : order) {
      Candidate& c = candidates_[place];
      std::uint32_t chosen = c.holder;
      if (chosen == Candidate::kEveryRank) {
        chosen = static_cast<std::uint32_t>(std::ranges::min_element(load) - load.begin());
      } else if (c.more != Candidate::kNone) {
        for (const std::uint32_t other : holders_[c.more])
          if (load[other] < load[chosen]) chosen = other;
      }
      load[chosen] += weight(c.item);
      c.item.rank = chosen;
    }
  }

  std::uint64_t weight(const PlannedItem& item) const {
    if (item.tensor == kValueTensor) return 1;
    const TensorSpec& spec = source_.tensors[item.tensor].spec;
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(spec.size_bytes()));
  }

  const Manifest& source_;
  const TargetRequest& request_;
  const PlacementRule& rule_;
  Mesh mesh_;
  std::int64_t world_size_;
  std::vector<bool> sharded_;
  std::vector<Candidate> candidates_;
  std::vector<std::vector<std::uint32_t>> holders_;
  std::vector<Box> boxes_;  // of candidates that are kListed
};

}  // namespace

void SavePlan::box_of(const PlannedItem& item, const Shape& shape, Box& box) const {
  if (item.dim == PlannedItem::kListed) {
    const PackedChunks& boxes = listed_boxes != nullptr ? *listed_boxes : made_boxes;
    const ChunkView listed = boxes[static_cast<std::size_t>(item.begin)];
    box.origin.assign(listed.origin.begin(), listed.origin.end());
    box.shape = Shape(listed.extents);
    return;
  }
  box.origin.assign(static_cast<std::size_t>(shape.rank()), 0);
  box.shape = shape;
  if (item.dim == PlannedItem::kWhole) return;
  box.origin[static_cast<std::size_t>(item.dim)] = item.begin;
  box.shape[item.dim] = item.end - item.begin;
}

std::optional<std::vector<Placement>> asked_placements(const Mesh& mesh,
                                                       const TargetRequest& request,
                                                       const std::string& name) {
  for (const auto& [glob, placements] : request.placements) {
    if (!glob_match(glob, name)) continue;
    if (placements.size() != mesh.dims().size()) {
      fail(Code::kInvalidArgument,
           fmt::format("'{}' gives {} placements, the mesh {} has {} dims", glob, placements.size(),
                       mesh.to_string(), mesh.dims().size()));
    }
    return placements;
  }
  return std::nullopt;
}

std::vector<Placement> placements_of(const Mesh& mesh, const TargetRequest& request,
                                     const std::string& name) {
  if (auto asked = asked_placements(mesh, request, name)) return std::move(*asked);
  std::vector<Placement> made;
  for (const MeshDim& dim : mesh.dims()) {
    const bool replicate = dim.name == "replicate" || dim.name == "tp";
    made.push_back(replicate ? Placement::replicate() : Placement::shard(0));
  }
  return made;
}

namespace {

/// The parts that the request lists: of each rank in the order given.
SavePlan listed_parts(const Manifest& source, const TargetRequest& request,
                      const std::vector<bool>& keep) {
  SavePlan plan;
  plan.world_size = target_mesh(request).world_size();
  const StoredParts& listed = *request.parts;
  TESSERA_CHECK(listed.parts.size() == listed.boxes.size());
  reserve_large(plan.items, listed.parts.size());
  plan.listed_boxes = &listed.boxes;
  for (std::size_t p = 0; p < listed.parts.size(); ++p) {
    const StoredParts::Part& part = listed.parts[p];
    TESSERA_CHECK(part.entry < keep.size() && part.rank < plan.world_size);
    if (!keep[part.entry]) continue;
    const Value& value = source.state.entries[part.entry].value;
    PlannedItem item;
    item.entry = part.entry;
    item.rank = part.rank;
    if (value.is_tensor()) {
      item.tensor = value.tensor_index();
      item.dim = PlannedItem::kListed;
      item.begin = static_cast<std::int64_t>(p);
    }
    plan.items.push_back(item);
  }
  std::ranges::stable_sort(plan.items, {}, &PlannedItem::rank);
  return plan;
}

}  // namespace

SavePlan plan_save(const Manifest& source, const TargetRequest& request,
                   const std::vector<bool>& keep, const PlacementRule& rule) {
  if (request.parts) return listed_parts(source, request, keep);
  return Planner(source, request, rule).run(keep);
}

}  // namespace tessera::dcp

#include "lib/format/torch_dcp/save_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/sharding_rule.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

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

/// A part of the state before its rank is chosen. `holders` empty: every rank.
struct Candidate {
  PlannedItem item;
  std::uint64_t weight = 1;
  std::int64_t first_rank = 0;
  std::vector<std::uint32_t> holders;
};

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
    for (std::uint32_t e = 0; e < source_.state.entries.size(); ++e) {
      if (!keep[e]) continue;
      const StateEntry& entry = source_.state.entries[e];
      in_tensor(entry.name, [&] { add(e, entry); });
    }
    choose_ranks();
    SavePlan plan;
    plan.world_size = world_size_;
    plan.items.reserve(candidates_.size());
    for (Candidate& c : candidates_) plan.items.push_back(std::move(c.item));
    std::stable_sort(plan.items.begin(), plan.items.end(),
                     [](const PlannedItem& a, const PlannedItem& b) { return key(a) < key(b); });
    return plan;
  }

 private:
  static std::tuple<std::int64_t, bool, std::uint32_t> key(const PlannedItem& item) {
    return {item.rank, item.tensor != kValueTensor, item.entry};
  }

  void add(std::uint32_t e, const StateEntry& entry) {
    Candidate whole;
    whole.item.entry = e;
    if (!entry.value.is_tensor()) {
      candidates_.push_back(std::move(whole));
      return;
    }
    const std::uint32_t index = entry.value.tensor_index();
    const TensorSpec& spec = source_.tensors[index].spec;
    whole.item.tensor = index;
    whole.item.box = Box::whole(spec.shape);
    whole.weight = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(spec.size_bytes()));
    if (!sharded_[index] || world_size_ == 1) {
      candidates_.push_back(std::move(whole));
    } else {
      add_parts(whole, layout_of(entry.name, spec.shape), spec.shape);
    }
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
    std::map<std::vector<std::int64_t>, std::size_t> known;  // origin -> candidate
    for (std::int64_t rank = 0; rank < world_size_; ++rank) {
      for (Chunk& chunk : layout.chunks_of(rank, shape)) {
        if (!chunk.is_whole_box()) {
          fail(Code::kUnsupported, "torch-dcp stores boxes; a flat placement has other parts");
        }
        const auto [found, fresh] = known.emplace(chunk.box.origin, candidates_.size());
        if (fresh) {
          Candidate part = whole;
          part.item.box = std::move(chunk.box);
          part.first_rank = rank;
          candidates_.push_back(std::move(part));
        } else if (candidates_[found->second].item.box.shape != chunk.box.shape) {
          keep_fuller(candidates_[found->second], std::move(chunk.box), rank);
          continue;
        }
        candidates_[found->second].holders.push_back(static_cast<std::uint32_t>(rank));
      }
    }
  }

  /// Two parts with one origin would have one key; only an empty one can share it, and gives way.
  static void keep_fuller(Candidate& candidate, Box box, std::int64_t rank) {
    if (box.empty()) return;
    TESSERA_CHECK(candidate.item.box.empty());
    candidate.item.box = std::move(box);
    candidate.holders = {static_cast<std::uint32_t>(rank)};
  }

  void choose_ranks() {
    std::stable_sort(
        candidates_.begin(), candidates_.end(),
        [](const Candidate& a, const Candidate& b) { return a.first_rank < b.first_rank; });
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size_), 0);
    for (Candidate& c : candidates_) {
      std::size_t chosen = 0;
      if (c.holders.empty()) {
        chosen = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
      } else {
        chosen = *std::ranges::min_element(
            c.holders, [&](std::uint32_t a, std::uint32_t b) { return load[a] < load[b]; });
      }
      load[chosen] += c.weight;
      c.item.rank = static_cast<std::int64_t>(chosen);
    }
  }

  const Manifest& source_;
  const TargetRequest& request_;
  const PlacementRule& rule_;
  Mesh mesh_;
  std::int64_t world_size_;
  std::vector<bool> sharded_;
  std::vector<Candidate> candidates_;
};

}  // namespace

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
  for (const StoredPart& part : *request.parts) {
    TESSERA_CHECK(part.entry < keep.size() && part.rank >= 0 && part.rank < plan.world_size);
    if (!keep[part.entry]) continue;
    const Value& value = source.state.entries[part.entry].value;
    plan.items.push_back(
        {part.entry, value.is_tensor() ? value.tensor_index() : kValueTensor, part.rank, part.box});
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

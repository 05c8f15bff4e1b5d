#include "lib/format/deepspeed_zero/places.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>

#include "lib/format/deepspeed_zero/expert_grid.h"
#include "lib/format/deepspeed_zero/partition.h"

namespace tessera::deepspeed {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 60;

/// Small enough that sums of two cannot overflow.
std::int64_t bounded_sum(std::int64_t a, std::int64_t b, std::string_view what) {
  if (b > kMostElements - a) fail(Code::kCorrupt, fmt::format("{} too many elements", what));
  return a + b;
}

std::vector<FlatParameter> members_of(const std::vector<NamedShape>& group) {
  std::vector<FlatParameter> out;
  std::int64_t total = 0;
  for (const NamedShape& item : group) {
    total = bounded_sum(total, item.shape.numel(), "a group has");
    out.push_back({item.name, item.shape});
  }
  return out;
}

FlatLayout layout_of(const std::vector<NamedShape>& group, const std::vector<std::int64_t>& behind,
                     std::size_t ranks) {
  return FlatLayout::with_padding(members_of(group), behind, static_cast<std::int64_t>(ranks),
                                  kPartMultiple);
}

void check_counts(std::size_t groups, const std::vector<std::optional<FlatSizes>>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank] && ranks[rank]->size() != groups)
      fail(Code::kCorrupt, fmt::format("rank {} has {} flat buffers, param_shapes lists {} groups",
                                       rank, ranks[rank]->size(), groups));
}

/// One group of stages 1 and 2.
class GroupPlacer {
 public:
  GroupPlacer(std::size_t group, const FlatLayout& layout,
              const std::vector<std::optional<FlatSizes>>& ranks)
      : group_(group), layout_(layout), ranks_(ranks) {}

  FlatPlaces places() const {
    check_sizes();
    std::vector<FlatRun> runs;
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::int64_t end = begin + size_on(rank);
      if (ranks_[rank]) runs.push_back({rank, group_, begin, end, 0});
      begin = end;
    }
    return FlatPlaces(std::move(runs));
  }

 private:
  /// What a rank's part holds without its padding.
  std::int64_t content_of(std::size_t rank) const {
    return layout_.shard_numel() - layout_.tail_padded(static_cast<std::int64_t>(rank));
  }
  std::int64_t size_on(std::size_t rank) const {
    return ranks_[rank] ? (*ranks_[rank])[group_] : content_of(rank);
  }
  /// Stripped of its padding each rank holds its content, unstripped all hold a part. Releases
  /// that aligned otherwise still end where the shapes do.
  void check_sizes() const {
    std::int64_t total = 0;
    std::size_t odd = ranks_.size();
    bool equal = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::int64_t size = size_on(rank);
      total = bounded_sum(total, size, "a group has");
      equal = equal && size == size_on(0);
      if (odd == ranks_.size() && size != content_of(rank)) odd = rank;
    }
    const std::int64_t wanted = layout_.unpadded_numel();
    const auto align = kPartMultiple * static_cast<std::int64_t>(ranks_.size());
    if (odd == ranks_.size() || total == wanted) return;
    if (equal && total > wanted && total - wanted < align) return;
    fail(Code::kCorrupt,
         fmt::format("group {}: rank {} holds {} elements, but {} elements over {} ranks give it "
                     "{}",
                     group_, odd, size_on(odd), wanted, ranks_.size(), content_of(odd)));
  }

  std::size_t group_;
  const FlatLayout& layout_;
  const std::vector<std::optional<FlatSizes>>& ranks_;
};

/// A rank's buffers laid end to end.
FlatPlaces end_to_end(std::size_t rank, const FlatSizes& sizes) {
  std::vector<FlatRun> runs;
  std::int64_t begin = 0;
  for (std::size_t flat = 0; flat < sizes.size(); ++flat) {
    const std::int64_t end = bounded_sum(begin, sizes[flat], "a rank has");
    runs.push_back({rank, flat, begin, end, 0});
    begin = end;
  }
  return FlatPlaces(std::move(runs));
}

void check_stage_3(std::int64_t rooms, const std::vector<std::optional<FlatSizes>>& ranks) {
  const FlatSizes* first = nullptr;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) continue;
    std::int64_t total = 0;
    for (const std::int64_t size : *ranks[rank]) total = bounded_sum(total, size, "a rank has");
    if (total != rooms)
      fail(Code::kCorrupt,
           fmt::format("rank {} holds {} elements, but the parameters over {} ranks give it {}",
                       rank, total, ranks.size(), rooms));
    if (!first) first = &*ranks[rank];
    if (*first != *ranks[rank])
      fail(Code::kCorrupt, fmt::format("rank {} cuts its sub-groups in other places", rank));
  }
}

}  // namespace

std::vector<TrainedParameter> places_of_stage_2(
    const std::vector<std::vector<NamedShape>>& shapes,
    const std::vector<std::vector<std::int64_t>>& alignment,
    const std::vector<std::optional<FlatSizes>>& ranks) {
  check_counts(shapes.size(), ranks);
  if (!alignment.empty() && alignment.size() != shapes.size())
    fail(Code::kCorrupt, fmt::format("alignment paddings of {} groups for {} groups",
                                     alignment.size(), shapes.size()));
  std::vector<TrainedParameter> out;
  for (std::size_t group = 0; group < shapes.size(); ++group) {
    if (!alignment.empty() && alignment[group].size() != shapes[group].size())
      fail(Code::kCorrupt, fmt::format("group {} has {} parameters, but {} alignment paddings",
                                       group, shapes[group].size(), alignment[group].size()));
    const FlatLayout layout = layout_of(
        shapes[group],
        alignment.empty() ? std::vector<std::int64_t>(shapes[group].size()) : alignment[group],
        ranks.size());
    const FlatPlaces places = GroupPlacer(group, layout, ranks).places();
    for (const FlatSegment& segment : layout.segments()) {
      out.push_back({segment.fqn, segment.shape, group, {}});
      if (segment.numel > 0) out.back().runs = places.cut(segment.begin, segment.end());
    }
  }
  return out;
}

namespace {

/// How many experts of that layer a share has, by the highest number among the names.
using Shares = std::map<std::string, std::int64_t>;  // by what stands before the number

Shares shares_of(const std::vector<NamedShape>& group, const StackedExperts& stacked) {
  Shares shares;
  for (const NamedShape& item : group) {
    if (stacked.count(item.name)) continue;
    const ExpertName name = expert_name(item.name);
    std::int64_t& count = shares[item.name.substr(0, name.begin)];
    count = std::max(count, name.number + 1);
  }
  return shares;
}

/// Makes a share's rows those of the whole parameter.
void stack_rows(TrainedParameter& parameter, const StackedExperts& stacked, std::int64_t share,
                std::int64_t shares) {
  const std::int64_t experts = stacked.count(parameter.name).value();
  const std::int64_t numel = parameter.shape.numel();
  if (parameter.shape.rank() == 0 || parameter.shape[0] != experts / shares)
    fail(Code::kCorrupt,
         fmt::format("\"{}\" of {} experts over {} ranks has shape {}", printable(parameter.name),
                     experts, shares, parameter.shape.to_string()));
  if (!checked_mul(numel, shares)) fail(Code::kCorrupt, "the experts have too many elements");
  parameter.shape[0] = experts;
  for (FlatRun& run : parameter.runs) {
    run.begin += share * numel;
    run.end += share * numel;
  }
}

std::string name_of_all(const std::string& name, const Shares& shares, std::int64_t share) {
  const ExpertName at = expert_name(name);
  const std::int64_t count = shares.at(name.substr(0, at.begin));
  const auto number = checked_mul(share, count);
  if (!number) fail(Code::kCorrupt, "numbers of experts overflow");
  return fmt::format("{}{}{}", name.substr(0, at.begin), *number + at.number, name.substr(at.end));
}

}  // namespace

std::vector<TrainedParameter> places_with_experts(
    const std::vector<std::vector<NamedShape>>& shapes,
    const std::vector<std::vector<std::int64_t>>& alignment, const std::vector<std::int64_t>& over,
    const StackedExperts& stacked, const std::vector<std::optional<FlatSizes>>& ranks) {
  check_counts(shapes.size(), ranks);
  if (over.size() != shapes.size() || (!alignment.empty() && alignment.size() != shapes.size()))
    fail(Code::kCorrupt, fmt::format("partition counts of {} groups and alignment paddings of {} "
                                     "for {} groups",
                                     over.size(), alignment.size(), shapes.size()));
  std::vector<TrainedParameter> out;
  for (std::size_t group = 0; group < shapes.size(); ++group) {
    const auto shares = static_cast<std::int64_t>(ranks.size()) / over[group];
    const Shares counts = shares > 1 ? shares_of(shapes[group], stacked) : Shares();
    const std::size_t first = out.size();  // of the group
    for (std::int64_t share = 0; share < shares; ++share) {
      std::vector<std::optional<FlatSizes>> sizes;
      for (auto rank = static_cast<std::size_t>(share); rank < ranks.size();
           rank += static_cast<std::size_t>(shares)) {
        sizes.emplace_back();
        if (ranks[rank]) sizes.back() = FlatSizes{(*ranks[rank])[group]};
      }
      std::vector<std::vector<std::int64_t>> paddings;
      if (!alignment.empty()) paddings.push_back(alignment[group]);
      for (TrainedParameter& parameter : places_of_stage_2({shapes[group]}, paddings, sizes)) {
        parameter.flat = group;
        for (FlatRun& run : parameter.runs) {
          run.rank = static_cast<std::size_t>(share) + run.rank * static_cast<std::size_t>(shares);
          run.buffer = group;
        }
        if (stacked.count(parameter.name)) {
          stack_rows(parameter, stacked, share, shares);
          const auto begun = std::find_if(
              out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
              [&](const TrainedParameter& other) { return other.name == parameter.name; });
          if (begun != out.end()) {
            begun->runs.insert(begun->runs.end(), parameter.runs.begin(), parameter.runs.end());
            continue;
          }
        } else if (shares > 1) {
          parameter.stored = parameter.name;
          parameter.name = name_of_all(parameter.stored, counts, share);
        }
        out.push_back(std::move(parameter));
      }
    }
  }
  return out;
}

std::vector<TrainedParameter> places_of_stage_3(const std::vector<std::vector<NamedShape>>& shapes,
                                                const std::vector<std::optional<FlatSizes>>& ranks,
                                                const std::vector<std::int64_t>& over,
                                                const StackedExperts& stacked) {
  const auto world_size = static_cast<std::int64_t>(ranks.size());
  if (!over.empty() && over.size() != shapes.size())
    fail(Code::kCorrupt, fmt::format("partition counts of {} sub-groups, param_shapes lists {}",
                                     over.size(), shapes.size()));
  std::vector<FlatPlaces> of_rank(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank]) of_rank[rank] = end_to_end(rank, *ranks[rank]);
  std::vector<TrainedParameter> out;
  std::int64_t at = 0;  // of the slice in its rank's buffers
  for (std::size_t group = 0; group < shapes.size(); ++group) {
    const std::int64_t parts = over.empty() ? world_size : over[group];
    const std::int64_t shares = world_size / parts;
    for (const FlatParameter& member : members_of(shapes[group])) {
      if (shares > 1 && !stacked.count(member.fqn))
        fail(Code::kUnsupported,
             fmt::format("\"{}\" is cut over {} of {} ranks, and is no experts' "
                         "(AutoEP)",
                         printable(member.fqn), parts, world_size));
      TrainedParameter parameter{member.fqn, member.shape, 0, {}};
      for (std::int64_t share = 0; share < shares; ++share) {
        TrainedParameter rows{member.fqn, member.shape, 0, {}};
        for (std::int64_t part = 0; part < parts; ++part) {
          const Slice slice = slice_of(member.shape.numel(), parts, part);
          if (slice.begin == slice.end) continue;
          const auto rank = static_cast<std::size_t>(share + part * shares);
          for (FlatRun run : of_rank[rank].cut(at, at + slice.end - slice.begin)) {
            run.begin += slice.begin;
            run.end += slice.begin;
            rows.runs.push_back(run);
          }
        }
        if (stacked.count(member.fqn)) stack_rows(rows, stacked, share, shares);
        parameter.shape = rows.shape;
        parameter.runs.insert(parameter.runs.end(), rows.runs.begin(), rows.runs.end());
      }
      if (!parameter.runs.empty()) parameter.flat = parameter.runs.front().buffer;
      at = bounded_sum(at, slice_of(member.shape.numel(), parts, 0).room, "the parameters have");
      out.push_back(std::move(parameter));
    }
  }
  check_stage_3(at, ranks);
  // A parameter without elements belongs to the buffer of its neighbour.
  for (std::size_t i = 1; i < out.size(); ++i)
    if (out[i].runs.empty()) out[i].flat = out[i - 1].flat;
  return out;
}

}  // namespace tessera::deepspeed

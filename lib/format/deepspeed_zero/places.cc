#include "lib/format/deepspeed_zero/places.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "lib/format/deepspeed_zero/partition.h"

namespace tessera::deepspeed {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 60;

std::vector<std::int64_t> numels_of(const std::vector<NamedShape>& shapes) {
  std::vector<std::int64_t> numels;
  for (const NamedShape& item : shapes) {
    numels.push_back(item.shape.numel());
    if (numels.back() > kMostElements)
      fail(Code::kCorrupt, fmt::format("\"{}\" has too many elements", item.name));
  }
  return numels;
}

void check_counts(std::size_t groups, const std::vector<std::optional<FlatSizes>>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank] && ranks[rank]->size() != groups)
      fail(Code::kCorrupt, fmt::format("rank {} has {} flat buffers, param_shapes lists {} groups",
                                       rank, ranks[rank]->size(), groups));
}

/// One group of stages 1 and 2: its parameters' runs are appended to `out` from `first` on.
class GroupPlacer {
 public:
  GroupPlacer(std::size_t group, const FlatGroup& layout,
              const std::vector<std::optional<FlatSizes>>& ranks)
      : group_(group), layout_(layout), ranks_(ranks) {}

  void place(std::size_t first, std::vector<TrainedParameter>& out) const {
    check_sizes();
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::int64_t size = size_on(rank);
      if (ranks_[rank])
        for (const Fragment& f : layout_.fragments(begin, size))
          out[first + f.parameter].runs.push_back(
              {static_cast<std::int64_t>(rank), group_, f.begin, f.end, f.offset});
      begin += size;
    }
  }

 private:
  std::int64_t size_on(std::size_t rank) const {
    return ranks_[rank] ? (*ranks_[rank])[group_]
                        : layout_.content(static_cast<std::int64_t>(rank));
  }
  /// Stripped of its padding each rank holds its content, unstripped all hold a part. Releases
  /// that aligned otherwise still end where the shapes do.
  void check_sizes() const {
    std::int64_t total = 0;
    std::size_t odd = ranks_.size();
    bool equal = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::int64_t size = size_on(rank);
      if (size > kMostElements - total) fail(Code::kCorrupt, "a group has too many elements");
      total += size;
      equal = equal && size == size_on(0);
      if (odd == ranks_.size() && size != layout_.content(static_cast<std::int64_t>(rank)))
        odd = rank;
    }
    const std::int64_t wanted = layout_.unpadded_numel();
    const auto align = 2 * static_cast<std::int64_t>(ranks_.size());
    if (odd == ranks_.size() || total == wanted) return;
    if (equal && total > wanted && total - wanted < align) return;
    fail(
        Code::kCorrupt,
        fmt::format("group {}: rank {} holds {} elements, but {} elements over {} ranks give it {}",
                    group_, odd, size_on(odd), wanted, ranks_.size(),
                    layout_.content(static_cast<std::int64_t>(odd))));
  }

  std::size_t group_;
  const FlatGroup& layout_;
  const std::vector<std::optional<FlatSizes>>& ranks_;
};

/// The run [at, at + length) of one rank's buffers laid end to end, cut at their borders.
void cut(const FlatSizes& sizes, std::int64_t at, Run run, std::vector<Run>& out) {
  std::int64_t begin = 0;
  for (std::size_t flat = 0; flat < sizes.size() && run.begin < run.end; ++flat) {
    const std::int64_t end = begin + sizes[flat];
    if (at < end) {
      const std::int64_t length = std::min(run.end - run.begin, end - at);
      out.push_back({run.rank, flat, run.begin, run.begin + length, at - begin});
      run.begin += length;
      at += length;
    }
    begin = end;
  }
}

void check_stage_3(std::int64_t rooms, const std::vector<std::optional<FlatSizes>>& ranks) {
  const FlatSizes* first = nullptr;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) continue;
    std::int64_t total = 0;
    for (const std::int64_t size : *ranks[rank]) {
      if (size > kMostElements - total) fail(Code::kCorrupt, "a rank has too many elements");
      total += size;
    }
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
    const std::size_t first = out.size();
    for (const NamedShape& item : shapes[group]) out.push_back({item.name, item.shape, group, {}});
    const std::vector<std::int64_t> none;
    const std::vector<std::int64_t>& after = alignment.empty() ? none : alignment[group];
    if (!alignment.empty() && after.size() != shapes[group].size())
      fail(Code::kCorrupt, fmt::format("group {} has {} parameters, but {} alignment paddings",
                                       group, shapes[group].size(), after.size()));
    const FlatGroup layout(numels_of(shapes[group]), after,
                           static_cast<std::int64_t>(ranks.size()));
    GroupPlacer(group, layout, ranks).place(first, out);
  }
  return out;
}

std::vector<TrainedParameter> places_of_stage_3(
    const std::vector<std::vector<NamedShape>>& shapes,
    const std::vector<std::optional<FlatSizes>>& ranks) {
  const auto world_size = static_cast<std::int64_t>(ranks.size());
  std::vector<TrainedParameter> out;
  std::int64_t at = 0;
  for (const std::vector<NamedShape>& group : shapes) {
    const std::vector<std::int64_t> numels = numels_of(group);
    for (std::size_t i = 0; i < group.size(); ++i) {
      TrainedParameter parameter{group[i].name, group[i].shape, 0, {}};
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        const auto& sizes = ranks[static_cast<std::size_t>(rank)];
        const Slice slice = slice_of(numels[i], world_size, rank);
        if (sizes) cut(*sizes, at, {rank, 0, slice.begin, slice.end, 0}, parameter.runs);
      }
      if (!parameter.runs.empty()) parameter.flat = parameter.runs.front().flat;
      at += slice_of(numels[i], world_size, 0).room;
      if (at > kMostElements) fail(Code::kCorrupt, "the parameters have too many elements");
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

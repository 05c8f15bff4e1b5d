// A size of one leaves no number in a folder's name: mp_rank_00_001 is pipeline stage 1, or expert
// rank 1 of a model without stages. Names alone leave that open; the caller asks args.
#include "lib/format/megatron_torch/rank_grid.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/format/rank_names.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kPrefix = "mp_rank_";

std::int64_t number(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> order(const GridRank& rank) {
  return {rank.pp, rank.ep, rank.tp};
}

std::int64_t size_of(std::int64_t highest, std::optional<std::int64_t> stated,
                     std::string_view what) {
  if (!stated) return highest + 1;
  if (*stated < 1 || highest >= *stated)
    fail(Code::kCorrupt,
         fmt::format("found a folder for {} rank {}, but args say there are only {}", what, highest,
                     *stated));
  return *stated;
}

GridRank rank_of(const RankFolder& folder, bool single_is_expert) {
  GridRank rank{folder.tp, 0, 0, folder.name};
  if (folder.rest.size() == 1) (single_is_expert ? rank.ep : rank.pp) = folder.rest[0];
  if (folder.rest.size() == 2) {
    rank.pp = folder.rest[0];
    rank.ep = folder.rest[1];
  }
  return rank;
}

std::string folder_of(const GridRank& rank, std::size_t depth, bool single_is_expert) {
  std::string name = rank_folder_name(rank.tp, std::nullopt);
  if (depth == 1) name += fmt::format("_{:03}", single_is_expert ? rank.ep : rank.pp);
  if (depth == 2) name += fmt::format("_{:03}_{:03}", rank.pp, rank.ep);
  return name;
}

}  // namespace

std::optional<RankFolder> parse_rank_folder(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto parts = split(name.substr(kPrefix.size()), '_');
  if (parts.empty() || parts.size() > 3 || !std::ranges::all_of(parts, is_number))
    return std::nullopt;
  RankFolder folder{std::string(name), number(parts[0]), {}};
  for (std::size_t i = 1; i < parts.size(); ++i) folder.rest.push_back(number(parts[i]));
  return folder;
}

std::vector<RankFolder> find_rank_folders(const Directory& directory) {
  std::vector<RankFolder> folders;
  for (const FileInfo& info : directory.list()) {
    if (info.type != FileType::kDirectory) continue;
    if (auto folder = parse_rank_folder(info.name)) folders.push_back(std::move(*folder));
  }
  std::ranges::sort(folders, {}, [](const RankFolder& f) { return std::tuple(f.rest, f.tp); });
  return folders;
}

std::string rank_folder_name(std::int64_t tp, std::optional<std::int64_t> pp,
                             std::optional<std::int64_t> ep) {
  std::string name = fmt::format("mp_rank_{:02}", tp);
  if (pp) name += fmt::format("_{:03}", *pp);
  if (ep) name += fmt::format("_{:03}", *ep);
  return name;
}

RankGrid make_grid(const std::vector<RankFolder>& folders, const GridSizes& sizes,
                   bool single_is_expert, const std::vector<RankFolder>& hollow) {
  TESSERA_CHECK(!folders.empty());
  const std::size_t depth = folders[0].rest.size();
  RankGrid grid;
  std::int64_t tp = 0, pp = 0, ep = 0;
  for (const RankFolder& folder : folders) {
    if (folder.rest.size() != depth)
      fail(Code::kCorrupt, fmt::format("{} and {} are folders of different parallel layouts",
                                       folders[0].name, folder.name));
    grid.present.push_back(rank_of(folder, single_is_expert));
    tp = std::max(tp, grid.present.back().tp);
    pp = std::max(pp, grid.present.back().pp);
    ep = std::max(ep, grid.present.back().ep);
  }
  for (const RankFolder& folder : hollow) {
    if (folder.rest.size() != depth) continue;
    const GridRank rank = rank_of(folder, single_is_expert);
    if (!sizes.tp) tp = std::max(tp, rank.tp);
    if (!sizes.pp) pp = std::max(pp, rank.pp);
    if (!sizes.ep) ep = std::max(ep, rank.ep);
  }
  grid.tp = size_of(tp, sizes.tp, "tensor-parallel");
  // A size of one leaves no number in the names.
  const bool has_pp = depth == 2 || (depth == 1 && !single_is_expert);
  const bool has_ep = depth == 2 || (depth == 1 && single_is_expert);
  grid.pp = size_of(pp, has_pp ? sizes.pp : std::nullopt, "pipeline-parallel");
  grid.ep = size_of(ep, has_ep ? sizes.ep : std::nullopt, "expert-parallel");
  const std::int64_t most = most_ranks(folders.size());
  if (grid.tp > most || grid.pp > most || grid.ep > most || grid.tp * grid.pp > most ||
      grid.size() > most)
    fail(Code::kCorrupt, fmt::format("{} folders of {} x {} x {} ranks", folders.size(), grid.tp,
                                     grid.pp, grid.ep));
  std::ranges::sort(grid.present, {}, order);
  for (std::size_t i = 1; i < grid.present.size(); ++i)
    if (order(grid.present[i - 1]) == order(grid.present[i]))
      fail(Code::kCorrupt, fmt::format("{} and {} are the same rank", grid.present[i - 1].folder,
                                       grid.present[i].folder));
  std::size_t next = 0;
  for (GridRank rank; rank.pp < grid.pp; ++rank.pp) {
    for (rank.ep = 0; rank.ep < grid.ep; ++rank.ep) {
      for (rank.tp = 0; rank.tp < grid.tp; ++rank.tp) {
        if (next < grid.present.size() && order(grid.present[next]) == order(rank)) {
          ++next;
        } else {
          grid.missing.push_back(rank);
          grid.missing.back().folder = folder_of(rank, depth, single_is_expert);
        }
      }
    }
  }
  return grid;
}

std::string grid_text(std::int64_t tp, std::int64_t pp, std::int64_t ep) {
  return fmt::format("tp={},pp={},ep={}", tp, pp, ep);
}

}  // namespace tessera::megatron_torch

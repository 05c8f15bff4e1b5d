#include "lib/format/fairscale_fsdp/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <optional>

#include "lib/format/probe_errors.h"
#include "lib/format/torch_files/first_reason.h"

namespace tessera::fairscale {
namespace {

constexpr std::size_t kMaxOthers = 64;

class Opener {
 public:
  explicit Opener(Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void run() {
    open_archives();
    read_metadata();
    find_all_parts();
    open_others();
    if (checkpoint_.chosen.counts_from_one && !adds_up()) count_from_zero();
    report_missing_files();
    place_backings();
  }

 private:
  void open_archives() {
    for (const auto& names : checkpoint_.chosen.ranks) {
      RankState& rank = checkpoint_.ranks.emplace_back();
      rank.files = names;  // those that cannot be read included: they are not missing
      auto& numbers = files_.emplace_back();
      for (const std::string& name : names) {
        Status why;
        if (const auto file = checkpoint_.builder.try_open(name, why)) {
          numbers.push_back(*file);
          continue;
        }
        unreadable_.add(why);
        const std::string whose = fmt::format("rank {}", checkpoint_.ranks.size() - 1);
        checkpoint_.findings.error(Finding::kUnreadableFile, unreadable_text(whose, why), name);
      }
    }
  }

  const Value& root(std::uint32_t file) const { return checkpoint_.builder.archive(file).root; }

  void read_metadata() {
    std::size_t reference = 0;
    for (std::size_t r = 0; r < files_.size(); ++r)
      for (const std::uint32_t file : files_[r])
        if (const Value* found = find_metadata(root(file));
            found && checkpoint_.ranks[r].padding.empty())
          in_file(checkpoint_.path_of(file), [&] { take_metadata(r, file, *found, reference); });
    if (!checkpoint_.description) unreadable_.raise_if_any();
    if (!checkpoint_.description)
      fail(Code::kCorrupt, "no rank's file holds the metadata of its shards");
  }
  void take_metadata(std::size_t r, std::uint32_t file, const Value& value,
                     std::size_t& reference) {
    RankMetadata mine = parse_metadata(value);
    for (const Wrapper& wrapper : mine.wrappers) {
      auto& padding = checkpoint_.ranks[r].padding.emplace_back();
      for (const Backing& backing : wrapper.backings) padding.push_back(backing.padding);
    }
    if (!checkpoint_.description) {
      reference = r;
      checkpoint_.description_file = file;
      checkpoint_.description = std::move(mine);
      return;
    }
    const std::string other = first_difference(*checkpoint_.description, mine);
    if (!other.empty())
      fail(Code::kCorrupt,
           fmt::format("ranks {} and {} describe different models: {}", reference, r, other),
           "keep the files of one save in a folder");
  }

  void find_all_parts() {
    if (!find_parts_by(weight_keys(*checkpoint_.description)) &&
        !find_parts_by(full_keys(*checkpoint_.description)))
      fail(Code::kCorrupt, "no rank's file holds weights that the metadata describes");
    for (RankState& rank : checkpoint_.ranks) {
      if (rank.parts.weights) index_weights(rank);
      if (rank.parts.consolidated && !checkpoint_.consolidated)
        checkpoint_.consolidated = rank.parts.consolidated;
      drop_empty_extras(rank);
    }
  }
  bool find_parts_by(const std::vector<std::string>& keys) {
    std::optional<std::size_t> first;
    for (std::size_t r = 0; r < files_.size(); ++r) {
      RankParts parts;
      for (const std::uint32_t file : files_[r])
        in_file(checkpoint_.path_of(file), [&] { find_parts(root(file), file, keys, parts); });
      if (parts.weights && !first) first = r;
      checkpoint_.ranks[r].parts = std::move(parts);
    }
    checkpoint_.first_rank = first.value_or(0);
    return first.has_value();
  }
  void index_weights(RankState& rank) const {
    for (const auto& [key, value] : rank.parts.weights.value->as_dict()) {
      if (!key.is_string()) fail(Code::kCorrupt, "a key of the weights is no string");
      std::string name = clean_path(key.as_string());
      if (!rank.by_key.emplace(name, rank.weights.size()).second)
        in_file(checkpoint_.path_of(rank.parts.weights.file), [&] {
          fail(Code::kCorrupt, fmt::format("the weights hold \"{}\" twice", printable(name)));
        });
      rank.weights.push_back({std::move(name), &value});
    }
  }
  /// state_dict_on_rank_0_only: other ranks save empty dicts where rank 0 has its weights.
  void drop_empty_extras(RankState& rank) const {
    std::erase_if(rank.parts.extras, [](const Part& part) {
      return part.value->is_dict() && part.value->as_dict().empty();
    });
  }

  /// The consolidated optimizer may have a file of its own.
  void open_others() {
    std::vector<std::string> names = checkpoint_.chosen.others;
    std::ranges::stable_partition(names, is_gathered_name);
    std::vector<std::string> unreadable;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool looked_at = i < kMaxOthers || is_gathered_name(names[i]);
      if (looked_at && !checkpoint_.consolidated && may_be_gathered(names[i], unreadable) &&
          open_gathered(names[i]))
        continue;
      if (!unreadable.empty() && unreadable.back() == names[i]) continue;
      checkpoint_.findings.note(Finding::kStaleFile, Severity::kInfo,
                                "takes no part in the sharded state", names[i]);
    }
    const bool may_lack_it = !checkpoint_.consolidated && needs_gathered();
    for (const std::string& name : unreadable)
      checkpoint_.findings.note(
          Finding::kStaleFile, may_lack_it ? Severity::kWarning : Severity::kInfo,
          may_lack_it ? "it cannot be read and takes no part: if the gathered "
                        "optimizer was in it, that is missing"
                      : "takes no part in the sharded state",
          name);
    if (may_lack_it) report_unusable_gathered();
  }
  /// A folder, a FIFO or a link where the gathered optimizer should be.
  void report_unusable_gathered() {
    for (const FileInfo& info : directory()->list())
      if (is_gathered_name(info.name) && info.type != FileType::kRegular)
        checkpoint_.findings.error(Finding::kMissingFile, std::string(no_regular_file(info.type)),
                                   info.name, checkpoint_.description->marks.optim_root);
  }
  /// Whether its file holds the consolidated optimizer, or is damaged and may have held it.
  bool may_be_gathered(const std::string& name, std::vector<std::string>& unreadable) const {
    const bool named_so = is_gathered_name(name) && needs_gathered();
    try {
      const auto root =
          peek_root(*directory(), name, checkpoint_.builder.options().pickle_limit_bytes);
      if (!root) return named_so;  // nothing of torch.save's, or no longer
      RankParts parts;
      find_parts(*root, 0, {}, parts);
      return bool(parts.consolidated);
    } catch (const Error& error) {
      rethrow_unless_of_content(error);
      if (!named_so) unreadable.push_back(name);
      return named_so;
    }
  }
  /// Ranks' own optimizers are preferred: with them, what is gathered is not read.
  bool needs_gathered() const {
    return std::ranges::none_of(checkpoint_.ranks,
                                [](const RankState& rank) { return bool(rank.parts.optimizer); });
  }
  /// False: it can be read, and is something else.
  bool open_gathered(const std::string& name) {
    Status why;
    const auto file = checkpoint_.builder.try_open(name, why);
    if (!file) {
      checkpoint_.findings.error(Finding::kUnreadableFile,
                                 unreadable_text("the gathered optimizer", why), name,
                                 checkpoint_.description->marks.optim_root);
      return true;
    }
    RankParts opened;
    find_parts(root(*file), *file, {}, opened);
    if (!opened.consolidated) return false;
    checkpoint_.consolidated = opened.consolidated;
    others_.push_back(std::move(opened));
    return true;
  }
  const Directory* directory() const { return checkpoint_.directory; }

  /// Files 1, 2, 3 are all of three ranks, or those of four without the first.
  bool adds_up() const {
    for (std::size_t w = 0; w < checkpoint_.description->wrappers.size(); ++w) {
      const Wrapper& wrapper = checkpoint_.description->wrappers[w];
      for (std::size_t b = 0; b < wrapper.backings.size(); ++b) {
        std::int64_t stored = 0;
        for (const RankState& rank : checkpoint_.ranks)
          if (const auto tensor = tensor_of(rank, wrapper, wrapper.backings[b]))
            stored += checkpoint_.bytes.tensor(*tensor).shape.numel() -
                      (rank.padding.empty() ? 0 : rank.padding[w][b]);
        if (stored < wrapper.backings[b].numel) return false;
      }
    }
    return true;
  }
  void count_from_zero() {
    checkpoint_.chosen.counts_from_one = false;
    checkpoint_.chosen.ranks.insert(checkpoint_.chosen.ranks.begin(), std::vector<std::string>());
    checkpoint_.ranks.insert(checkpoint_.ranks.begin(), RankState());
    ++checkpoint_.first_rank;
  }

  /// One file alone has no family to choose: any that its name allows.
  void report_unusable_files() {
    std::vector<FileFamily> families{checkpoint_.chosen.family};
    if (families[0].members.empty()) {
      std::vector<std::string> names;
      for (const auto& rank : checkpoint_.chosen.ranks)
        names.insert(names.end(), rank.begin(), rank.end());
      families = find_families(names);
    }
    for (const FileFamily& family : families)
      for (const FileInfo& info : unusable_members(*directory(), family))
        checkpoint_.findings.error(Finding::kMissingFile, std::string(no_regular_file(info.type)),
                                   info.name);
  }
  void report_missing_files() {
    report_unusable_files();
    std::vector<std::string> names;
    std::vector<std::size_t> ranks;
    for (std::size_t r = 0; r < checkpoint_.ranks.size(); ++r) {
      if (!checkpoint_.ranks[r].files.empty()) continue;
      ranks.push_back(r);
      names.push_back(printable(file_name(r)));
    }
    if (names.empty()) return;
    const bool one = names.size() == 1;
    checkpoint_.findings.error(
        Finding::kMissingFile,
        fmt::format("the file{} of rank{} {} {} missing: {}", one ? "" : "s", one ? "" : "s",
                    fmt::join(ranks, ", "), one ? "is" : "are", fmt::join(names, ", ")),
        file_name(ranks[0]));
  }
  std::string file_name(std::size_t rank) const {
    const ChosenFiles& chosen = checkpoint_.chosen;
    return chosen.family.name_of(static_cast<std::int64_t>(rank) +
                                 (chosen.counts_from_one ? 1 : 0));
  }

  void place_backings() {
    const auto& wrappers = checkpoint_.description->wrappers;
    for (std::size_t w = 0; w < wrappers.size(); ++w)
      for (std::size_t b = 0; b < wrappers[w].backings.size(); ++b) place(w, b);
  }

  void place(std::size_t w, std::size_t b) {
    const Wrapper& wrapper = checkpoint_.description->wrappers[w];
    const Backing& backing = wrapper.backings[b];
    BackingPlace place{.wrapper = w,
                       .index = b,
                       .key = joined(wrapper.path, backing.name),
                       .plan = {},
                       .tensors = {}};
    std::vector<StoredShard> shards;
    for (const RankState& rank : checkpoint_.ranks) {
      place.tensors.push_back(tensor_of(rank, wrapper, backing));
      StoredShard shard;
      if (place.tensors.back()) {
        shard.present = true;
        shard.numel = checkpoint_.bytes.tensor(*place.tensors.back()).shape.numel();
        if (!rank.padding.empty()) shard.padding = rank.padding[w][b];
      }
      shards.push_back(shard);
    }
    place.unwrapped =
        std::ranges::none_of(shards, &StoredShard::present) && holds_parameters(wrapper, backing);
    if (!place.unwrapped) {
      place.plan = arrange_shards(backing.numel, shards, wrapper.no_broadcast);
      if (!place.plan.problem.empty() && !rank_is_known()) {
        place.plan = {};
        place.plan.problem = fmt::format(
            "{} holds one rank's shard, and nothing says of which rank: where its elements belong "
            "is unknown",
            printable(checkpoint_.chosen.ranks[0][0]));
      }
      if (!place.plan.problem.empty()) report(place, backing);
      if (place.plan.guessed_group)
        checkpoint_.findings.note(
            Finding::kDifferentValues, Severity::kWarning,
            "several process groups hold a copy; ranks are taken to follow each other in one", "",
            place.key);
    }
    checkpoint_.places.push_back(std::move(place));
  }

  /// One file alone is rank 0's only if the last number of its name is 0: others may count from one.
  bool rank_is_known() const {
    const ChosenFiles& chosen = checkpoint_.chosen;
    if (!chosen.family.members.empty()) return true;
    const std::string& name = chosen.ranks[0][0];
    constexpr std::string_view kDigits = "0123456789";
    const std::size_t end = name.find_last_of(kDigits);
    if (end == std::string::npos) return false;
    const std::size_t before = name.find_last_not_of(kDigits, end);
    const std::string number = name.substr(before + 1, end - before);  // npos + 1 is 0
    return number.find_first_not_of('0') == std::string::npos;
  }

  std::optional<TensorRef> tensor_of(const RankState& rank, const Wrapper& wrapper,
                                     const Backing& backing) const {
    const Value* found = rank.find(joined(wrapper.path, backing.name));
    const std::string_view older = other_spelling(backing.name);
    if (!found && !older.empty()) found = rank.find(joined(wrapper.path, older));
    if (!found || !found->is_tensor()) return std::nullopt;
    return TensorRef{rank.parts.weights.file, found->tensor_index()};
  }
  bool holds_parameters(const Wrapper& wrapper, const Backing& backing) const {
    const RankState& rank = checkpoint_.ranks[checkpoint_.first_rank];
    return !backing.parameters.empty() &&
           std::ranges::all_of(backing.parameters, [&](const Parameter& parameter) {
             const Value* found = rank.find(joined(wrapper.path, parameter.name));
             return found && found->is_tensor() &&
                    checkpoint_.bytes.tensor({rank.parts.weights.file, found->tensor_index()})
                            .shape == parameter.shape;
           });
  }

  /// What a user needs: which ranks, and which parameters lose elements.
  void report(const BackingPlace& place, const Backing& backing) {
    std::string message = place.plan.problem;
    if (!place.plan.missing.empty()) {
      std::vector<std::string> names;
      for (const std::size_t r : place.plan.missing)
        if (names.size() < 8) names.push_back(fmt::format("{} ({})", r, file_name(r)));
      message = fmt::format("{}; missing: the shard{} of rank{} {}{}", message,
                            names.size() > 1 ? "s" : "", names.size() > 1 ? "s" : "",
                            fmt::join(names, ", "),
                            place.plan.missing.size() > names.size() ? ", ..." : "");
      message += lost_text(place, backing);
    }
    checkpoint_.findings.error(place.plan.missing.empty() ? Finding::kBadItem : Finding::kLost,
                               std::move(message), "", place.key);
  }
  std::string lost_text(const BackingPlace& place, const Backing& backing) const {
    std::vector<std::string> lost;
    std::int64_t at = 0;
    const Wrapper& wrapper = checkpoint_.wrapper(place);
    for (const Parameter& parameter : backing.parameters) {
      const std::int64_t end = at + parameter.shape.numel();
      std::int64_t there = 0;
      for (const FlatRun& run : place.plan.places.cut(at, end)) there += run.numel();
      if (there < end - at && lost.size() < 4)
        lost.push_back(fmt::format("{} of {} elements of \"{}\"", end - at - there, end - at,
                                   printable(joined(wrapper.path, parameter.name))));
      at = end;
    }
    return lost.empty() ? "" : fmt::format("; lost: {}", fmt::join(lost, ", "));
  }

  Checkpoint& checkpoint_;
  std::vector<std::vector<std::uint32_t>> files_;
  std::vector<RankParts> others_;
  FirstReason unreadable_;
};

}  // namespace

const Value* RankState::find(const std::string& key) const {
  const auto found = by_key.find(key);
  return found == by_key.end() ? nullptr : weights[found->second].value;
}

void open_ranks(Checkpoint& checkpoint) { Opener(checkpoint).run(); }

}  // namespace tessera::fairscale

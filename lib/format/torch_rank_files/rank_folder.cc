// No framework owns these names: trainers and users make them up. So a name is taken apart by its
// words, wherever they stand, and the numbers in it are only believed as far as there are files
// (most_ranks()). Two saves side by side look like two parts of one: words with digits decide.
#include "lib/format/torch_rank_files/rank_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "lib/format/rank_names.h"

namespace tessera::rank_files {
namespace {

constexpr std::array<std::string_view, 5> kSuffixes = {".pt", ".pth", ".bin", ".ckpt", ".tar"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_separator(char c) { return c == '_' || c == '-' || c == '.' || c == '='; }

/// `word`, perhaps a separator, digits: where they stand in a text.
struct Numbered {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int64_t number = 0;
};
std::optional<Numbered> find_numbered(std::string_view written, std::string_view word) {
  std::string text(written);  // "RANK0.pt" too
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (std::size_t at = text.rfind(word); at != text.npos;
       at = at == 0 ? text.npos : text.rfind(word, at - 1)) {
    if (at > 0 && is_letter(text[at - 1])) continue;
    std::size_t begin = at + word.size();
    if (begin < text.size() && is_separator(text[begin])) ++begin;
    std::size_t end = begin;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end == begin || end - begin > 9) continue;
    Numbered found{at, end, 0};
    std::from_chars(text.data() + begin, text.data() + end, found.number);
    return found;
  }
  return std::nullopt;
}

std::string trimmed(std::string text) {
  while (!text.empty() && is_separator(text.back())) text.pop_back();
  while (!text.empty() && is_separator(text.front())) text.erase(0, 1);
  return text;
}

std::string without(const std::string& text, const Numbered& part) {
  const std::string before = trimmed(text.substr(0, part.begin)),
                    after = trimmed(text.substr(part.end));
  return before + (before.empty() || after.empty() ? "" : "_") + after;
}

std::optional<std::string_view> torch_stem(std::string_view name) {
  for (const std::string_view suffix : kSuffixes)
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return std::nullopt;
}

/// model, then optim..., then the others by name.
int place_of(std::string_view label) {
  return label.find("model") != label.npos ? 0 : label.find("optim") != label.npos ? 1 : 2;
}

struct Found {
  std::map<std::int64_t, std::string> files;
  std::set<std::int64_t> world_sizes;

  /// Ranks that the names speak of.
  std::int64_t ranks() const {
    const std::int64_t last = files.rbegin()->first;
    return world_sizes.empty() ? last + 1 : *world_sizes.begin();
  }
};

/// The words of a label that say which save it is of: "ep1_ba3", "step100", "latest"; "" for a
/// label that names a part alone.
std::string save_of(const std::string& label) {
  std::string save;
  std::size_t begin = 0;
  while (begin < label.size()) {
    std::size_t end = begin;
    while (end < label.size() && !is_separator(label[end])) ++end;
    const std::string word = label.substr(begin, end - begin);
    const bool is_type = word == "fp32" || word == "fp16" || word == "bf16" || word == "fp8";
    const bool has_digit = std::ranges::any_of(word, is_digit) && !is_type;
    if (has_digit || word == "latest" || word == "last" || word == "best")
      save += (save.empty() ? "" : "_") + word;
    begin = end + 1;
  }
  return save;
}

/// Files of several saves side by side are several checkpoints, never parts of one. Returns true
/// where each is whole by itself; throws where they are of several ranks, which the folder's name
/// does not distinguish.
bool are_several_saves(const std::map<std::string, Found>& by_label) {
  std::set<std::string> saves;
  bool many_ranks = false;
  for (const auto& [label, found] : by_label) {
    saves.insert(save_of(label));
    many_ranks = many_ranks || found.ranks() > 1;
  }
  if (saves.size() < 2) return false;
  if (!many_ranks) return true;
  fail(Code::kUnsupported,
       fmt::format("the rank files of {} saves lie side by side: {}", saves.size(),
                   printable(fmt::format("{}", fmt::join(saves, ", ")))),
       "put the files of each save into a folder of its own");
}

void check_ranks(const std::map<std::string, Found>& by_label) {
  std::size_t files = 0;
  const Found* widest = nullptr;
  for (const auto& [label, found] : by_label) {
    files += found.files.size();
    if (!widest || found.ranks() > widest->ranks()) widest = &found;
  }
  const std::int64_t ranks = widest->ranks();
  if (ranks <= most_ranks(files, by_label.size())) return;
  fail(Code::kCorrupt,
       fmt::format("{} is a file of {} ranks, but {} rank file{} in all {} here",
                   printable(widest->files.rbegin()->second), ranks, files, files == 1 ? "" : "s",
                   files == 1 ? "is" : "are"),
       "bring the other ranks' files here, or rename the files that are not a rank's");
}

RankPart part_of(const std::string& label, const Found& found, std::int64_t& world_size) {
  if (found.world_sizes.size() > 1)
    fail(Code::kCorrupt,
         fmt::format("rank files of world sizes {} and {} stand side by side",
                     *found.world_sizes.begin(), *found.world_sizes.rbegin()),
         "keep the files of one save in the folder");
  const std::int64_t declared = found.ranks();
  if (found.files.rbegin()->first >= declared)
    fail(Code::kCorrupt, fmt::format("{} says that there are {} ranks",
                                     printable(found.files.rbegin()->second), declared));
  world_size = std::max(world_size, declared);
  RankPart part{label, "", std::vector<std::string>(static_cast<std::size_t>(declared)),
                found.files.begin()->second, false};
  for (const auto& [rank, file] : found.files) part.files[static_cast<std::size_t>(rank)] = file;
  return part;
}

}  // namespace

std::optional<RankName> parse_rank_name(std::string_view name) {
  const auto stem = torch_stem(name);
  if (!stem || name.starts_with('.')) return std::nullopt;
  const auto rank = find_numbered(*stem, "rank");
  if (!rank || rank->number > kMaxRank) return std::nullopt;
  // Ranks of a tensor-, pipeline- or expert-parallel group: other formats' names.
  const std::string_view before = stem->substr(0, rank->begin);
  for (const std::string_view other : {"mp_", "pp_", "dp_", "tp_", "ep_"})
    if (before.ends_with(other) &&
        (before.size() == other.size() || !is_letter(before[before.size() - other.size() - 1])))
      return std::nullopt;  // but not accelerate's "fsdp_"
  RankName out;
  out.rank = rank->number;
  out.label = without(std::string(*stem), *rank);
  for (const std::string_view word : {"world_size", "world-size", "ws"}) {
    const auto size = find_numbered(out.label, word);
    if (!size || size->number < 1 || size->number > kMaxRank) continue;
    out.world_size = size->number;
    out.label = without(out.label, *size);
    break;
  }
  return out;
}

std::string RankPart::name_of(std::int64_t rank) const {
  if (is_item) return fmt::format("{}_{}.pt", label, rank);
  const auto stem = torch_stem(sample);
  // Not the digits of a world size: the rank's own stand after its word.
  const auto place = stem ? find_numbered(*stem, "rank") : std::nullopt;
  if (!place) return fmt::format("rank{}.pt", rank);
  std::size_t begin = place->end;
  while (begin > place->begin && is_digit(sample[begin - 1])) --begin;
  return with_number(sample, begin, place->end, rank);
}

std::optional<RankFolder> find_rank_files(const Directory& directory) {
  std::map<std::string, Found> by_label;
  RankFolder out;
  for (const FileInfo& info : directory.list()) {
    const auto name = parse_rank_name(info.name);
    if (info.type != FileType::kRegular) {
      if (name) out.unusable.push_back(info);
      continue;
    }
    if (!name) {
      if (torch_stem(info.name) && !info.name.starts_with('.')) out.others.push_back(info.name);
      continue;
    }
    Found& found = by_label[name->label];
    if (name->world_size) found.world_sizes.insert(*name->world_size);
    out.declared = out.declared || name->world_size.has_value();
    const auto [known, is_new] = found.files.emplace(name->rank, info.name);
    if (!is_new && found.world_sizes.size() < 2)
      fail(Code::kCorrupt, fmt::format("{} and {} are both rank {}'s", printable(known->second),
                                       printable(info.name), name->rank));
  }
  if (by_label.empty() || are_several_saves(by_label)) return std::nullopt;
  check_ranks(by_label);
  for (const auto& [label, found] : by_label)
    out.parts.push_back(part_of(label, found, out.world_size));
  std::ranges::stable_sort(out.parts, {}, [](const RankPart& p) { return place_of(p.label); });
  for (RankPart& part : out.parts) {
    if (out.parts.size() > 1) part.key = part.label.empty() ? "rank" : part.label;
    part.files.resize(static_cast<std::size_t>(out.world_size));
  }
  return out;
}

}  // namespace tessera::rank_files

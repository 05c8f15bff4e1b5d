#include "lib/format/fairscale_fsdp/files.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "lib/format/rank_names.h"

namespace tessera::fairscale {
namespace {

constexpr std::array<std::string_view, 6> kSuffixes = {".pt",   ".pth", ".bin",
                                                       ".ckpt", ".tar", ".pkl"};

bool could_be_archive(std::string_view name) {
  if (name.empty() || name.front() == '.') return false;
  if (name.find('.') == std::string_view::npos) return name != "latest";
  return std::ranges::any_of(kSuffixes, [&](std::string_view s) { return name.ends_with(s); });
}

}  // namespace

std::string FileFamily::name_of(std::int64_t number) const {
  if (const auto known = members.find(number); known != members.end()) return known->second;
  if (members.empty()) return prefix + std::to_string(number) + suffix;
  const std::string& sample = members.begin()->second;
  return with_number(sample, prefix.size(), sample.size() - suffix.size(), number);
}

std::vector<std::string> archive_names(const Directory& directory) {
  std::vector<std::string> names;
  for (const FileInfo& info : directory.list())
    if (info.type == FileType::kRegular && could_be_archive(info.name)) names.push_back(info.name);
  std::ranges::sort(names, natural_less);
  return names;
}

std::vector<FileInfo> unusable_members(const Directory& directory, const FileFamily& family) {
  std::vector<FileInfo> found;
  const std::size_t around = family.prefix.size() + family.suffix.size();
  for (FileInfo& info : directory.list()) {
    const std::string_view name = info.name;
    if (info.type == FileType::kRegular || name.size() <= around ||
        !name.starts_with(family.prefix) || !name.ends_with(family.suffix))
      continue;
    const auto number = name.substr(family.prefix.size(), name.size() - around);
    if (std::ranges::all_of(number, is_digit)) found.push_back(std::move(info));
  }
  return found;
}

std::vector<FileFamily> find_families(const std::vector<std::string>& names) {
  std::map<std::pair<std::string, std::string>, FileFamily> found;
  for (const std::string& name : names) {
    for (std::size_t begin = 0; begin < name.size();) {
      if (!is_digit(name[begin])) {
        ++begin;
        continue;
      }
      std::size_t end = begin;
      while (end < name.size() && is_digit(name[end])) ++end;
      std::int64_t number = 0;
      if (end - begin <= 9) {  // longer ones are dates and hashes
        std::from_chars(name.data() + begin, name.data() + end, number);
        FileFamily& family = found[{name.substr(0, begin), name.substr(end)}];
        family.prefix = name.substr(0, begin);
        family.suffix = name.substr(end);
        if (!family.members.emplace(number, name).second) family.twins.emplace(number, name);
      }
      begin = end;
    }
  }
  std::vector<FileFamily> out;
  for (auto& [key, family] : found) out.push_back(std::move(family));
  std::ranges::stable_sort(out, [](const FileFamily& a, const FileFamily& b) {
    return a.members.size() > b.members.size();
  });
  return out;
}

}  // namespace tessera::fairscale

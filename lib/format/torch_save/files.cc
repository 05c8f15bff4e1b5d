#include "lib/format/torch_save/files.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace tessera::torch_save {
namespace {

// In the order in which the parts stand in the whole.
constexpr std::array<std::string_view, 5> kParts = {"model", "optim", "optimizer", "scheduler",
                                                    "train"};

/// The digits in `name` that say which part it is: where they begin, and how many; 0: none do.
std::pair<std::size_t, std::size_t> part_digits(std::string_view name) {
  const auto digits_at = [&](std::size_t begin) {
    std::size_t end = begin;
    while (end < name.size() && is_digit(name[end])) ++end;
    return end - begin;
  };
  constexpr std::string_view kTorchtune = "hf_model_";
  if (name.starts_with(kTorchtune))
    if (const std::size_t n = digits_at(kTorchtune.size());
        n > 0 && name.substr(kTorchtune.size() + n).starts_with('_'))
      return {kTorchtune.size(), n};
  for (const std::string_view word : {"part", "shard"}) {
    const std::size_t at = name.rfind(word);
    if (at == name.npos || (at > 0 && name[at - 1] >= 'a' && name[at - 1] <= 'z')) continue;
    std::size_t begin = at + word.size();
    if (begin < name.size() && (name[begin] == '-' || name[begin] == '_')) ++begin;
    const std::size_t n = digits_at(begin);
    if (n > 0 && name.substr(begin + n).starts_with('.')) return {begin, n};
  }
  return {};
}

}  // namespace

bool has_torch_suffix(std::string_view name) {
  return name.ends_with(".tar") ||
         std::ranges::any_of(kLoneSuffixes, [&](auto suffix) { return name.ends_with(suffix); });
}

bool is_meta_part(std::string_view name) {
  constexpr std::string_view kStem = "consolidated.";
  if (!name.starts_with(kStem)) return false;
  name.remove_prefix(kStem.size());
  const std::size_t dot = name.find('.');
  if (dot == name.npos || dot == 0 || !has_torch_suffix(name.substr(dot))) return false;
  const std::string_view digits = name.substr(0, dot);
  return name.find('.', dot + 1) == name.npos && is_decimal(digits);
}

std::vector<std::string> find_meta_parts(const Directory& directory) {
  std::vector<std::string> parts;
  for (const FileInfo& info : directory.list())
    if (is_meta_part(info.name)) parts.push_back(info.name);
  std::ranges::sort(parts);
  if (parts.size() < 2) parts.clear();
  return parts;
}

std::vector<std::string> find_numbered_parts(const Directory& directory, const std::string& file) {
  const auto [begin, length] = part_digits(file);
  if (length == 0 || !has_torch_suffix(file)) return {};
  const std::string before = file.substr(0, begin), after = file.substr(begin + length);
  std::vector<std::string> parts;
  for (const FileInfo& info : directory.list()) {
    const auto [at, digits] = part_digits(info.name);
    if (digits > 0 && info.name.substr(0, at) == before && info.name.substr(at + digits) == after)
      parts.push_back(info.name);
  }
  std::ranges::sort(parts, natural_less);
  if (parts.size() < 2) parts.clear();
  return parts;
}

std::string only_file(const Directory& directory) {
  std::string found;
  for (const FileInfo& info : directory.list()) {
    if (info.name.starts_with('.') || !has_torch_suffix(info.name)) continue;
    if (!found.empty() || info.type != FileType::kRegular) return "";
    found = info.name;
  }
  return found;
}

std::vector<PartFile> find_parts(const Directory& directory) {
  std::array<std::string, kParts.size()> files;
  for (const FileInfo& info : directory.list()) {
    if (info.name.starts_with('.') || !has_torch_suffix(info.name)) continue;
    const std::string_view stem = std::string_view(info.name).substr(0, info.name.rfind('.'));
    const auto part = std::find(kParts.begin(), kParts.end(), stem);
    if (info.type != FileType::kRegular || part == kParts.end()) return {};
    std::string& file = files[static_cast<std::size_t>(part - kParts.begin())];
    if (!file.empty()) return {};  // model.pt and model.bin
    file = info.name;
  }
  const bool complete = !files[0].empty() && files[1].empty() != files[2].empty();
  std::vector<PartFile> out;
  for (std::size_t i = 0; complete && i < kParts.size(); ++i)
    if (!files[i].empty()) out.push_back({files[i], std::string(kParts[i])});
  return out;
}

}  // namespace tessera::torch_save

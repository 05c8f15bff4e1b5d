#include "lib/format/torch_save/ts_files.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::torch_save {
namespace {

constexpr std::array<std::string_view, 5> kSuffixes = {".pt", ".pth", ".bin", ".ckpt", ".tar"};
// In the order in which the parts stand in the whole.
constexpr std::array<std::string_view, 4> kParts = {"model", "optim", "optimizer", "scheduler"};

}  // namespace

bool has_torch_suffix(std::string_view name) {
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
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

#include "lib/ops/convert/base_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

std::string hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  const std::string caches = variable("XDG_CACHE_HOME");
  return (caches.empty() ? variable("HOME") + "/.cache" : caches) + "/huggingface/hub";
}

bool is_folder(const FileSystem& fs, const std::string& path) {
  const auto info = fs.stat(path);
  return info && info->type == FileType::kDirectory;
}

/// One component of a path, as the hub's names and revisions have them.
bool is_plain(std::string_view part) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !part.empty() && !part.starts_with('.') && std::ranges::all_of(part, allowed);
}

struct HubName {
  std::string folder;    // "models--org--name"; "" where it is no name of the hub
  std::string revision;  // a branch, a tag, or a commit
};

HubName parse_hub_name(const std::string& base) {
  const std::size_t at = base.find('@');
  const std::string name = base.substr(0, at);
  HubName result{"", at == base.npos ? "main" : base.substr(at + 1)};
  const std::vector<std::string_view> parts = split(name, '/');
  if (parts.size() > 2 || !std::ranges::all_of(parts, is_plain) || !is_plain(result.revision))
    return result;
  result.folder = "models";
  for (const std::string_view part : parts) result.folder += fmt::format("--{}", part);
  return result;
}

/// What refs/REVISION names; the revision itself where it is a commit.
std::string commit_of(const FileSystem& fs, const std::string& model, const std::string& revision) {
  constexpr std::uint64_t kMostBytes = 256;
  const auto refs = fs.stat(model + "/refs/" + revision);
  if (!refs || refs->type != FileType::kRegular || refs->size_bytes > kMostBytes) return revision;
  const auto file = fs.open_directory(model + "/refs")->open(revision);
  Bytes bytes(static_cast<std::size_t>(file->size_bytes()));
  file->read_at(0, bytes);
  std::string text(as_text(bytes));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return is_plain(text) ? text : revision;
}

}  // namespace

std::string model_folder(const FileSystem& fs, const std::string& folder) {
  const std::string snapshots = folder + "/snapshots";
  if (fs.stat(folder + "/config.json") || !is_folder(fs, snapshots)) return folder;
  const std::string main = snapshots + "/" + commit_of(fs, folder, "main");
  if (is_folder(fs, main)) return main;
  std::vector<std::string> revisions;
  for (const FileInfo& info : fs.open_directory(snapshots)->list())
    if (is_folder(fs, snapshots + "/" + info.name)) revisions.push_back(info.name);
  if (revisions.empty()) return folder;
  if (revisions.size() == 1) return snapshots + "/" + revisions[0];
  std::ranges::sort(revisions);
  for (std::string& revision : revisions) revision = printable(revision);
  fail(Code::kNotFound,
       fmt::format("{} is a model in the hub's cache with several revisions, and none is main",
                   printable(folder)),
       fmt::format("name one of them: {}/ {}", printable(snapshots), fmt::join(revisions, ", ")));
}

std::string base_folder(const FileSystem& fs, const std::string& base) {
  if (is_folder(fs, base)) return model_folder(fs, base);
  const HubName name = parse_hub_name(base);
  if (name.folder.empty())
    fail(Code::kNotFound, fmt::format("--base-model: there is no folder {}", printable(base)),
         "a folder, or a name in the hub's cache, as org/name or org/name@revision");
  const std::string cache = hub_cache(), model = cache + "/" + name.folder;
  const std::string hint =
      fmt::format("hf download {} --include '*.json' '*.model' '*.txt' '*.jinja'",
                  base.substr(0, base.find('@')));
  if (!is_folder(fs, model))
    fail(Code::kNotFound,
         fmt::format(
             "--base-model {}: there is no such folder, and no such model in the hub's cache {}",
             printable(base), printable(cache)),
         hint);
  const std::string snapshot = model + "/snapshots/" + commit_of(fs, model, name.revision);
  if (is_folder(fs, snapshot)) return snapshot;
  fail(Code::kNotFound,
       fmt::format("--base-model {}: the hub's cache {} has this model, but not its revision {}",
                   printable(base), printable(cache), printable(name.revision)),
       hint);
}

}  // namespace tessera

// One rank's file or folder as PATH: the set it belongs to.
//
// Megatron's and Meta's names are asked for directly: such a file is a whole torch.save archive, so
// the driver at hand is torch-save, and no capability of it could say that others belong to it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>

#include <algorithm>
#include <tuple>

#include "lib/format/probe_errors.h"
#include "lib/format/shard_index.h"
#include "lib/format/torch_save/files.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

/// N of "model-00002-of-0000N.safetensors"; 0 for other names.
std::int64_t shards_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return 0;
  const std::string suffix = name.substr(dot);
  const auto shard = numbered_shard(name, {suffix, ""});
  return shard ? shard->total : 0;
}

/// "mp_rank_01": the first rank's folder may be all there is.
bool is_later_rank(std::string_view folder) {
  return is_megatron_rank_folder(folder) &&
         folder.find_first_of("123456789") != std::string_view::npos;
}

}  // namespace

std::string PathResolver::parts_beside(const std::string& file) const {
  const auto [folder, name] = split_path(file);
  if (!torch_save::is_meta_part(name)) return "";
  const auto directory = fs_.open_directory(folder);
  return fmt::format("{}", fmt::join(torch_save::find_meta_parts(*directory), ", "));
}

void PathResolver::note_others_of_set(FoundCheckpoint& chosen, std::vector<Note>& notes) const {
  const auto [folder, name] = split_path(chosen.path);
  const bool container = chosen.driver->capabilities().is_container;
  const std::string whole = container ? folder_of_ranks(chosen.path) : "";
  std::string text;
  if (!whole.empty()) {
    chosen.others = "the files of the other ranks";
    text = fmt::format(
        "is one rank's file and is read alone; the checkpoint of all ranks is the "
        "folder {}",
        printable(whole));
  } else if (const std::int64_t shards = shards_of(name); shards > 1) {
    chosen.others = fmt::format("the other {} shards of the model", shards - 1);
    text = fmt::format("is one of {} shards and is read alone; the whole model is the folder {}",
                       shards, printable(folder));
  } else if (is_megatron_rank_file(name) && is_later_rank(split_path(folder).second)) {
    chosen.others = "the files of the other ranks, which are not there";
    text = "is one rank's file and is read alone; those of the other ranks are not there";
  } else if (const auto parts = torch_save::find_numbered_parts(*fs_.open_directory(folder), name);
             !parts.empty()) {
    chosen.others = fmt::format("the other {} of the model's parts", parts.size() - 1);
    text = fmt::format("is one of {} parts of a model, by its name, and is read alone: {}",
                       parts.size(), printable(fmt::format("{}", fmt::join(parts, ", "))));
  }
  if (!text.empty())
    notes.push_back({Finding::kPath, Severity::kWarning, printable(name) + " " + text, "", ""});
}

void PathResolver::refuse_parts_alone(const std::string& asked,
                                      const std::vector<FoundCheckpoint>& found) const {
  std::vector<std::string> names;
  for (const FoundCheckpoint& each : found) names.push_back(each.file);
  if (names.size() < 2 || names[0].empty()) return;
  const auto [folder, name] = split_path(found[0].path);
  const auto parts = torch_save::find_numbered_parts(*fs_.open_directory(folder), name);
  if (!std::ranges::is_permutation(parts, names)) return;
  fail(Code::kUnsupported,
       fmt::format("\"{}\" holds parts of one model, by their names, which are not joined here: {}",
                   printable(asked), printable(fmt::format("{}", fmt::join(parts, ", ")))),
       "name one of them to read what it holds");
}

std::string PathResolver::folder_of_ranks(const std::string& file) const {
  const auto [folder, name] = split_path(file);
  if (is_megatron_rank_file(name)) return whole_of_rank_folder(folder, name);
  const auto directory = fs_.open_directory(folder);
  const FormatDriver* driver = nullptr;
  for (const FormatDriver* each : all_formats()) {
    try {
      if (!each->is_one_of_several({directory.get(), name, file, pickle_limit_bytes_})) continue;
    } catch (const Error& error) {
      rethrow_unless_of_content(error);
      continue;
    }
    if (driver == nullptr) driver = driver_of(folder);
    if (driver == each) return folder;
  }
  return "";
}

const FormatDriver* PathResolver::driver_of(const std::string& folder) const {
  try {
    const auto found = recognise(folder, FileType::kDirectory);
    return found ? found->driver : nullptr;
  } catch (const Error& error) {
    rethrow_unless_of_content(error);
    return nullptr;
  }
}

bool PathResolver::is_rank_folder_of(const std::string& folder, std::string_view name) const {
  const FormatDriver* driver = driver_of(folder);
  return driver != nullptr && driver->is_rank_folder(name);
}

std::string PathResolver::whole_of_rank_folder(const std::string& asked,
                                               const std::string& file) const {
  std::string path = asked;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  auto [parent, name] = split_path(path);
  if (name == "." || name == "..") std::tie(parent, name) = split_path(fs_.canonical(path));
  if (!is_megatron_rank_folder(name)) return "";
  const auto holds = [&](const std::string& folder, bool other_only) {
    const auto list = fs_.open_directory(folder)->list();
    return std::ranges::any_of(list, [&](const FileInfo& info) {
      return is_megatron_rank_file(info.name) && (!other_only || info.name != file);
    });
  };
  if (!holds(path, false) || !is_rank_folder_of(parent, name)) return "";
  if (file.empty() || holds(path, true)) return parent;
  const auto ranks = std::ranges::count_if(
      fs_.open_directory(parent)->list(),
      [](const FileInfo& info) { return is_megatron_rank_folder(info.name); });
  return ranks > 1 ? parent : "";
}

}  // namespace tessera

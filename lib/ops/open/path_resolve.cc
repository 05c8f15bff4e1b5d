#include "lib/ops/open/path_resolve.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/ops/seal.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "lib/base/append.h"
#include "lib/encoding/file_kinds.h"
#include "lib/format/findings.h"
#include "lib/ops/open/beside.h"
#include "lib/ops/open/other_libraries.h"
#include "lib/ops/open/part_folders.h"
#include "lib/ops/open/rank_parts.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr int kSearchDepth = 3;

bool is_url(std::string_view text) {
  const std::size_t at = text.find("://");
  return at != std::string_view::npos && at > 0 && at < 12 &&
         text.substr(0, at).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+-") ==
             std::string_view::npos;
}

/// "huggingface.co/meta-llama/X/tree/main" -> "meta-llama/X"; "": no model of the hub.
std::string hub_model(std::string_view address) {
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (!address.starts_with(host)) continue;
    std::string model;
    std::size_t words = 0;
    for (const std::string_view word : split(address.substr(host.size()), '/')) {
      const bool of_pages = word == "tree" || word == "blob" || word == "resolve" || word == "raw";
      if (word.empty() || of_pages || words == 2) break;
      model += (words++ ? "/" : "") + std::string(word.substr(0, word.find_first_of("?#")));
    }
    return model;
  }
  return {};
}

/// "org/name": where no folder is called org, a model of the hub is meant.
bool is_hub_name(std::string_view asked) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  const std::size_t slash = asked.find('/');
  return slash != asked.npos && slash > 0 && slash + 1 < asked.size() && asked[0] != '.' &&
         asked.find_first_not_of(kLetters, slash + 1) == asked.npos &&
         asked.substr(0, slash).find_first_not_of(kLetters) == asked.npos;
}

/// What brings here what the address of a file, a page of the hub or another page means.
std::string copy_of_web_address(const std::string& asked) {
  const std::string_view address = std::string_view(asked).substr(asked.find("://") + 3);
  const std::string_view path = address.substr(0, address.find_first_of("?#"));
  const bool is_page = path.find("/blob/") != std::string_view::npos;
  if (has_checkpoint_suffix(path) && !is_page) return fmt::format("curl -LO {}", asked);
  const std::string model = hub_model(address);
  if (!model.empty()) return fmt::format("hf download {} --local-dir DIR", model);
  return "the address is that of a page; download the files that it names";
}

[[noreturn]] void refuse_url(const std::string& asked) {
  std::string copy = copy_of_web_address(asked);
  if (asked.starts_with("s3://")) copy = fmt::format("aws s3 cp --recursive {} DIR", asked);
  if (asked.starts_with("gs://")) copy = fmt::format("gcloud storage cp -r {} DIR", asked);
  if (asked.starts_with("hf://"))
    copy = fmt::format("hf download {} --local-dir DIR", asked.substr(5));
  if (asked.starts_with("az://") || asked.starts_with("abfs"))
    copy = fmt::format("azcopy copy {} DIR --recursive", asked);
  fail(Code::kUnsupported,
       fmt::format("\"{}\" is a URL; only local paths are read", printable(asked)),
       fmt::format("copy it first: {}", printable(copy)));
}

/// Folders that show the machine, not a disk.
bool is_of_the_kernel(const FileSystem& fs, const std::string& path, const FileInfo& info) {
  if (info.name != "proc" && info.name != "sys" && info.name != "dev") return false;
  return fs.canonical(path) == "/" + info.name;
}

/// A tree that others own is one remark, not a remark a folder.
void shorten(std::vector<Note>& notes) {
  constexpr std::size_t kMostNotes = 5;
  if (notes.size() <= kMostNotes + 1) return;
  const std::size_t rest = notes.size() - kMostNotes;
  notes.resize(kMostNotes);
  notes.push_back({Finding::kPath, Severity::kWarning,
                   fmt::format("{} more folders were left out", rest), "", ""});
}

/// What a trainer keeps beside checkpoints (scheduler.bin beside DeepSpeed's folder) is none, unless
/// it is all there is.
void drop_sidecars(std::vector<FoundCheckpoint>& found) {
  const auto is_sidecar = [](const FoundCheckpoint& checkpoint) {
    return !checkpoint.file.empty() && is_sidecar_name(checkpoint.file);
  };
  if (!std::ranges::all_of(found, is_sidecar)) std::erase_if(found, is_sidecar);
}

/// "model.safetensors.index.json" beside "model.safetensors": the folder means the file, and only its
/// name the index.
bool is_index_beside_its_file(const FileSystem& fs, const std::string& folder,
                              std::string_view name) {
  constexpr std::string_view kIndexEnd = ".index.json";
  if (!name.ends_with(kIndexEnd)) return false;
  name.remove_suffix(kIndexEnd.size());
  return fs.stat(join_path(folder, std::string(name))).has_value();
}

/// A file that is healthy and of another kind is called by its name.
void refuse_other_kind(const std::string& asked, const ReadFile& file) {
  if (const auto kind = other_kind_of(ByteWindow::whole(file)))
    fail(Code::kUnsupported, fmt::format("\"{}\" is {}", printable(asked), kind->what), kind->hint);
}

/// A folder without a checkpoint: its first file that is healthy and of another kind is called by its
/// name.
void refuse_file_of_other_kind(const FileSystem& fs, const std::string& folder,
                               const std::vector<FileInfo>& entries) {
  constexpr std::array<std::string_view, 5> kOthers = {".nemo", ".gguf", ".npz", ".pt2", ".zip"};
  for (const FileInfo& info : entries) {
    const auto ends = [&](std::string_view suffix) { return info.name.ends_with(suffix); };
    if (info.type != FileType::kRegular || !std::ranges::any_of(kOthers, ends)) continue;
    const auto file = storage::open_linked_directory(fs, folder)->open(info.name);
    if (const auto kind = other_kind_of(ByteWindow::whole(*file)))
      fail(Code::kUnsupported,
           fmt::format("\"{}\" holds no checkpoint in a supported format: {} is {}",
                       printable(folder), printable(info.name), kind->what),
           kind->hint);
  }
}

}  // namespace

std::string join_path(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

void fail_several(const std::string& asked, const std::vector<FoundCheckpoint>& found) {
  std::string list;
  for (std::size_t i = 0; i < found.size() && i < 8; ++i)
    list += (i ? ", " : "") + printable(found[i].name.empty() ? found[i].path : found[i].name);
  if (found.size() > 8) list += fmt::format(", and {} more", found.size() - 8);
  fail(Code::kNotFound,
       fmt::format("{} checkpoints lie below \"{}\": {}", found.size(), printable(asked), list),
       fmt::format("name one of them; ckpt-inspect {} shows them all", printable(asked)));
}

FileInfo PathResolver::require(const std::string& asked) const {
  if (is_url(asked)) refuse_url(asked);
  if (auto info = fs_.stat(asked)) return *info;
  const auto [folder, name] = split_path(asked);
  std::string hint;
  if (const auto parent = fs_.stat(folder); parent && parent->type == FileType::kDirectory) {
    std::vector<std::string> names;
    for (const FileInfo& info : fs_.open_directory(folder)->list()) names.push_back(info.name);
    const std::vector<std::string_view> views(names.begin(), names.end());
    if (const std::string near = nearest(name, views); !near.empty())
      hint = fmt::format(
          "did you mean \"{}\"?",
          printable(join_path(folder == "." && asked.front() != '.' ? "" : folder, near)));
  } else if (is_hub_name(asked)) {
    hint = fmt::format("if it is a model of the Hugging Face Hub: hf download {} --local-dir DIR",
                       asked);
  }
  fail(Code::kNotFound, fmt::format("\"{}\" does not exist", printable(asked)), hint);
}

std::optional<FoundCheckpoint> PathResolver::recognise(const std::string& path,
                                                       FileType type) const {
  FoundCheckpoint found;
  found.path = path;
  std::string folder = path;
  if (type == FileType::kRegular) std::tie(folder, found.file) = split_path(path);
  const auto directory = storage::open_linked_directory(fs_, folder);
  const Place place{directory.get(), found.file, path, pickle_limit_bytes_};
  if (!from_.empty()) {
    found.driver = find_format(from_);
    if (!found.driver)
      fail(Code::kInvalidArgument,
           fmt::format("--from {}: no format has this name", printable(from_)));
    const ProbeResult probe = probe_place(*found.driver, place);
    if (probe.answer == ProbeResult::Answer::kNo) return std::nullopt;
    found.reason = "--from";
    return found;
  }
  Detection detection = detect_format(place);
  if (detection.candidates.empty()) return std::nullopt;
  if (!detection.driver &&
      type == FileType::kDirectory) {  // what we wrote, and what was laid there
    const std::string sealed = sealed_format(*directory);
    for (const auto& [id, reason] : detection.candidates)
      if (id == sealed) detection.driver = find_format(id);
  }
  if (!detection.driver) {
    std::string list;
    for (const auto& [id, reason] : detection.candidates)
      list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", id, reason);
    fail(Code::kUnsupported,
         fmt::format("\"{}\" could be several formats: {}", printable(path), list),
         "say which with --from");
  }
  found.driver = detection.driver;
  for (const auto& [id, reason] : detection.candidates)
    if (id == found.driver->id()) found.reason = reason;
  return found;
}

std::optional<FoundCheckpoint> PathResolver::recognise_parts(const std::string& path) const {
  FoundCheckpoint whole;
  whole.path = path;
  whole.parts = find_part_folders(*fs_.open_directory(path));
  if (whole.parts.empty()) return std::nullopt;
  for (const std::string& part : whole.parts) {
    const auto found = recognise(join_path(path, part), FileType::kDirectory);
    if (!found || !found->driver->capabilities().joins_folders) return std::nullopt;
    whole.driver = found->driver;
  }
  whole.reason = fmt::format(
      "has {} and {}{}, parts of one state", whole.parts[0], whole.parts[1],
      whole.parts.size() > 2 ? fmt::format(" and {} more", whole.parts.size() - 2) : "");
  whole.beside_folder = path;
  return whole;
}

std::string FoundCheckpoint::description() const {
  return fmt::format("{}: {}", driver->id(), reason);
}

std::string FoundCheckpoint::folder() const { return file.empty() ? path : split_path(path).first; }

std::optional<FoundCheckpoint> PathResolver::found_at(const std::string& path, FileType type,
                                                      std::vector<Note>& notes) const {
  auto found = recognise(path, type);
  if (!found) return found;
  found->beside_folder = found->folder();
  if (type != FileType::kDirectory) return found;
  if (auto whole = with_optimizer(*found)) return whole;
  return prefer_pointer(*std::move(found), notes);
}

std::optional<FoundCheckpoint> PathResolver::with_optimizer(const FoundCheckpoint& files) const {
  if (!files.driver->capabilities().joins_optimizer || !files.file.empty()) return std::nullopt;
  const std::string folder = find_optimizer_folder(*fs_.open_directory(files.path));
  if (folder.empty()) return std::nullopt;
  const auto directory = storage::open_linked_directory(fs_, join_path(files.path, folder));
  if (probe_place(optimizer_folder_driver(), {directory.get(), "", folder}).answer ==
      ProbeResult::Answer::kNo)
    return std::nullopt;
  FoundCheckpoint whole = files;
  whole.parts = {"", folder};
  whole.driver = &rank_files_with_optimizer_driver();
  whole.reason += fmt::format(", and {}, the other part of one state", folder);
  return whole;
}

std::span<const PathResolver::Rule> PathResolver::rules_of(FileType type) {
  // As ops/open.h lists them. The first that finds something decides.
  static constexpr Rule kOfFiles[] = {
      {"a pointer, by its name", &PathResolver::named_pointer},
      {"a part of a folder, by its name", &PathResolver::part_of_folder},
      {"a checkpoint: a format recognises it", &PathResolver::recognised_file},
  };
  static constexpr Rule kOfFolders[] = {
      {"one rank's folder of a checkpoint", &PathResolver::rank_folder},
      {"a checkpoint: a format recognises it", &PathResolver::recognised_folder},
      {"a pointer in it", &PathResolver::pointer_inside},
      {"the parts of one state", &PathResolver::parts_inside},
      {"the one checkpoint below it", &PathResolver::one_below},
  };
  if (type == FileType::kDirectory) return kOfFolders;
  return kOfFiles;
}

FoundCheckpoint PathResolver::resolve(const std::string& asked, std::vector<Note>& notes,
                                      std::vector<PathStep>* steps) const {
  const FileInfo info = require(asked);
  if (info.type != FileType::kDirectory && info.type != FileType::kRegular)
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is neither a file nor a folder but a FIFO, a socket or a device",
                     printable(asked)));
  const std::span<const Rule> rules = rules_of(info.type);
  std::vector<PathStep> said;
  for (const Rule& rule : rules) said.push_back({std::string(rule.name), {}, ""});
  std::optional<FoundCheckpoint> found;
  for (std::size_t i = 0; i < rules.size() && !found; ++i) {
    try {
      Attempt attempt = (this->*rules[i].attempt)(asked, notes);
      said[i].answer = attempt.found ? PathStep::Answer::kYes : PathStep::Answer::kNo;
      said[i].reason = std::move(attempt.why);
      found = std::move(attempt.found);
    } catch (const Error& error) {
      said[i].answer = PathStep::Answer::kFailed;
      said[i].reason = error.status().message;
      if (steps != nullptr) *steps = std::move(said);
      throw;
    }
  }
  if (steps != nullptr) *steps = std::move(said);
  if (found) return *std::move(found);
  info.type == FileType::kDirectory ? fail_folder(asked) : fail_file(asked);
}

PathResolver::Attempt PathResolver::named_pointer(const std::string& asked,
                                                  std::vector<Note>& notes) const {
  const auto [folder, name] = split_path(asked);
  if (!is_pointer_name(name)) return {{}, "no pointer has this name"};
  const auto pointer = pointer_in(folder, name);
  if (!pointer) return {{}, "it is too large for a pointer"};
  return found_by(*pointer, notes);
}

PathResolver::Attempt PathResolver::found_by(const Pointer& pointer,
                                             std::vector<Note>& notes) const {
  return {follow(pointer, notes), fmt::format("{} names {}", pointer.name, pointer.shown())};
}

PathResolver::Attempt PathResolver::part_of_folder(const std::string& asked,
                                                   std::vector<Note>& notes) const {
  const auto [folder, name] = split_path(asked);
  if (!is_part_of_folder(name)) return {{}, "files of this name are no parts of folders"};
  if (is_index_beside_its_file(fs_, folder, name)) return {{}, "the file it names lies beside it"};
  auto found = recognise(folder, FileType::kDirectory);
  if (!found) return {{}, "its folder is no checkpoint"};
  found->is_named = true;
  std::string text =
      fmt::format("{} is part of the checkpoint {}", printable(name), printable(folder));
  notes.push_back({Finding::kPath, Severity::kInfo, text, "", ""});
  return {std::move(found), std::move(text)};
}

PathResolver::Attempt PathResolver::recognised_file(const std::string& asked,
                                                    std::vector<Note>& notes) const {
  // A link the user named is followed; what it leads to is opened in its own folder.
  auto found = recognise(fs_.canonical(asked), FileType::kRegular);
  if (!found) return {{}, "no format recognises it"};
  found->path = asked;
  found->is_named = true;
  found->part_of = parts_beside(asked);
  if (!found->part_of.empty())
    notes.push_back({Finding::kPath, Severity::kWarning,
                     fmt::format("{} is one of several parts of one model: {}",
                                 printable(split_path(asked).second), printable(found->part_of)),
                     "", ""});
  note_others_of_set(*found, notes);
  std::string why = found->description();
  return {std::move(found), std::move(why)};
}

void PathResolver::fail_file(const std::string& asked) const {
  const auto [folder, name] = split_path(asked);
  if (fs_.stat(asked)->size_bytes == 0)
    fail(Code::kCorrupt, fmt::format("\"{}\" is empty (0 bytes)", printable(asked)));
  if (!from_.empty()) refuse_other_format(asked, fs_.canonical(asked), FileType::kRegular);
  if (is_part_of_folder(name)) refuse_links(folder);
  refuse_other_kind(asked, *storage::open_linked_directory(fs_, folder)->open(name));
  if (has_checkpoint_suffix(name))
    fail(Code::kCorrupt, fmt::format("\"{}\" does not begin like any checkpoint; its first bytes "
                                     "are damaged or it is something else",
                                     printable(asked)));
  const std::string_view other = file_of_other_library(name);
  fail(Code::kUnsupported, fmt::format("\"{}\" is {}", printable(asked),
                                       other.empty() ? "in no supported format" : other));
}

void PathResolver::refuse_other_format(const std::string& asked, const std::string& path,
                                       FileType type) const {
  const auto found = PathResolver(fs_, "", pickle_limit_bytes_).recognise(path, type);
  if (!found) return;
  fail(Code::kUnsupported,
       fmt::format("\"{}\" is not {}; it looks like {} ({})", printable(asked), from_,
                   found->driver->id(), found->reason),
       "leave out --from");
}

void PathResolver::refuse_links(const std::string& folder) const {
  for (const FileInfo& info : fs_.open_directory(folder)->list()) {
    if (info.type != FileType::kSymlink) continue;
    if (!has_checkpoint_suffix(info.name) && !is_part_of_folder(info.name)) continue;
    fail(Code::kUnsupported,
         fmt::format("the files of \"{}\" are symbolic links that lead to no regular file, as {}",
                     printable(folder), printable(info.name)),
         "fetch what they lead to, or name the folder that has it");
  }
}

void PathResolver::refuse_special_files(const std::string& folder) const {
  for (const FileInfo& info : fs_.open_directory(folder)->list()) {
    if (info.type != FileType::kOther) continue;
    if (!has_checkpoint_suffix(info.name) && !is_part_of_folder(info.name)) continue;
    in_file(join_path(folder, info.name),
            [&] { fail(Code::kCorrupt, std::string(no_regular_file(info.type))); });
  }
}

void PathResolver::fail_folder(const std::string& asked) const {
  if (fs_.open_directory(asked)->list().empty())
    fail(Code::kNotFound, fmt::format("\"{}\" holds no checkpoint: it is empty", printable(asked)));
  if (!from_.empty()) {
    refuse_other_format(asked, asked, FileType::kDirectory);
    fail(Code::kUnsupported, fmt::format("\"{}\" holds no {} checkpoint", printable(asked), from_));
  }
  refuse_links(asked);
  refuse_special_files(asked);
  const std::vector<FileInfo> entries = fs_.open_directory(asked)->list();
  const std::string_view other = folder_of_other_library(entries);
  if (!other.empty())
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is {}, which is not read here", printable(asked), other));
  refuse_file_of_other_kind(fs_, asked, entries);
  const bool has_folders = std::ranges::any_of(
      entries, [](const FileInfo& info) { return info.type == FileType::kDirectory; });
  fail(Code::kUnsupported,
       fmt::format("\"{}\" holds no checkpoint in a supported format{}", printable(asked),
                   has_folders ? fmt::format(", {} levels down", kSearchDepth) : ""));
}

PathResolver::Attempt PathResolver::rank_folder(const std::string& asked,
                                                std::vector<Note>& notes) const {
  const std::string whole = whole_of_rank_folder(asked);
  if (whole.empty())
    return {{}, "its name is not a rank's, or the folder around it is not a checkpoint"};
  notes.push_back({Finding::kPath, Severity::kInfo,
                   fmt::format("{} is one rank's folder of the checkpoint {}, which is used",
                               printable(asked), printable(whole)),
                   "", ""});
  return {recognise(whole, FileType::kDirectory), printable(whole)};
}

PathResolver::Attempt PathResolver::recognised_folder(const std::string& asked,
                                                      std::vector<Note>& notes) const {
  std::vector<Note> inner;
  auto found = found_at(asked, FileType::kDirectory, inner);
  if (!found) return {{}, "no format recognises it"};
  if (found->is_named)
    return {{},
            "it holds weights and a pointer; the pointer names what was saved last, so it is "
            "followed first"};
  append(notes, inner);
  if (found->parts.empty()) note_others_below(*found, notes);
  std::string why = found->description();
  return {std::move(found), std::move(why)};
}

PathResolver::Attempt PathResolver::pointer_inside(const std::string& asked,
                                                   std::vector<Note>& notes) const {
  const auto pointer = pointer_in(asked);
  if (!pointer) return {{}, "it has none"};
  if (!pointer->path.empty()) return found_by(*pointer, notes);
  std::string text =
      fmt::format("the pointer {} names \"{}\", which is not there; the pointer was ignored",
                  pointer->name, pointer->shown());
  notes.push_back({Finding::kPath, Severity::kWarning, text, "", ""});
  return {{}, std::move(text)};
}

PathResolver::Attempt PathResolver::parts_inside(const std::string& asked,
                                                 std::vector<Note>& /*notes*/) const {
  auto whole = recognise_parts(asked);
  if (!whole) return {{}, "it has no folders that are parts of one state"};
  std::string why = whole->description();
  return {std::move(whole), std::move(why)};
}

PathResolver::Attempt PathResolver::one_below(const std::string& asked,
                                              std::vector<Note>& notes) const {
  std::vector<FoundCheckpoint> found = below(asked, notes);
  if (found.empty()) return {{}, "nothing below it is a checkpoint"};
  refuse_parts_alone(asked, found);
  if (found.size() > 1) fail_several(asked, found);
  notes.push_back({Finding::kPath, Severity::kInfo,
                   fmt::format("using {}, the one checkpoint below {}", printable(found[0].path),
                               printable(asked)),
                   "", ""});
  return {found[0], printable(found[0].path)};
}

void PathResolver::note_others_below(const FoundCheckpoint& chosen,
                                     std::vector<Note>& notes) const {
  if (!chosen.driver->capabilities().is_loose_files) return;
  std::vector<FoundCheckpoint> found;
  std::vector<Note> unreadable;
  for (const FileInfo& info : fs_.open_directory(chosen.path)->list()) {
    if (info.type != FileType::kDirectory || info.name.starts_with('.')) continue;
    try_child(join_path(chosen.path, info.name), info.name, info.type, kSearchDepth, found,
              unreadable);
  }
  if (found.empty()) return;
  std::string list;
  for (std::size_t i = 0; i < found.size() && i < 4; ++i)
    list += (i ? ", " : "") + printable(found[i].name);
  notes.push_back(
      {Finding::kPath, Severity::kInfo,
       fmt::format("{} is itself a checkpoint and is used; {} below it {} not: {}{}",
                   printable(chosen.path), found.size(), found.size() == 1 ? "is" : "are", list,
                   found.size() > 4 ? ", ..." : ""),
       "", ""});
}

std::vector<FoundCheckpoint> PathResolver::below(const std::string& folder,
                                                 std::vector<Note>& notes) const {
  std::vector<FoundCheckpoint> found;
  std::vector<Note> left_out;
  search(folder, "", kSearchDepth, found, left_out);
  drop_sidecars(found);
  shorten(left_out);
  append(notes, left_out);
  std::ranges::sort(found,
                    [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
  return found;
}

void PathResolver::search(const std::string& folder, const std::string& name, int depth,
                          std::vector<FoundCheckpoint>& found, std::vector<Note>& notes) const {
  for (const FileInfo& info : storage::open_linked_directory(fs_, folder)->list()) {
    if (info.name.starts_with('.') || info.name.ends_with(".tessera.json")) continue;
    const bool is_file = info.type == FileType::kRegular && has_checkpoint_suffix(info.name);
    if (!is_file && info.type != FileType::kDirectory) continue;
    const std::string path = join_path(folder, info.name);
    if (is_of_the_kernel(fs_, path, info)) continue;
    const std::string child = name.empty() ? info.name : name + "/" + info.name;
    try_child(path, child, info.type, depth, found, notes);
  }
}

void PathResolver::try_child(const std::string& path, const std::string& child, FileType type,
                             int depth, std::vector<FoundCheckpoint>& found,
                             std::vector<Note>& notes) const {
  try {
    search_child(path, child, type, depth, found, notes);
  } catch (const Error& error) {
    // A lost+found, a folder that vanished: no reason not to look at the rest.
    if (error.code() != Code::kIo && error.code() != Code::kNotFound) throw;
    notes.push_back({Finding::kPath, Severity::kWarning,
                     fmt::format("{} was left out: {}", printable(child), error.status().message),
                     "", ""});
  }
}

void PathResolver::search_child(const std::string& path, const std::string& child, FileType type,
                                int depth, std::vector<FoundCheckpoint>& found,
                                std::vector<Note>& notes) const {
  std::vector<Note> inner;  // of each row of a listing
  auto checkpoint = found_at(path, type, inner);
  if (!checkpoint && type == FileType::kDirectory) checkpoint = recognise_parts(path);
  if (checkpoint) {
    checkpoint->name = child;
    found.push_back(std::move(*checkpoint));
  } else if (type == FileType::kDirectory && depth > 1) {
    search(path, child, depth - 1, found, notes);
  }
}

}  // namespace tessera

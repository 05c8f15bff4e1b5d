// Pointers: files and links that name one checkpoint of several beside them.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>

#include "lib/format/probe_errors.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

constexpr std::uint64_t kPointerBytes = 4096;
constexpr std::string_view kMegatronPointer = "latest_checkpointed_iteration.txt";
constexpr std::string_view kUniversalPointer = "latest_universal";
constexpr std::array<std::string_view, 3> kPointers = {"latest", kMegatronPointer,
                                                       kUniversalPointer};

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

/// The neighbour a pointer's text names: Megatron counts iterations, everybody else writes the
/// name.
std::string neighbour_of(std::string_view pointer, const std::string& text) {
  if (pointer != kMegatronPointer || text.find_first_not_of("0123456789") != std::string::npos ||
      text.empty())
    return text;
  return fmt::format("iter_{:0>7}", text);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

bool is_pointer_name(std::string_view name) {
  return std::ranges::find(kPointers, name) != kPointers.end();
}

bool is_pointer_text(std::string_view name) { return is_plain_name(name) && trimmed(name) == name; }

std::string Pointer::shown() const {
  constexpr std::size_t kMostShown = 60;
  const std::string_view text(target);
  return printable(text.substr(0, kMostShown)) + (text.size() > kMostShown ? "..." : "");
}

FoundCheckpoint PathResolver::follow(const Pointer& pointer, std::vector<Note>& notes) const {
  if (pointer.path.empty())
    fail(Code::kNotFound, fmt::format("the pointer {} names \"{}\", which is not there",
                                      pointer.name, pointer.shown()));
  std::vector<Note> inner;
  FoundCheckpoint found = resolve_folder(pointer.path, inner);
  found.beside_folder = split_path(pointer.path).first;
  found.is_named = true;
  notes.push_back({Finding::kPath, Severity::kInfo,
                   fmt::format("using {}, named by {}", printable(found.path), pointer.name), "",
                   ""});
  return found;
}

FoundCheckpoint PathResolver::prefer_pointer(FoundCheckpoint found,
                                             std::vector<Note>& notes) const {
  const std::string_view format = found.driver->id();
  if (format != "safetensors" && format != "torch-save") return found;
  const auto pointer = pointer_in(found.path);
  if (!pointer || pointer->path.empty()) return found;
  try {
    return follow(*pointer, notes);
  } catch (const Error& error) {
    rethrow_unless_of_content(error);  // it leads to nothing that is a checkpoint
    return found;
  }
}

std::optional<Pointer> PathResolver::pointer_in(const std::string& folder,
                                                const std::string& only) const {
  const auto directory = fs_.open_directory(folder);
  for (const std::string_view each : kPointers) {
    const std::string name(each);
    if (!only.empty() && name != only) continue;
    const auto info = directory->stat(name);
    if (!info) continue;
    Pointer pointer{.name = name, .target = "", .path = ""};
    if (info->type == FileType::kSymlink) {
      const std::string path = fs_.canonical(join_path(folder, name));
      const std::string here = join_path(fs_.canonical(folder), "");
      pointer.target = path.starts_with(here) ? path.substr(here.size()) : path;
      if (is_plain_name(pointer.target) && fs_.stat(path))
        pointer.path = join_path(folder, pointer.target);
      return pointer;
    }
    if (info->type != FileType::kRegular) continue;
    const bool is_long = info->size_bytes > kPointerBytes;
    if (is_long && name != kMegatronPointer) continue;  // somebody's file that is called so
    Bytes text(std::min(info->size_bytes, kPointerBytes));
    directory->open(name)->read_at(0, text);
    pointer.target = trimmed(as_text(text));
    if (is_long) return pointer;
    const std::string neighbour = neighbour_of(name, pointer.target);
    const auto there = is_plain_name(neighbour) ? directory->stat(neighbour) : std::nullopt;
    if (there && there->type == FileType::kDirectory) pointer.path = join_path(folder, neighbour);
    return pointer;
  }
  return std::nullopt;
}

std::vector<Pointer> PathResolver::pointers_in(const std::string& folder) const {
  std::vector<Pointer> found;
  for (const std::string_view name : kPointers)
    if (auto pointer = pointer_in(folder, std::string(name))) found.push_back(std::move(*pointer));
  return found;
}

}  // namespace tessera

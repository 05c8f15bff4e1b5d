// Pointers: files and links that name one checkpoint of several beside them.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>

#include <algorithm>
#include <vector>

#include "lib/format/probe_errors.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

constexpr std::uint64_t kPointerBytes = 4096;
/// Whoever writes it: a file or link that names the newest.
constexpr PointerFile kLatest{"latest", ""};

/// Every kind of pointer, each once, in the order in which one is taken.
std::vector<PointerFile> pointer_files() {
  std::vector<PointerFile> out = {kLatest};
  for (const FormatDriver* driver : all_formats()) {
    const PointerFile pointer = driver->capabilities().pointer;
    if (!pointer.name.empty() &&
        std::ranges::find(out, pointer.name, &PointerFile::name) == out.end())
      out.push_back(pointer);
  }
  return out;
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

/// The neighbour a pointer's text names: some count, everybody else writes the name.
std::string neighbour_of(const PointerFile& pointer, const std::string& text) {
  if (pointer.numbered.empty() || !is_decimal(text)) return text;
  return fmt::format("{}{:0>7}", pointer.numbered, text);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

bool is_pointer_name(std::string_view name) {
  const std::vector<PointerFile> all = pointer_files();
  return std::ranges::find(all, name, &PointerFile::name) != all.end();
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
  FoundCheckpoint found = resolve(pointer.path, inner);
  found.beside_folder = split_path(pointer.path).first;
  found.is_named = true;
  notes.push_back({Finding::kPath, Severity::kInfo,
                   fmt::format("using {}, named by {}", printable(found.path), pointer.name), "",
                   ""});
  return found;
}

FoundCheckpoint PathResolver::prefer_pointer(FoundCheckpoint found,
                                             std::vector<Note>& notes) const {
  if (!found.driver->capabilities().is_weights) return found;
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
  for (const PointerFile& each : pointer_files()) {
    const std::string name(each.name);
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
    if (is_long && each.numbered.empty()) continue;  // somebody's file that is called so
    Bytes text(std::min(info->size_bytes, kPointerBytes));
    directory->open(name)->read_at(0, text);
    pointer.target = trimmed(as_text(text));
    if (is_long) return pointer;
    const std::string neighbour = neighbour_of(each, pointer.target);
    const auto there = is_plain_name(neighbour) ? directory->stat(neighbour) : std::nullopt;
    if (there && there->type == FileType::kDirectory) pointer.path = join_path(folder, neighbour);
    return pointer;
  }
  return std::nullopt;
}

std::vector<Pointer> PathResolver::pointers_in(const std::string& folder) const {
  std::vector<Pointer> found;
  for (const PointerFile& each : pointer_files())
    if (auto pointer = pointer_in(folder, std::string(each.name)))
      found.push_back(std::move(*pointer));
  return found;
}

}  // namespace tessera

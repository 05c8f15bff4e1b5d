#include "lib/storage/crash_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

void mix(std::uint64_t& hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 29;
}
void mix(std::uint64_t& hash, std::string_view text) {
  mix(hash, text.size());
  mix(hash, std::hash<std::string_view>{}(text));
}

Bytes content_of(const FileImage& file) {
  Bytes content = file.pages;
  content.resize(file.size_bytes);  // what was never written, or is cut off, reads as zeros
  return content;
}

// Folders and files below `inode` with their paths. Depth is that of a tree which our own code
// made.
template <class Visit>
void walk(const DiskImage& image, InodeId inode, const std::string& path, const Visit& visit) {
  const auto folder = image.folders.find(inode);
  if (folder == image.folders.end()) return;
  for (const auto& [name, child] : folder->second) {
    const std::string child_path = join_path(path, name);
    visit(child_path, child);
    walk(image, child, child_path, visit);
  }
}

}  // namespace

InodeId synced_by(const Unit& unit) {
  if (const auto* names = std::get_if<NameChange>(&unit)) return names->folder;
  if (const auto* page = std::get_if<PageWrite>(&unit)) return page->inode;
  return std::get<SizeChange>(unit).inode;
}

void DiskImage::apply(const Unit& unit) {
  if (const auto* names = std::get_if<NameChange>(&unit)) {
    FolderImage& folder = folders[names->folder];
    for (const auto& [name, inode] : names->entries) {
      if (inode == kNoInode) {
        folder.erase(name);
      } else {
        folder[name] = inode;
      }
    }
  } else if (const auto* page = std::get_if<PageWrite>(&unit)) {
    Bytes& pages = files[page->inode].pages;
    if (pages.size() < page->offset + page->length) pages.resize(page->offset + page->length);
    std::memcpy(pages.data() + page->offset, page->source->data() + page->begin, page->length);
  } else {
    const auto& change = std::get<SizeChange>(unit);
    FileImage& file = files[change.inode];
    if (!change.at_least && change.size_bytes < file.pages.size())
      file.pages.resize(change.size_bytes);
    file.size_bytes =
        change.at_least ? std::max(file.size_bytes, change.size_bytes) : change.size_bytes;
  }
}

std::uint64_t DiskImage::hash() const {
  std::uint64_t hash = 1;
  walk(*this, kRootInode, "", [&](const std::string& path, InodeId inode) {
    mix(hash, path);
    const auto file = files.find(inode);
    mix(hash, std::uint64_t{folders.contains(inode)});
    if (file == files.end()) return;
    mix(hash, as_text(content_of(file->second)));
  });
  return hash;
}

void DiskImage::materialise(MemoryFileSystem& fs) const {
  walk(*this, kRootInode, "/", [&](const std::string& path, InodeId inode) {
    if (folders.contains(inode)) {
      fs.make_directories(path);
    } else {
      const auto file = files.find(inode);
      fs.write_file(path, file == files.end() ? Bytes() : content_of(file->second));
    }
  });
}

void CrashModel::play(const TraceStep& step) {
  pending_.insert(pending_.end(), step.units.begin(), step.units.end());
  if (step.synced == kNoInode) return;
  std::vector<Unit> rest;
  for (Unit& unit : pending_) {
    if (synced_by(unit) == step.synced) {
      durable_.apply(unit);
    } else {
      rest.push_back(std::move(unit));
    }
  }
  pending_ = std::move(rest);
}

}  // namespace tessera::storage

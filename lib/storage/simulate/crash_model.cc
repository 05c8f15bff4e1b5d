#include "lib/storage/simulate/crash_model.h"

#include <tessera/storage/checksum.h>

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

Bytes& FileImage::own() {
  hash_ = 0;
  if (!pages_) pages_ = std::make_shared<Bytes>();
  if (pages_.use_count() > 1) pages_ = std::make_shared<Bytes>(*pages_);
  return *pages_;
}

void FileImage::write(std::uint64_t offset, ByteView data) {
  Bytes& pages = own();
  if (pages.size() < offset + data.size()) pages.resize(offset + data.size());
  std::memcpy(pages.data() + offset, data.data(), data.size());
}

void FileImage::resize(std::uint64_t size_bytes, bool at_least) {
  if (!at_least && pages_ && size_bytes < pages_->size()) own().resize(size_bytes);
  size_bytes_ = at_least ? std::max(size_bytes_, size_bytes) : size_bytes;
  hash_ = 0;
}

Bytes FileImage::content() const {
  Bytes content = pages_ ? *pages_ : Bytes();
  content.resize(size_bytes_);
  return content;
}

std::uint64_t FileImage::hash() const {
  if (hash_ == 0) {
    const Bytes bytes = content();
    const std::size_t half = bytes.size() / 2;
    mix(hash_, bytes.size());
    mix(hash_, std::uint64_t{crc32(0, ByteView(bytes).first(half))} << 32 |
                   crc32(0, ByteView(bytes).subspan(half)));
    hash_ |= 1;
  }
  return hash_;
}

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
    files[page->inode].write(page->offset,
                             ByteView(*page->source).subspan(page->begin, page->length));
  } else {
    const auto& change = std::get<SizeChange>(unit);
    files[change.inode].resize(change.size_bytes, change.at_least);
  }
}

std::uint64_t DiskImage::hash() const {
  std::uint64_t hash = 1;
  walk(*this, kRootInode, "", [&](const std::string& path, InodeId inode) {
    mix(hash, path);
    const auto file = files.find(inode);
    mix(hash, std::uint64_t{folders.contains(inode)});
    if (file == files.end()) return;
    mix(hash, file->second.hash());
  });
  return hash;
}

void DiskImage::materialise(MemoryFileSystem& fs) const {
  walk(*this, kRootInode, "/", [&](const std::string& path, InodeId inode) {
    if (folders.contains(inode)) {
      fs.make_directories(path);
    } else {
      const auto file = files.find(inode);
      fs.write_file(path, file == files.end() ? Bytes() : file->second.content());
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

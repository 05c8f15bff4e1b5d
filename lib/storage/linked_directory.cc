#include "lib/storage/linked_directory.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

/// Files there are views of the machine: no checkpoint's.
bool is_of_the_kernel(std::string_view path) {
  constexpr std::array<std::string_view, 3> kFolders{"/proc/", "/sys/", "/dev/"};
  return std::ranges::any_of(kFolders, [&](auto folder) { return path.starts_with(folder); });
}

class LinkedDirectory final : public Directory {
 public:
  LinkedDirectory(const FileSystem& fs, std::unique_ptr<Directory> directory)
      : fs_(fs), directory_(std::move(directory)) {}

  const std::string& path() const override { return directory_->path(); }

  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    try {
      return directory_->open(relative, mode);
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt) throw;
      const auto info = directory_->stat(relative);
      if (!info || info->type != FileType::kSymlink) throw;
      const SplitPath target = target_of(relative);
      if (target.name.empty()) throw;
      return fs_.open_directory(target.parent)->open(target.name, mode);
    }
  }

  std::optional<FileInfo> stat(std::string_view relative) const override {
    std::optional<FileInfo> info = directory_->stat(relative);
    if (info && info->type == FileType::kSymlink) follow(relative, *info);
    return info;
  }

  std::vector<FileInfo> list(std::string_view relative) const override {
    std::vector<FileInfo> entries = directory_->list(relative);
    for (FileInfo& entry : entries)
      if (entry.type == FileType::kSymlink)
        follow(join_path(std::string(relative), entry.name), entry);
    return entries;
  }

 private:
  /// What the link leads to, whatever that is; no name: nothing that may be looked at.
  SplitPath target_of(std::string_view relative) const {
    try {
      const std::string path = fs_.canonical(join_path(directory_->path(), relative));
      return is_of_the_kernel(path) ? SplitPath{} : split_path(path);
    } catch (const Error&) {  // it leads nowhere
      return {};
    }
  }

  /// Says what a link to a regular file is, under the link's name.
  void follow(std::string_view relative, FileInfo& info) const {
    if (target_of(relative).name.empty()) return;
    try {
      auto file = fs_.stat(join_path(directory_->path(), relative));
      if (!file || file->type != FileType::kRegular) return;
      file->name = info.name;
      info = std::move(*file);
    } catch (const Error& error) {
      if (error.code() != Code::kIo && error.code() != Code::kNotFound) throw;
    }
  }

  const FileSystem& fs_;
  std::unique_ptr<Directory> directory_;
};

}  // namespace

std::unique_ptr<Directory> follow_file_links(const FileSystem& fs,
                                             std::unique_ptr<Directory> directory) {
  return std::make_unique<LinkedDirectory>(fs, std::move(directory));
}

std::unique_ptr<Directory> open_linked_directory(const FileSystem& fs, const std::string& path) {
  return follow_file_links(fs, fs.open_directory(path));
}

}  // namespace tessera::storage

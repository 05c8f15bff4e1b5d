#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/simulate/memory_file.h"
#include "lib/storage/simulate/memory_tree.h"

namespace tessera {

using namespace storage;

struct MemoryFileSystem::Impl {
  explicit Impl(const MemoryFileSystemOptions& o) : options(o) {}

  MemoryFileSystemOptions options;
  mutable std::mutex mutex;  // the tree; file data has its own lock inside each node
  NodePtr root = std::make_shared<MemoryNode>(FileType::kDirectory);
  std::shared_ptr<std::atomic<std::uint64_t>> used =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::set<std::string> locks;

  Lookup find(const char* verb, const std::string& path, bool follow_last) const {
    Lookup found = look_up(root, path, follow_last);
    if (found.error != 0) fail_errno(verb, path, found.error);
    return found;
  }
  Lookup existing(const char* verb, const std::string& path, bool follow_last) const {
    Lookup found = find(verb, path, follow_last);
    if (!found.node) fail_errno(verb, path, ENOENT);
    return found;
  }
  NodePtr add_file(Lookup& where) {
    auto node = std::make_shared<MemoryNode>(FileType::kRegular);
    node->used_bytes = used;
    where.parent->children[where.name] = node;
    return node;
  }
  void move(const Lookup& from, const Lookup& to) {
    if (!from.parent || !to.parent) fail_errno("rename", from.path, EBUSY);  // the root
    const NodePtr node = from.node;
    from.parent->children.erase(from.name);
    to.parent->children[to.name] = node;
  }
};

namespace {

class MemoryLock final : public FileLock {
 public:
  explicit MemoryLock(std::function<void()> release) : release_(std::move(release)) {}
  ~MemoryLock() override {
    try {
      release_();
    } catch (...) {  // no memory to find its name: the lock is free, the name stays
    }
  }

 private:
  std::function<void()> release_;
};

class MemoryDirectory final : public Directory {
 public:
  MemoryDirectory(NodePtr node, std::string path, std::mutex& mutex)
      : node_(std::move(node)), path_(std::move(path)), mutex_(mutex) {}

  const std::string& path() const override { return path_; }

  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    confined_components(relative, path_);
    const std::lock_guard lock(mutex_);
    NodePtr node = look_up_beneath(node_, path_, relative);
    std::string path = join_path(path_, relative);
    if (!node) fail_errno("open", path, ENOENT);
    if (node->type == FileType::kSymlink) fail_link(path);
    if (node->type != FileType::kRegular) fail_not_regular(path);
    return open_memory_read_file(std::move(node), std::move(path), mode);
  }

  std::optional<FileInfo> stat(std::string_view relative) const override {
    confined_components(relative, path_);
    const std::lock_guard lock(mutex_);
    const NodePtr node = look_up_beneath(node_, path_, relative);
    if (!node) return std::nullopt;
    return node_info(std::string(relative), *node);
  }

  std::vector<FileInfo> list(std::string_view relative) const override {
    const std::lock_guard lock(mutex_);
    const NodePtr node = look_up_beneath(node_, path_, relative);
    const std::string path = join_path(path_, relative);
    if (!node) fail_errno("list", path, ENOENT);
    if (node->type == FileType::kSymlink) fail_link(path);
    if (node->type != FileType::kDirectory) fail_errno("list", path, ENOTDIR);
    std::vector<FileInfo> entries;
    for (const auto& [name, child] : node->children) entries.push_back(node_info(name, *child));
    return entries;
  }

 private:
  NodePtr node_;
  std::string path_;
  std::mutex& mutex_;
};

void list_below(const MemoryNode& node, const std::string& prefix,
                std::map<std::string, std::string>& out) {
  for (const auto& [name, child] : node.children) {
    const std::string path = prefix + name;
    switch (child->type) {
      case FileType::kDirectory:
        out[path + "/"] = "";
        list_below(*child, path + "/", out);
        break;
      case FileType::kSymlink:
        out[path + "@"] = child->target;
        break;
      default: {
        const std::shared_lock lock(child->data_mutex);
        out[path] = std::string(as_text(child->data));
      }
    }
  }
}

}  // namespace

MemoryFileSystem::MemoryFileSystem(const MemoryFileSystemOptions& options)
    : impl_(std::make_shared<Impl>(options)) {}
MemoryFileSystem::~MemoryFileSystem() = default;

std::optional<FileInfo> MemoryFileSystem::stat(const std::string& path) const {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = look_up(impl_->root, path, /*follow_last=*/true);
  if (found.error == ELOOP) fail_errno("stat", path, ELOOP);
  if (!found.node) return std::nullopt;
  return node_info(path, *found.node);
}

std::unique_ptr<Directory> MemoryFileSystem::open_directory(const std::string& path) const {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->existing("open folder", path, true);
  if (found.node->type != FileType::kDirectory) fail_errno("open folder", path, ENOTDIR);
  return std::make_unique<MemoryDirectory>(found.node, path, impl_->mutex);
}

std::string MemoryFileSystem::canonical(const std::string& path) const {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->find("resolve", path, true);
  // A link to nowhere stays as it is, with its own folder resolved.
  return found.node ? found.path : impl_->find("resolve", path, false).path;
}

std::uint64_t MemoryFileSystem::free_bytes(const std::string&) const {
  const std::uint64_t used = impl_->used->load();
  return used < impl_->options.capacity_bytes ? impl_->options.capacity_bytes - used : 0;
}

std::unique_ptr<WriteFile> MemoryFileSystem::create(const std::string& path, IoMode) {
  const std::lock_guard lock(impl_->mutex);
  Lookup found = impl_->find("create", path, false);
  if (found.node) fail_errno("create", path, EEXIST);
  return open_memory_write_file(impl_->add_file(found), path, impl_->options.capacity_bytes);
}

std::unique_ptr<WriteFile> MemoryFileSystem::reopen(const std::string& path, IoMode) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->existing("open", path, false);
  if (found.node->type == FileType::kSymlink) fail_link(path);
  if (found.node->type != FileType::kRegular) fail_not_regular(path);
  return open_memory_write_file(found.node, path, impl_->options.capacity_bytes);
}

void MemoryFileSystem::create_directory(const std::string& path) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->find("create folder", path, false);
  if (found.node) fail_errno("create folder", path, EEXIST);
  found.parent->children[found.name] = std::make_shared<MemoryNode>(FileType::kDirectory);
}

void MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup source = impl_->existing("rename", from, false);
  const Lookup target = impl_->find("rename", to, false);
  if (target.node == source.node) return;
  if (target.node) {
    const bool folder = target.node->type == FileType::kDirectory;
    if (folder != (source.node->type == FileType::kDirectory))
      fail_errno("rename", fmt::format("{} to {}", from, to), folder ? EISDIR : ENOTDIR);
    if (!target.node->children.empty())
      fail(Code::kAlreadyExists, fmt::format("{} already exists", to));
  }
  impl_->move(source, target);
}

void MemoryFileSystem::rename_new(const std::string& from, const std::string& to) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup source = impl_->existing("rename", from, false);
  const Lookup target = impl_->find("rename", to, false);
  if (target.node) fail(Code::kAlreadyExists, fmt::format("{} already exists", to));
  impl_->move(source, target);
}

bool MemoryFileSystem::exchange(const std::string& a, const std::string& b) {
  if (!impl_->options.has_exchange) return false;
  const std::lock_guard lock(impl_->mutex);
  const Lookup first = impl_->existing("exchange", a, false);
  const Lookup second = impl_->existing("exchange", b, false);
  if (!first.parent || !second.parent) fail_errno("exchange", a, EBUSY);
  first.parent->children[first.name] = second.node;
  second.parent->children[second.name] = first.node;
  return true;
}

void MemoryFileSystem::remove_file(const std::string& path) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->existing("remove", path, false);
  if (found.node->type == FileType::kDirectory) fail_errno("remove", path, EISDIR);
  found.parent->children.erase(found.name);
}

void MemoryFileSystem::remove_tree(const std::string& path) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = look_up(impl_->root, path, false);
  if (found.node && found.parent) found.parent->children.erase(found.name);
}

void MemoryFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->existing("sync folder", path, false);
  if (found.node->type != FileType::kDirectory) fail_errno("sync folder", path, ENOTDIR);
}

std::unique_ptr<FileLock> MemoryFileSystem::try_lock(const std::string& path) {
  if (!impl_->options.has_locks)
    fail(Code::kUnsupported, fmt::format("this file system has no locks: {}", path));
  const std::lock_guard lock(impl_->mutex);
  Lookup found = impl_->find("lock", path, false);
  if (!impl_->locks.insert(found.path).second) return nullptr;
  if (!found.node) impl_->add_file(found);
  // Weak: a lock may outlive the file system (a test that drops the disk under a running stage).
  return std::make_unique<MemoryLock>([weak = std::weak_ptr(impl_), path = found.path] {
    const auto impl = weak.lock();
    if (!impl) return;
    const std::lock_guard inner(impl->mutex);
    impl->locks.erase(path);
    const Lookup again = look_up(impl->root, path, false);
    if (again.node && again.parent) again.parent->children.erase(again.name);
  });
}

void MemoryFileSystem::make_directories(const std::string& path) {
  const std::lock_guard lock(impl_->mutex);
  NodePtr at = impl_->root;
  const std::size_t first = std::min(path.find_first_not_of('/'), path.size());
  for (const std::string& part : confined_components(path.substr(first), "/", true)) {
    NodePtr& child = at->children[part];
    if (!child) child = std::make_shared<MemoryNode>(FileType::kDirectory);
    if (child->type != FileType::kDirectory) fail_errno("create folder", path, ENOTDIR);
    at = child;
  }
}

void MemoryFileSystem::write_file(const std::string& path, ByteView content) {
  make_directories(split_path(path).parent);
  const std::lock_guard lock(impl_->mutex);
  Lookup found = impl_->find("create", path, false);
  const NodePtr node = impl_->add_file(found);
  *impl_->used += content.size();
  node->data.assign(content.begin(), content.end());
}

void MemoryFileSystem::add_symlink(const std::string& path, const std::string& target) {
  make_directories(split_path(path).parent);
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->find("create", path, false);
  auto node = std::make_shared<MemoryNode>(FileType::kSymlink);
  node->target = target;
  found.parent->children[found.name] = std::move(node);
}

Bytes MemoryFileSystem::read_file(const std::string& path) const {
  const std::lock_guard lock(impl_->mutex);
  const Lookup found = impl_->existing("read", path, true);
  const std::shared_lock data_lock(found.node->data_mutex);
  return found.node->data;
}

std::map<std::string, std::string> MemoryFileSystem::contents(const std::string& path) const {
  const std::lock_guard lock(impl_->mutex);
  std::map<std::string, std::string> out;
  list_below(*impl_->existing("list", path, true).node, "", out);
  return out;
}

}  // namespace tessera

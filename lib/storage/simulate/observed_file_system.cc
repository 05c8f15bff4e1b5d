#include <tessera/storage/observed_file_system.h>

#include <type_traits>

#include "lib/storage/path_rules.h"

namespace tessera {

std::string_view io_op_name(IoOp op) {
  switch (op) {
    case IoOp::kStat:
    case IoOp::kStatEntry:
      return "stat";
    case IoOp::kOpenDirectory:
      return "open folder";
    case IoOp::kCanonical:
      return "resolve";
    case IoOp::kFreeBytes:
      return "ask the free space of";
    case IoOp::kList:
      return "list";
    case IoOp::kOpen:
      return "open";
    case IoOp::kRead:
      return "read";
    case IoOp::kCreate:
      return "create";
    case IoOp::kReopen:
      return "reopen";
    case IoOp::kWrite:
      return "write";
    case IoOp::kAllocate:
      return "reserve room for";
    case IoOp::kSync:
      return "sync";
    case IoOp::kClose:
      return "close";
    case IoOp::kCreateDirectory:
      return "create folder";
    case IoOp::kRename:
    case IoOp::kRenameNew:
      return "rename";
    case IoOp::kExchange:
      return "exchange";
    case IoOp::kRemoveFile:
    case IoOp::kRemoveTree:
      return "remove";
    case IoOp::kSyncDirectory:
      return "sync folder";
    case IoOp::kLock:
      return "lock";
  }
  return "use";
}

template <class F>
auto ObservedFileSystem::observe(const IoEvent& event, F&& call) const {
  before(event);
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    after(event);
  } else {
    auto result = call();
    after(event);
    return result;
  }
}

class ObservedReadFile final : public ReadFile {
 public:
  ObservedReadFile(const ObservedFileSystem& fs, std::unique_ptr<ReadFile> file,
                   std::uint64_t handle)
      : fs_(fs), file_(std::move(file)), handle_(handle) {}

  std::uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& path() const override { return file_->path(); }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const IoEvent event{.op = IoOp::kRead,
                        .path = path(),
                        .offset = offset,
                        .length = out.size(),
                        .handle = handle_};
    fs_.observe(event, [&] { file_->read_at(offset, out); });
  }

 private:
  const ObservedFileSystem& fs_;
  std::unique_ptr<ReadFile> file_;
  std::uint64_t handle_;
};

class ObservedWriteFile final : public WriteFile {
 public:
  ObservedWriteFile(const ObservedFileSystem& fs, std::unique_ptr<WriteFile> file,
                    std::uint64_t handle)
      : fs_(fs), file_(std::move(file)), handle_(handle) {}

  const std::string& path() const override { return file_->path(); }
  void write_at(std::uint64_t offset, ByteView data) override {
    const IoEvent event{.op = IoOp::kWrite,
                        .path = path(),
                        .offset = offset,
                        .length = data.size(),
                        .data = data,
                        .handle = handle_};
    fs_.observe(event, [&] { file_->write_at(offset, data); });
  }
  void allocate(std::uint64_t size_bytes) override {
    const IoEvent event{
        .op = IoOp::kAllocate, .path = path(), .length = size_bytes, .handle = handle_};
    fs_.observe(event, [&] { file_->allocate(size_bytes); });
  }
  void sync() override {
    fs_.observe({.op = IoOp::kSync, .path = path(), .handle = handle_}, [&] { file_->sync(); });
  }
  void close() override {
    fs_.observe({.op = IoOp::kClose, .path = path(), .handle = handle_}, [&] { file_->close(); });
  }

 private:
  const ObservedFileSystem& fs_;
  std::unique_ptr<WriteFile> file_;
  std::uint64_t handle_;
};

class ObservedDirectory final : public Directory {
 public:
  ObservedDirectory(const ObservedFileSystem& fs, std::unique_ptr<Directory> directory)
      : fs_(fs), directory_(std::move(directory)) {}

  const std::string& path() const override { return directory_->path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    const std::string file = storage::join_path(path(), relative);
    const std::uint64_t handle = fs_.next_handle();
    auto opened = fs_.observe({.op = IoOp::kOpen, .path = file, .handle = handle},
                              [&] { return directory_->open(relative, mode); });
    return std::make_unique<ObservedReadFile>(fs_, std::move(opened), handle);
  }
  std::optional<FileInfo> stat(std::string_view relative) const override {
    const std::string file = storage::join_path(path(), relative);
    return fs_.observe({.op = IoOp::kStatEntry, .path = file},
                       [&] { return directory_->stat(relative); });
  }
  std::vector<FileInfo> list(std::string_view relative) const override {
    const std::string folder = storage::join_path(path(), relative);
    return fs_.observe({.op = IoOp::kList, .path = folder},
                       [&] { return directory_->list(relative); });
  }

 private:
  const ObservedFileSystem& fs_;
  std::unique_ptr<Directory> directory_;
};

std::optional<FileInfo> ObservedFileSystem::stat(const std::string& path) const {
  return observe({.op = IoOp::kStat, .path = path}, [&] { return inner_.stat(path); });
}

std::unique_ptr<Directory> ObservedFileSystem::open_directory(const std::string& path) const {
  auto opened = observe({.op = IoOp::kOpenDirectory, .path = path},
                        [&] { return inner_.open_directory(path); });
  return std::make_unique<ObservedDirectory>(*this, std::move(opened));
}

std::string ObservedFileSystem::canonical(const std::string& path) const {
  return observe({.op = IoOp::kCanonical, .path = path}, [&] { return inner_.canonical(path); });
}

std::uint64_t ObservedFileSystem::free_bytes(const std::string& path) const {
  return observe({.op = IoOp::kFreeBytes, .path = path}, [&] { return inner_.free_bytes(path); });
}

std::unique_ptr<WriteFile> ObservedFileSystem::create(const std::string& path, IoMode mode) {
  const std::uint64_t handle = next_handle();
  auto file = observe({.op = IoOp::kCreate, .path = path, .handle = handle},
                      [&] { return inner_.create(path, mode); });
  return std::make_unique<ObservedWriteFile>(*this, std::move(file), handle);
}

std::unique_ptr<WriteFile> ObservedFileSystem::reopen(const std::string& path, IoMode mode) {
  const std::uint64_t handle = next_handle();
  auto file = observe({.op = IoOp::kReopen, .path = path, .handle = handle},
                      [&] { return inner_.reopen(path, mode); });
  return std::make_unique<ObservedWriteFile>(*this, std::move(file), handle);
}

void ObservedFileSystem::create_directory(const std::string& path) {
  observe({.op = IoOp::kCreateDirectory, .path = path}, [&] { inner_.create_directory(path); });
}

void ObservedFileSystem::rename(const std::string& from, const std::string& to) {
  observe({.op = IoOp::kRename, .path = from, .other = to}, [&] { inner_.rename(from, to); });
}

void ObservedFileSystem::rename_new(const std::string& from, const std::string& to) {
  observe({.op = IoOp::kRenameNew, .path = from, .other = to},
          [&] { inner_.rename_new(from, to); });
}

bool ObservedFileSystem::exchange(const std::string& a, const std::string& b) {
  const IoEvent event{.op = IoOp::kExchange, .path = a, .other = b};
  before(event);
  const bool done = inner_.exchange(a, b);
  if (done) after(event);
  return done;
}

void ObservedFileSystem::remove_file(const std::string& path) {
  observe({.op = IoOp::kRemoveFile, .path = path}, [&] { inner_.remove_file(path); });
}

void ObservedFileSystem::remove_tree(const std::string& path) {
  observe({.op = IoOp::kRemoveTree, .path = path}, [&] { inner_.remove_tree(path); });
}

void ObservedFileSystem::sync_directory(const std::string& path) {
  observe({.op = IoOp::kSyncDirectory, .path = path}, [&] { inner_.sync_directory(path); });
}

std::unique_ptr<FileLock> ObservedFileSystem::try_lock(const std::string& path) {
  const IoEvent event{.op = IoOp::kLock, .path = path};
  before(event);
  auto lock = inner_.try_lock(path);
  if (lock) after(event);
  return lock;
}

}  // namespace tessera

#include "lib/storage/simulate/memory_file.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "lib/storage/posix/errno_error.h"
#include "lib/storage/read_rules.h"

namespace tessera::storage {

namespace {

class MemoryReadFile final : public ReadFile {
 public:
  MemoryReadFile(NodePtr node, std::string path, IoMode mode)
      : node_(std::move(node)),
        path_(std::move(path)),
        mode_(mode),
        size_bytes_(node_->size_bytes()) {}

  std::uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& path() const override { return path_; }

  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const std::size_t wanted = readable_bytes(path_, size_bytes_, mode_, offset, out.size());
    const std::shared_lock lock(node_->data_mutex);
    if (node_->data.size() < offset + wanted) {
      fail(Code::kCorrupt, fmt::format("{} shrank from {} to {} bytes while it was read", path_,
                                       size_bytes_, node_->data.size()));
    }
    if (wanted > 0) std::memcpy(out.data(), node_->data.data() + offset, wanted);
  }

 private:
  NodePtr node_;
  std::string path_;
  IoMode mode_;
  std::uint64_t size_bytes_;  // at opening, as on the real one
};

class MemoryWriteFile final : public WriteFile {
 public:
  MemoryWriteFile(NodePtr node, std::string path, std::uint64_t capacity_bytes)
      : node_(std::move(node)), path_(std::move(path)), capacity_bytes_(capacity_bytes) {}

  const std::string& path() const override { return path_; }

  void write_at(std::uint64_t offset, ByteView data) override {
    TESSERA_CHECK(!closed_);
    if (data.empty()) return;
    const std::unique_lock lock(node_->data_mutex);
    if (offset > capacity_bytes_ || data.size() > capacity_bytes_ - offset)
      fail_errno("write", path_, ENOSPC);
    if (node_->data.size() < offset + data.size()) resize(offset + data.size(), "write");
    std::memcpy(node_->data.data() + offset, data.data(), data.size());
    ++node_->mtime_ns;
  }

  void allocate(std::uint64_t size_bytes) override {
    TESSERA_CHECK(!closed_);
    const std::unique_lock lock(node_->data_mutex);
    resize(size_bytes, "reserve room for");
    ++node_->mtime_ns;
  }

  void sync() override { TESSERA_CHECK(!closed_); }
  void close() override {
    TESSERA_CHECK(!closed_);
    closed_ = true;
  }

 private:
  void resize(std::uint64_t size_bytes, const char* verb) {
    const std::uint64_t now = node_->data.size();
    std::atomic<std::uint64_t>& used = *node_->used_bytes;
    if (size_bytes > now) {
      const std::uint64_t more = size_bytes - now;
      if (more > capacity_bytes_ || used.fetch_add(more) > capacity_bytes_ - more) {
        if (more <= capacity_bytes_) used -= more;
        fail_errno(verb, path_, ENOSPC);
      }
    } else {
      used -= now - size_bytes;
    }
    node_->data.resize(size_bytes);
  }

  NodePtr node_;
  std::string path_;
  std::uint64_t capacity_bytes_;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<ReadFile> open_memory_read_file(NodePtr node, std::string path, IoMode mode) {
  return std::make_unique<MemoryReadFile>(std::move(node), std::move(path), mode);
}

std::unique_ptr<WriteFile> open_memory_write_file(NodePtr node, std::string path,
                                                  std::uint64_t capacity_bytes) {
  return std::make_unique<MemoryWriteFile>(std::move(node), std::move(path), capacity_bytes);
}

}  // namespace tessera::storage

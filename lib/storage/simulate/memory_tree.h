#pragma once
// The tree behind MemoryFileSystem: nodes, and finding them. Not thread-safe by itself; file data
// has its own lock.
#include <tessera/storage/file_system.h>

#include <atomic>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>

namespace tessera::storage {

struct MemoryNode {
  explicit MemoryNode(FileType node_type) : type(node_type) {}
  ~MemoryNode();

  FileType type;
  std::map<std::string, std::shared_ptr<MemoryNode>, std::less<>> children;  // folders
  std::string target;                                                        // links
  mutable std::shared_mutex data_mutex;
  Bytes data;                             // regular files
  std::atomic<std::int64_t> mtime_ns{0};  // counts changes: no clock, so that runs repeat
  std::shared_ptr<std::atomic<std::uint64_t>>
      used_bytes;  // of the file system; null outside regular files

  std::uint64_t size_bytes() const;
};
using NodePtr = std::shared_ptr<MemoryNode>;

FileInfo node_info(std::string name, const MemoryNode& node);

/// What a path leads to. `node` is null when only the last component is absent; then `parent` and
/// `name` say where it would be.
struct Lookup {
  NodePtr parent;
  std::string name;
  NodePtr node;
  std::string path;  // canonical
  int error = 0;     // errno when even the parent cannot be reached
};

/// Follows links on the way, and in the last component when `follow_last`.
Lookup look_up(const NodePtr& root, std::string_view path, bool follow_last);

/// Below `start`, links refused (kCorrupt), as open_beneath does. Null when absent.
NodePtr look_up_beneath(const NodePtr& start, std::string_view start_path,
                        std::string_view relative);

}  // namespace tessera::storage

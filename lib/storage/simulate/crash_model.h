#pragma once
// The two halves of a simulated disk: what is durable, and the units that are pending.
#include <tessera/storage/memory_file_system.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace tessera::storage {

using InodeId = int;
inline constexpr InodeId kNoInode = -1;
inline constexpr InodeId kRootInode = 0;

/// Bytes of one page of a file.
struct PageWrite {
  InodeId inode;
  std::uint64_t offset;
  std::shared_ptr<const Bytes> source;  // the whole write, shared by its pages
  std::size_t begin;                    // the page's part of it
  std::size_t length;
};
/// The file's size becomes, or is at least, this.
struct SizeChange {
  InodeId inode;
  std::uint64_t size_bytes;
  bool at_least;
};
/// Names of one folder; kNoInode removes.
struct NameChange {
  InodeId folder;
  std::vector<std::pair<std::string, InodeId>> entries;
};
using Unit = std::variant<PageWrite, SizeChange, NameChange>;

/// The file or folder whose sync makes a unit durable.
InodeId synced_by(const Unit& unit);

/// Copies share their bytes until one of them is written, so that a crash state costs what it
/// changes, not what the disk holds.
class FileImage {
 public:
  FileImage() = default;
  explicit FileImage(Bytes content)
      : size_bytes_(content.size()), pages_(std::make_shared<Bytes>(std::move(content))) {}
  void write(std::uint64_t offset, ByteView data);
  void resize(std::uint64_t size_bytes, bool at_least);
  /// What was never written, or was cut off, reads as zeros.
  Bytes content() const;
  std::uint64_t hash() const;

 private:
  Bytes& own();

  std::uint64_t size_bytes_ = 0;
  std::shared_ptr<Bytes> pages_;    // may be longer or shorter than the size; null: none
  mutable std::uint64_t hash_ = 0;  // 0: not known
};
using FolderImage = std::map<std::string, InodeId>;

class DiskImage {
 public:
  std::map<InodeId, FileImage> files;
  std::map<InodeId, FolderImage> folders;

  void apply(const Unit& unit);
  /// Hash of everything that the root leads to.
  std::uint64_t hash() const;
  void materialise(MemoryFileSystem& fs) const;
};

/// One step of the recorded work: units that become pending, then at most one sync.
struct TraceStep {
  std::vector<Unit> units;
  InodeId synced = kNoInode;
  std::string what;
};

/// The disk while a trace is played: durable image and pending units in order.
class CrashModel {
 public:
  explicit CrashModel(DiskImage durable) : durable_(std::move(durable)) {}
  void play(const TraceStep& step);
  const DiskImage& durable() const { return durable_; }
  const std::vector<Unit>& pending() const { return pending_; }

 private:
  DiskImage durable_;
  std::vector<Unit> pending_;
};

}  // namespace tessera::storage

#pragma once
// What the storage tests share: temporary folders, a file system of each kind, and looking at a
// whole tree.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/options.h"

namespace tessera::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = std::filesystem::canonical(pattern).string();
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A file system and a folder in it to work in.
struct Rig {
  std::string kind;
  std::unique_ptr<TempDir> temp;  // of the real one
  std::unique_ptr<FileSystem> fs;
  std::string root;
  std::string at(const std::string& name) const { return root + "/" + name; }
};

/// File systems that a contract holds on.
inline constexpr const char* kRigKinds[] = {"memory", "memory without exchange", "posix",
                                            "posix without renameat2"};

/// `kind`: of kRigKinds.
inline Rig make_rig(const std::string& kind) {
  Rig rig;
  rig.kind = kind;
  if (kind.starts_with("memory")) {
    auto memory = std::make_unique<MemoryFileSystem>(
        MemoryFileSystemOptions{.has_exchange = kind == "memory"});
    memory->make_directories("/work");
    rig.fs = std::move(memory);
    rig.root = "/work";
  } else {
    storage::PosixOptions options;
    options.use_renameat2 = kind == "posix";
    rig.temp = std::make_unique<TempDir>();
    rig.fs = make_posix_file_system(options);
    rig.root = rig.temp->path();
  }
  return rig;
}

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline void put(FileSystem& fs, const std::string& path, ByteView content) {
  const auto file = fs.create(path, IoMode::kBuffered);
  file->write_at(0, content);
  file->sync();
  file->close();
}
inline void put(FileSystem& fs, const std::string& path, std::string_view text) {
  put(fs, path, as_bytes(text));
}

inline Bytes read_all(const ReadFile& file) {
  Bytes bytes(file.size_bytes());
  file.read_at(0, bytes);
  return bytes;
}

using Tree = std::map<std::string, std::string>;

inline void add_tree(const Directory& directory, const std::string& relative, Tree& out) {
  for (const FileInfo& entry : directory.list(relative)) {
    const std::string name = storage::join_path(relative, entry.name);
    if (entry.type == FileType::kDirectory) {
      out[name + "/"] = "";
      add_tree(directory, name, out);
    } else if (entry.type == FileType::kRegular) {
      out[name] = std::string(as_text(read_all(*directory.open(name))));
    } else {
      out[name + "@"] = "";
    }
  }
}

/// Every name below `path` with its content; folders end in "/", links in "@". Empty when absent.
inline Tree tree_of(const FileSystem& fs, const std::string& path) {
  Tree out;
  if (fs.stat(path)) add_tree(*fs.open_directory(path), "", out);
  return out;
}

/// The code of the Error that `work` throws; kOk when it throws none.
template <class F>
Code code_of(F&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

template <class F>
std::string message_of(F&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tessera::test

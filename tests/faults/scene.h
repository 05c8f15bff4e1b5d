#pragma once
// A small checkpoint on the real file system, and the work that is done on it under faults.
#include <tessera/storage/file_system.h>

#include <string>

namespace tessera::faults {

class Scene {
 public:
  Scene();
  Scene(const Scene&) = delete;
  ~Scene();

  const std::string& folder() const { return folder_; }
  std::string source() const { return folder_ + "/source"; }
  std::string run() const { return folder_ + "/run"; }
  std::string output() const { return folder_ + "/work/out"; }
  std::string file() const { return folder_ + "/work/one.safetensors"; }

  // Writers, each with what it starts from; on the real file system when `fs` is null.
  void prepare_run() const;                        // two steps and the pointer
  void save_next(FileSystem* fs = nullptr) const;  // a third, and the first one goes
  void prepare_output() const;
  void reshard(FileSystem* fs = nullptr) const;
  void prepare_file() const;
  void convert(FileSystem* fs = nullptr) const;
  // What a reader sees of each: "old", "new", "between" (published, but the pointer not yet moved;
  // replaced, but without its seal), or else what is wrong.
  std::string shown_run() const;
  std::string shown_output() const;
  std::string shown_file() const;
  // Readers: what they found, as text.
  std::string load_source() const;
  std::string verify_source() const;

 private:
  void restore(const std::string& name) const;
  std::string folder_;
};

}  // namespace tessera::faults

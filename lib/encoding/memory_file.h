#pragma once
// Bytes in memory as a file: for parsers, which read through windows of files.
#include <tessera/encoding/byte_window.h>
#include <tessera/storage/file_system.h>

#include <cstring>
#include <string>
#include <utility>

namespace tessera {

/// Borrows its bytes.
class MemoryFile final : public ReadFile {
 public:
  MemoryFile(ByteView bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const ByteView part = bytes_.subspan(offset, out.size());
    std::memcpy(out.data(), part.data(), part.size());
  }

 private:
  ByteView bytes_;
  std::string path_;
};

}  // namespace tessera

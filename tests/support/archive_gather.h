#pragma once
// What the archive tests share: bytes as a file, samples on disk, and the plainest way to a
// tensor's bytes.
#include <tessera/base/error.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace tessera::test {

/// A file in memory.
class ByteFile : public ReadFile {
 public:
  explicit ByteFile(std::string bytes, std::string path = "memory")
      : bytes_(std::move(bytes)), path_(std::move(path)) {}
  explicit ByteFile(const Bytes& bytes) : ByteFile(std::string(as_text(bytes))) {}

  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      fail(Code::kCorrupt, "file ends");
    ++reads;
    std::copy_n(as_bytes(bytes_).begin() + static_cast<std::ptrdiff_t>(offset), out.size(),
                out.begin());
  }
  const std::string& bytes() const { return bytes_; }
  mutable int reads = 0;

 private:
  std::string bytes_;
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(Code::kNotFound, path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string sample(const std::string& name) {
  return std::string(TESSERA_SOURCE_DIR "/sample_checkpoints/") + name;
}

/// Code of the Error that `f` throws, its text in `message`; kOk when it throws none.
template <class F>
Code code_of(F&& f, std::string* message = nullptr) {
  try {
    f();
    return Code::kOk;
  } catch (const Error& error) {
    if (message) *message = error.status().to_string();
    return error.code();
  }
}

/// Logical bytes of a strided tensor: row-major, little-endian, conj and neg resolved.
Bytes gather_strided(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index);
/// The same for any layout: sparse tensors become dense.
Bytes gather(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index);

}  // namespace tessera::test

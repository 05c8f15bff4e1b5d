#pragma once
// What the fuzz targets share: the input as a file, and errors as answers.
#include <tessera/base/error.h>
#include <tessera/encoding/byte_window.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace tessera::fuzz {

class InputFile : public ReadFile {
 public:
  InputFile(const std::uint8_t* data, std::size_t size)
      : bytes_(reinterpret_cast<const std::byte*>(data), size) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) std::abort();
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  ByteView bytes_;
  std::string path_ = "input";
};

/// Refusals are fine; anything else that is thrown, and internal errors, are not.
template <class F>
void refuse_cleanly(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt && error.code() != Code::kUnsupported) std::abort();
  }
}

}  // namespace tessera::fuzz

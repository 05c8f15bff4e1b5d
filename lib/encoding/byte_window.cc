#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/byte_window.h>

namespace tessera {
namespace {

void check_inside(std::uint64_t at, std::uint64_t length, std::uint64_t size) {
  if (at > size || length > size - at)
    fail(Code::kCorrupt,
         fmt::format("bytes [{}, +{}) lie outside of the {} bytes there are", at, length, size));
}

}  // namespace

ByteWindow ByteWindow::whole(const ReadFile& file) { return {&file, 0, file.size_bytes()}; }

ByteWindow ByteWindow::sub(std::uint64_t at, std::uint64_t size) const {
  check_inside(at, size, length);
  check_inside(offset + at, size, file->size_bytes());
  return {file, offset + at, size};
}

void ByteWindow::read(std::uint64_t at, MutableBytes out) const {
  check_inside(at, out.size(), length);
  if (!out.empty()) file->read_at(offset + at, out);
}

Bytes ByteWindow::read(std::uint64_t at, std::uint64_t size) const {
  check_inside(at, size, length);
  check_inside(offset + at, size, file->size_bytes());
  Bytes out(size);
  read(at, MutableBytes(out));
  return out;
}

}  // namespace tessera

#include "lib/encoding/safety/bounded_inflate.h"

#include <tessera/base/error.h>
#include <zlib.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr std::uint64_t kInflatedAtOnce = std::uint64_t{64} << 10;

struct InflateStream {
  explicit InflateStream(DeflateForm form) {
    const int bits = form == DeflateForm::kRaw ? -MAX_WBITS : MAX_WBITS + 32;
    if (inflateInit2(&z, bits) != Z_OK)
      fail(Code::kResourceExhausted, "no memory for a zlib decoder");
  }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;
  ~InflateStream() { inflateEnd(&z); }
  z_stream z{};
};

}  // namespace

Inflated inflate_bounded(const ByteWindow& in, DeflateForm form, std::uint64_t most_bytes) {
  InflateStream stream(form);
  Inflated out;
  for (std::uint64_t at = 0; at < in.length; at += kInflatedAtOnce) {
    Bytes block = in.read(at, std::min(kInflatedAtOnce, in.length - at));
    stream.z.next_in = reinterpret_cast<Bytef*>(block.data());
    stream.z.avail_in = static_cast<uInt>(block.size());
    while (stream.z.avail_in > 0) {
      const std::size_t filled = out.bytes.size();
      if (filled >= most_bytes) return out;
      out.bytes.resize(filled + std::min<std::uint64_t>(kInflatedAtOnce, most_bytes - filled));
      stream.z.next_out = reinterpret_cast<Bytef*>(out.bytes.data()) + filled;
      stream.z.avail_out = static_cast<uInt>(out.bytes.size() - filled);
      const int state = inflate(&stream.z, Z_NO_FLUSH);
      out.bytes.resize(out.bytes.size() - stream.z.avail_out);
      if (state == Z_STREAM_END) {
        out.whole = true;
        return out;
      }
      if (state != Z_OK && state != Z_BUF_ERROR) return out;
      if (state == Z_BUF_ERROR && out.bytes.size() == filled) break;
    }
  }
  return out;
}

}  // namespace tessera
